"""Servers in processes of their own, for tests with real clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

START_SECONDS = 60


def program() -> list[str]:
    """The installed script, or the module where the package is not installed as one."""
    script = Path(sys.executable).with_name("ds4-server")
    return [str(script)] if script.exists() else [sys.executable, "-m", "ds4.cli.main", "server"]


class ServerProcess:
    """``ds4 server`` with arguments, on a free port."""

    def __init__(self, *arguments: Any, **environment: str) -> None:
        self.log: list[str] = []
        self.url = ""
        self._listening = threading.Event()
        self.process = subprocess.Popen(
            [*program(), "--port", "0", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**{k: v for k, v in os.environ.items() if k != "DS4_API_KEY"}, **environment},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r" at (http://\S+) ", line)
            if found and not self.url:
                self.url = found[1]
                self._listening.set()
        self._listening.set()

    def __enter__(self) -> ServerProcess:
        assert self._listening.wait(START_SECONDS) and self.url, self.log
        return self

    def __exit__(self, *rest: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self._reader.join(5)
            assert self.process.stderr is not None
            self.process.stderr.close()
        assert "Traceback" not in "".join(self.log), "".join(self.log)

"""`ds4 doctor`: the report, its JSON, the next steps and the exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ds4.cli import doctor as command


def test_a_machine_that_runs(ds4: Any) -> None:
    done = ds4("doctor", "--simulate-memory", "48GiB")
    assert done.returncode == 0 and "This machine runs ds4." in done.stdout, done.stderr
    for text in ("processor", "cpu    works", "cuda", "--expert-cache auto", "MB/s", "ds4 download q2", "(simulated)"):
        assert text in done.stdout
    assert done.stderr == ""


def test_json(ds4: Any, model_path: Path, environment: dict[str, str]) -> None:
    assert ds4("default", model_path).returncode == 0
    facts = json.loads(ds4("doctor", "--json", "-c", "4096").stdout)
    assert facts["runs"] is True and facts["n_ctx"] == 4096 and facts["problems"] == []
    assert facts["default_model"]["path"] == str(model_path) == facts["disk"]["path"]
    assert facts["default_model"]["fit"]["how"] == "resident" and facts["disk"]["read_bytes"] > 0
    assert [p["target"] for p in facts["published"]] == ["q2", "q2-q4", "q4", "pro-q2"]
    assert facts["kept"]["settings"]["path"].startswith(environment["HOME"])
    small = json.loads(ds4("doctor", "--json", "--no-disk", "--simulate-memory", "1M").stdout)
    assert small["disk"] is None and {p["fit"]["how"] for p in small["published"]} == {"no"}
    assert small["memory"] | {"available_bytes": 10**6, "simulated": True} == small["memory"]
    (problem,) = small["problems"]
    assert "does not fit" in problem["text"] and problem["step"]


def test_every_problem_has_its_step(ds4: Any, environment: dict[str, str], model_path: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone.gguf"
    shutil.copy(model_path, gone)
    assert ds4("default", gone).returncode == 0
    gone.unlink()
    done = ds4("doctor", "--no-disk")
    assert done.returncode == 0 and "No such file" in done.stdout and "ds4 default tiny none" in done.stdout
    gone.write_bytes(model_path.read_bytes()[:100_000])
    done = ds4("doctor", "--no-disk")
    assert done.returncode == 0 and f"does not open: {gone}" in done.stdout and f"ds4 inspect {gone}" in done.stdout
    (Path(environment["HOME"]) / ".ds4" / "settings.json").write_text("[")
    done = ds4("doctor", "--no-disk")
    assert done.returncode == 0 and "settings.json is damaged" in done.stdout
    assert ds4("doctor", "x").returncode == 2 and ds4("doctor", "-c", "0").returncode == 2


def test_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged installation: the exit code is 1, and the reason is the first problem."""
    import ds4

    monkeypatch.setenv("HOME", str(tmp_path))
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF")
    monkeypatch.setattr(ds4.Model, "embedded_path", staticmethod(lambda: damaged))
    facts = command.examine(4096, None, disk=False)
    assert facts["runs"] is False and facts["problems"][0]["text"].startswith("no back end works here: ")
    command.command.main(["--no-disk"], standalone_mode=False)
    assert "Nothing runs here." in capsys.readouterr().out

    def missing() -> Path:
        raise FileNotFoundError("this installation of ds4 has no embedded model")

    monkeypatch.setattr(ds4.Model, "embedded_path", staticmethod(missing))
    facts = command.examine(4096, None, disk=False)
    assert facts["runs"] is True and "no embedded model" in facts["problems"][0]["text"]

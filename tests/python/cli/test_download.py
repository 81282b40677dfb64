"""`ds4 download` from a stand-in hub over HTTP, and the default model."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ds4.cli.program import run
from ds4.download import DownloadError, RemoteFile, Transfer
from ds4.download.hub import ConnectionBrokenError
from ds4.download.transfer import HEAD_PIECE, part_path
from ds4.published import PUBLISHED, REPOSITORY
from support.gguf_write import build_gguf, string
from support.hub import COMMIT, Hub, Stored

from .conftest import program

pytest.importorskip("huggingface_hub")

PLACE = "owner/models/tiny.gguf"


@pytest.fixture(scope="session")
def content(model_path: Path) -> bytes:
    return model_path.read_bytes()


@pytest.fixture
def ds4(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Any]]:
    """Run the program in this process: there are many runs, and the library of the hub takes long to load."""
    import huggingface_hub.constants
    import huggingface_hub.utils

    def call(*args: Any, cwd: Path | None = None) -> Any:
        capsys.readouterr()
        with monkeypatch.context() as m:
            m.setattr(os, "environ", environment)
            m.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(Path(environment["HF_HOME"]) / "token"))
            m.chdir(cwd or Path.cwd())
            code = run([str(a) for a in args])
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    yield call
    huggingface_hub.utils.close_session()


@pytest.fixture
def hub(environment: dict[str, str], tmp_path: Path) -> Iterator[Hub]:
    with Hub() as hub:
        for name in [name for name in environment if name.startswith("HF_")]:
            del environment[name]
        environment["HF_ENDPOINT"] = hub.url
        environment["HF_HOME"] = str(tmp_path / "hf")
        environment["HF_HUB_DISABLE_TELEMETRY"] = "1"
        yield hub


@pytest.fixture
def models(environment: dict[str, str]) -> Path:
    return Path(environment["HOME"]) / ".ds4" / "models"


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.part"))


def test_a_model_is_downloaded_and_becomes_the_default(ds4: Any, hub: Hub, models: Path, content: bytes) -> None:
    hub.files[PLACE] = Stored(content)
    done = ds4("download", PLACE)
    assert done.returncode == 0, done.stderr
    path = models / "tiny.gguf"
    assert done.stdout == f"{path}\n" and path.read_bytes() == content
    assert "its checksum is right" in done.stderr and COMMIT[:12] in done.stderr
    assert parts(models) == []
    # The first piece is small: it tells whether the rest is worth it.
    assert hub.ranges() == [f"bytes=0-{HEAD_PIECE - 1}", f"bytes={HEAD_PIECE}-{len(content) - 1}"]
    assert all(COMMIT in path for host, method, path, _, _ in hub.asked if host == "hub" and method == "GET")
    # Opened without -m from now on; -m tiny is the model of the package all the same.
    assert ds4("default").stdout == f"{path}\n"
    answer = ds4("-p", "hi", "-n", "2", "--nothink", "--temp", "0")
    assert answer.returncode == 0 and f"opening the default model, {path}" in answer.stderr
    assert json.loads(ds4("-m", "tiny", "-p", "hi", "-n", "1", "--json").stdout)["model"] == "ds4-tiny"
    # Nothing is read again.
    asked = len(hub.ranges())
    again = ds4("download", PLACE)
    assert again.returncode == 0 and "is here already, and complete" in again.stderr
    assert len(hub.ranges()) == asked


def test_published_names(ds4: Any, hub: Hub, tmp_path: Path, content: bytes) -> None:
    published = {p.target: p.file for p in PUBLISHED}
    hub.files[f"{REPOSITORY}/{published['q2']}"] = Stored(content)
    hub.files[f"{REPOSITORY}/{published['mtp']}"] = Stored(content)
    assert ds4("download", "mtp", "--dir", tmp_path / "a b").returncode == 0
    assert (tmp_path / "a b" / published["mtp"]).is_file()
    assert ds4("default").stdout == "tiny\n"  # an MTP block is nothing to open
    refused = ds4("download", "mtp", "--dir", tmp_path / "a b", "--set-default")
    assert refused.returncode == 1 and "no model that could be opened alone" in refused.stderr
    assert ds4("download", "q2", "--dir", tmp_path / "a b", "--no-set-default").returncode == 0
    assert ds4("default").stdout == "tiny\n"
    assert ds4("download", "q2-imatrix", "--dir", tmp_path / "a b", "--set-default").returncode == 0
    assert ds4("default").stdout == f"{tmp_path / 'a b' / published['q2']}\n"
    shown = ds4("download", "--list", "--dir", tmp_path / "a b").stdout
    assert all(p.target in shown and p.file in shown for p in PUBLISHED)
    assert shown.count("(here)") == 2


@pytest.mark.parametrize("ranges", [True, False])
def test_broken_connections_go_on_where_they_broke(
    ds4: Any, hub: Hub, models: Path, content: bytes, ranges: bool
) -> None:
    hub.files[PLACE] = Stored(content, ranges=ranges, cuts=[1_000_000, 3_000_000], stumbles=[503])
    done = ds4("download", PLACE)
    assert done.returncode == 0, done.stderr
    assert (models / "tiny.gguf").read_bytes() == content
    begins = [int(str(r).removeprefix("bytes=").split("-")[0]) for r in hub.ranges()]
    assert begins[:4] == ([0, 0, 1_000_000, 4_000_000] if ranges else [0, 0, 1_000_000, 3_000_000])


def test_an_interrupted_download_goes_on(
    ds4: Any, hub: Hub, models: Path, content: bytes, environment: dict[str, str]
) -> None:
    """Ctrl-C leaves a part, never the final name; the next run asks for the rest only."""
    hub.files[PLACE] = Stored(content, cuts=[HEAD_PIECE, 4_000_000, 0, 0, 0, 0, 0, 0])
    child = subprocess.Popen([*program(), "download", PLACE], env=environment, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while len(hub.ranges()) < 3 and child.poll() is None and time.monotonic() < end:
        time.sleep(0.02)  # the program waits between its attempts now
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=60)
    assert child.returncode == 130 and "the same command goes on" in told, told
    (part,) = parts(models)
    there = HEAD_PIECE + 4_000_000
    assert part.read_bytes() == content[:there] and not (models / "tiny.gguf").exists()
    hub.files[PLACE] = Stored(content)
    hub.asked.clear()
    done = ds4("download", PLACE)
    assert done.returncode == 0 and "going on behind" in done.stderr
    assert hub.ranges() == [f"bytes={there}-{len(content) - 1}"]
    assert (models / "tiny.gguf").read_bytes() == content and parts(models) == []


def test_a_wrong_checksum_leaves_nothing(ds4: Any, hub: Hub, models: Path, content: bytes) -> None:
    hub.files[PLACE] = Stored(content, sha256="0" * 64)
    done = ds4("download", PLACE)
    assert done.returncode == 1 and "SHA-256" in done.stderr and "0" * 64 in done.stderr
    assert list(models.iterdir()) == []


def test_a_damaged_part_is_noticed(ds4: Any, hub: Hub, models: Path, content: bytes) -> None:
    hub.files[PLACE] = Stored(content)
    models.mkdir(parents=True)
    remote = RemoteFile("owner/models", "tiny.gguf", COMMIT, len(content), hub.files[PLACE].etag, None)
    part = part_path(models / "tiny.gguf", remote)
    damaged = bytearray(content[:20_000_000])
    damaged[19_000_000] ^= 1
    part.write_bytes(damaged)
    done = ds4("download", PLACE)
    assert done.returncode == 1 and "SHA-256" in done.stderr
    assert list(models.iterdir()) == []


def test_a_file_that_changed_is_not_put_together_from_two(ds4: Any, hub: Hub, models: Path, content: bytes) -> None:
    hub.files[PLACE] = Stored(content)
    models.mkdir(parents=True)
    (models / "tiny.gguf.0123456789ab.part").write_bytes(b"old")
    done = ds4("download", PLACE)
    assert done.returncode == 0 and "tiny.gguf.0123456789ab.part is the begin of another version" in done.stderr
    assert (models / "tiny.gguf").read_bytes() == content
    # The hub has a newer one: what is here is not replaced by accident.
    newer = content[:-1] + bytes([content[-1] ^ 1])
    hub.files[PLACE] = Stored(newer)
    refused = ds4("download", PLACE)
    assert refused.returncode == 1 and "another content" in refused.stderr and "--force" in refused.stderr
    assert (models / "tiny.gguf").read_bytes() == content
    assert ds4("download", PLACE, "--force").returncode == 0
    assert (models / "tiny.gguf").read_bytes() == newer


def test_without_a_checksum_the_size_is_checked(ds4: Any, hub: Hub, models: Path, content: bytes) -> None:
    hub.files[PLACE] = Stored(content, plain_etag=True)
    done = ds4("download", PLACE)
    assert done.returncode == 0 and "the hub gives no checksum" in done.stderr
    assert (models / "tiny.gguf").read_bytes() == content
    hub.files[PLACE] = Stored(content, plain_etag=True, claimed=len(content) + 5)
    done = ds4("download", PLACE, "--force")
    assert done.returncode == 1 and "another range than it was asked for" in done.stderr
    assert (models / "tiny.gguf").read_bytes() == content


def test_tokens(ds4: Any, hub: Hub, environment: dict[str, str], tmp_path: Path, content: bytes) -> None:
    """The option, HF_TOKEN, and the one that the library of the hub has stored; none is told to the store."""
    hub.files[PLACE] = Stored(content, token="hf_secret", gated=True)
    refused = ds4("download", PLACE)
    assert refused.returncode == 1
    assert "accept them at" in refused.stderr and "no token was given" in refused.stderr
    wrong = ds4("download", PLACE, "--token", "hf_wrong")
    assert wrong.returncode == 1 and "the token given was" in wrong.stderr and "hf_wrong" not in wrong.stderr
    assert ds4("download", PLACE, "--token", "hf_secret", "--dir", tmp_path / "a").returncode == 0
    environment["HF_TOKEN"] = "hf_secret"
    assert ds4("download", PLACE, "--dir", tmp_path / "b").returncode == 0
    del environment["HF_TOKEN"]
    (tmp_path / "hf").mkdir(exist_ok=True)
    (tmp_path / "hf" / "token").write_text("hf_secret")
    assert ds4("download", PLACE, "--dir", tmp_path / "c").returncode == 0
    assert {a for host, _, _, _, a in hub.asked if host == "store"} == {None}
    assert ds4("download", PLACE, "--token", "a\nb").returncode == 2


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        ((), 2, "name what to download"),
        (("--list", "q2"), 2, "takes no TARGET"),
        (("q9",), 2, "none of q2, q2-q4, q4, mtp, pro-q2"),
        (("owner/models/../x.gguf",), 2, "none of"),
        (("owner/models/none.gguf",), 1, "no such file; ds4 download --list"),
        (("nobody/nothing/x.gguf",), 1, "no such repository"),
        (("owner/models/tiny.gguf", "--revision", "v9"), 1, "no revision 'v9'"),
    ],
)
def test_what_the_hub_does_not_have(
    ds4: Any, hub: Hub, models: Path, args: tuple[str, ...], code: int, text: str
) -> None:
    hub.files[PLACE] = Stored(b"GGUF")
    done = ds4("download", *args)
    assert done.returncode == code and text in done.stderr, done.stderr
    assert not models.exists() or list(models.iterdir()) == []


def test_no_hub(ds4: Any, hub: Hub, environment: dict[str, str]) -> None:
    environment["HF_ENDPOINT"] = "http://127.0.0.1:9"  # nobody listens there
    done = ds4("download", "q2")
    assert done.returncode == 1 and "http://127.0.0.1:9 cannot be reached" in done.stderr


def test_a_model_of_another_kind_is_known_by_its_head(ds4: Any, hub: Hub, models: Path) -> None:
    """L115: after 16 MiB, not after days."""
    head = build_gguf({"general.architecture": string("llama")}, [])
    hub.files["owner/models/llama.gguf"] = Stored(head + bytes(HEAD_PIECE * 2))
    done = ds4("download", "owner/models/llama.gguf")
    assert done.returncode == 1
    assert "architecture 'llama', and ds4 runs 'deepseek4'" in done.stderr and "of 32.0 MiB" in done.stderr
    assert hub.ranges() == [f"bytes=0-{HEAD_PIECE - 1}"] and list(models.iterdir()) == []
    hub.files["owner/models/page.gguf"] = Stored(b"<html>")
    done = ds4("download", "owner/models/page.gguf")
    assert done.returncode == 1 and "no GGUF file" in done.stderr
    assert ds4("download", "owner/models/page.gguf", "--any", "--no-set-default").returncode == 0


def test_a_full_disk(ds4: Any, hub: Hub, models: Path, content: bytes, environment: dict[str, str]) -> None:
    """Known before when the disk tells it; else a part stays that the next run goes on with."""
    hub.files[PLACE] = Stored(content, claimed=1 << 60)
    done = ds4("download", PLACE)
    assert done.returncode == 1 and "are free on this disk" in done.stderr and "--dir" in done.stderr
    assert hub.ranges() == [] and list(models.iterdir()) == []
    hub.files[PLACE] = Stored(content)
    limit = 20_000_000
    done = subprocess.run(
        [*program(), "download", PLACE], env=environment, capture_output=True, text=True, check=False, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 1 and "the same command goes on from there" in done.stderr, done.stderr
    (part,) = parts(models)
    assert part.read_bytes() == content[:limit] and not (models / "tiny.gguf").exists()
    assert ds4("download", PLACE).returncode == 0
    assert (models / "tiny.gguf").read_bytes() == content


def test_a_folder_that_cannot_be_used(ds4: Any, hub: Hub, tmp_path: Path, content: bytes) -> None:
    hub.files[PLACE] = Stored(content)
    (tmp_path / "file").write_text("")
    done = ds4("download", PLACE, "--dir", tmp_path / "file")
    assert done.returncode == 1 and str(tmp_path / "file") in done.stderr
    (tmp_path / "d" / "tiny.gguf").mkdir(parents=True)
    done = ds4("download", PLACE, "--dir", tmp_path / "d")
    assert done.returncode == 2 and "exists and is no file" in done.stderr


def test_two_downloads_of_one_file(hub: Hub, tmp_path: Path) -> None:
    remote = RemoteFile("o/r", "x", COMMIT, 10, "tag", None)
    with Transfer(remote, tmp_path / "x", lambda begin, end: iter(())) as first:
        with pytest.raises(OSError, match="another process is downloading"):
            Transfer(remote, tmp_path / "x", lambda begin, end: iter(()))
        assert first.part.exists()
    assert list(tmp_path.glob("x*")) == []  # nothing came


def test_patience_has_an_end(tmp_path: Path) -> None:
    """Pauses grow, begin again after every byte, and end with an error that says how to go on."""
    remote = RemoteFile("o/r", "x", COMMIT, 10, "tag", None)
    pauses: list[float] = []
    sends = [b"ab"]

    def source(begin: int, end: int) -> Iterator[bytes]:
        if len(pauses) == 3 and sends:
            yield sends.pop()
        raise ConnectionBrokenError("gone")

    with (
        Transfer(remote, tmp_path / "x", source, pause=pauses.append) as transfer,
        pytest.raises(DownloadError, match=r"gone; tried 6 times without a byte.*the same command goes on"),
    ):
        transfer.run(lambda done, total: None, lambda part: None)
    assert pauses == [1, 2, 4, 1, 2, 4, 8, 16]
    assert transfer.part.read_bytes() == b"ab"


def test_without_the_extra(environment: dict[str, str], tmp_path: Path) -> None:
    """The library is hidden by one that cannot be imported."""
    (tmp_path / "huggingface_hub.py").write_text("raise ImportError('hidden')")
    code = "import sys; from ds4.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "download", "q2"], capture_output=True, text=True, check=False,
        env={**environment, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1 and "pip install 'ds4[download]'" in done.stderr, done.stderr


def test_the_default_model(ds4: Any, hub: Hub, environment: dict[str, str], model_path: Path, tmp_path: Path) -> None:
    assert ds4("default").stdout == "tiny\n"
    assert ds4("default", "tiny").returncode == 0
    none = ds4("default", tmp_path / "none.gguf")
    assert none.returncode == 1 and "none.gguf" in none.stderr
    (tmp_path / "text").write_text("text")
    assert ds4("default", tmp_path / "text").returncode == 1
    link = tmp_path / "a model.gguf"
    os.link(model_path, link)
    assert ds4("default", "a model.gguf", cwd=tmp_path).returncode == 0
    assert ds4("default").stdout == f"{link}\n"
    # Every program opens it, and -m wins.
    answer = ds4("-p", "hi", "-n", "1", "--json", "--nothink")
    assert answer.returncode == 0 and json.loads(answer.stdout)["model"] != "ds4-tiny"
    link.unlink()
    gone = ds4("-p", "hi")
    assert (
        gone.returncode == 1 and "the default model is not there" in gone.stderr and "ds4 default tiny" in gone.stderr
    )
    assert ds4("-m", "tiny", "-p", "hi", "-n", "1").returncode == 0
    settings = Path(environment["HOME"]) / ".ds4" / "settings.json"
    settings.write_text('{"default_model": 5, "other": [1]}')
    assert "is damaged: default_model" in ds4("-p", "hi").stderr
    assert ds4("default", "tiny").returncode == 0
    assert json.loads(settings.read_text()) == {"other": [1]}  # what another release wrote stays
    settings.write_text("{")
    damaged = ds4("-p", "hi")
    assert damaged.returncode == 1 and f"{settings} is damaged" in damaged.stderr
    assert ds4("default", "--help").returncode == 0

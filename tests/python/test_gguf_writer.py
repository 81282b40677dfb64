"""Writing GGUF files: what is written reads back, and an interrupted write goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ds4.gguf import GGUFFile
from ds4.gguf_partial import partial_path
from ds4.gguf_writer import KV, GGUFWriter, TensorInfo, check_targets, make_layout, records_of

KVS = [
    KV("general.architecture", "string", "deepseek4"),
    KV("general.alignment", "u32", 256),
    KV("a.numbers", "[f32]", [1.5, -2.0]),
    KV("a.names", "[string]", ["x", "", "y\u00e9"]),
    KV("a.flag", "bool", True),
    KV("a.small", "i8", -3),
]
TENSORS = [TensorInfo(f"t{i}", (256, 3), kind) for i, kind in enumerate(("F32", "Q2_K", "F16", "IQ2_XXS"))]


def payload(tensor: TensorInfo, seed: int) -> bytes:
    return bytes((seed * 7 + i * 13) % 251 for i in range(tensor.n_bytes))


def payloads(stop_before: int | None = None, error: BaseException | None = None) -> Iterator[Iterator[bytes]]:
    for i, tensor in enumerate(TENSORS):
        yield pieces(tensor, i, error if i == stop_before else None)


def pieces(tensor: TensorInfo, seed: int, error: BaseException | None) -> Iterator[bytes]:
    raw = payload(tensor, seed)
    yield raw[:100]
    if error is not None:
        raise error
    yield raw[100:]


def written(path: Path) -> bytes:
    with GGUFWriter(path, KVS, TENSORS) as writer:
        writer.write(payloads())
        writer.publish()
    return path.read_bytes()


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    written(path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.gguf"]
    with GGUFFile(path) as file:
        assert records_of(file) == KVS
        layout = make_layout(records_of(file), TENSORS)
        assert path.read_bytes()[: len(layout.header)] == layout.header
        assert all(offset % 256 == 0 for offset in layout.offsets)
        for i, (tensor, planned) in enumerate(zip(file.tensors.values(), TENSORS, strict=True)):
            assert (tensor.name, tensor.type) == (planned.name, planned.type)
            assert bytes(tensor.data()) == payload(planned, i)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("at", [1, 3])
def test_an_interrupted_write_goes_on(tmp_path: Path, at: int, error: BaseException) -> None:
    whole = written(tmp_path / "whole.gguf")
    path = tmp_path / "a.gguf"
    with pytest.raises(type(error)), GGUFWriter(path, KVS, TENSORS, resume_key="k") as writer:
        writer.write(payloads(at, error))
    assert not path.exists()
    assert writer.kept == partial_path(path)
    seen = []

    def rest() -> Iterator[Iterator[bytes]]:
        for i, tensor in enumerate(TENSORS):
            yield counted(i, tensor)

    def counted(i: int, tensor: TensorInfo) -> Iterator[bytes]:
        seen.append(i)
        yield payload(tensor, i)

    with GGUFWriter(path, KVS, TENSORS, resume_key="k") as writer:
        assert writer.n_done == at
        writer.write(rest())
        writer.publish()
    assert seen == list(range(at, len(TENSORS)))
    assert path.read_bytes() == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.gguf", "whole.gguf"]


def interrupted(path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), GGUFWriter(path, KVS, TENSORS, resume_key="k") as writer:
        writer.write(payloads(3, KeyboardInterrupt()))


def test_other_work_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    interrupted(path)
    with GGUFWriter(path, KVS, TENSORS, resume_key="other") as writer:
        assert writer.n_done == 0
        writer.write(payloads())
        writer.publish()
    assert path.read_bytes() == written(tmp_path / "whole.gguf")


@pytest.mark.parametrize("tensor", [0, 1, 2])
def test_a_damaged_tensor_is_written_again(tmp_path: Path, tensor: int) -> None:
    path = tmp_path / "a.gguf"
    interrupted(path)
    offset = make_layout(KVS, TENSORS).offsets[tensor]
    with open(partial_path(path), "r+b") as f:
        f.seek(offset + 5)
        f.write(b"\xff")
    with GGUFWriter(path, KVS, TENSORS, resume_key="k") as writer:
        assert writer.n_done == tensor
        writer.write(payloads())
        writer.publish()
    assert path.read_bytes() == written(tmp_path / "whole.gguf")


@pytest.mark.parametrize("cut", range(2, 120, 7))
def test_a_torn_journal_costs_time_only(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.gguf"
    interrupted(path)
    journal = partial_path(path).with_name("a.gguf.part.journal")
    journal.write_bytes(journal.read_bytes()[:-cut])
    with GGUFWriter(path, KVS, TENSORS, resume_key="k") as writer:
        assert writer.n_done < 3
        writer.write(payloads())
        writer.publish()
    assert path.read_bytes() == written(tmp_path / "whole.gguf")


def test_bad_data_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError), GGUFWriter(tmp_path / "a.gguf", KVS, TENSORS, resume_key="k") as writer:
        writer.write(payloads(3, ValueError("NaN")))
    assert not list(tmp_path.iterdir())


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    with GGUFWriter(path, KVS, TENSORS, resume_key="k"), pytest.raises(OSError, match="another process"):
        GGUFWriter(path, KVS, TENSORS, resume_key="k")
    assert not list(tmp_path.iterdir())


KILLED = """
import sys, os, signal
sys.path.insert(0, {here!r})
from test_gguf_writer import *
def all_payloads():
    for i, tensor in enumerate(TENSORS):
        if i == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        yield [payload(tensor, i)]
with GGUFWriter({path!r}, KVS, TENSORS, resume_key="k") as writer:
    writer.write(all_payloads())
"""


def test_a_killed_write_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    script = KILLED.format(here=str(Path(__file__).parent), path=str(path))
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert not path.exists()
    with GGUFWriter(path, KVS, TENSORS, resume_key="k") as writer:
        assert writer.n_done == 2
        writer.write(payloads())
        writer.publish()
    assert path.read_bytes() == written(tmp_path / "whole.gguf")


def test_room_that_is_taken_already_is_not_needed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gguf"
    partial_path(path).write_bytes(os.urandom(1 << 20))
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    with pytest.raises(OSError, match="are free"):
        check_targets([(path, free + (64 << 30))])


def test_a_name_that_a_writer_took_away_is_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer finishes, and removes its partial file, between our opening and locking it."""
    from ds4 import gguf_partial

    path, flock, seen = tmp_path / "a.gguf", gguf_partial.fcntl.flock, []

    def late(fd: int, how: int) -> None:
        flock(fd, how)
        if not seen:
            gguf_partial.partial_path(path).unlink()
        seen.append(fd)

    monkeypatch.setattr(gguf_partial.fcntl, "flock", late)
    partial = gguf_partial.PartialFile(path, b"head", [(32, 4)], "key")
    assert len(seen) == 2
    handle = partial.open()
    assert os.path.samestat(os.fstat(handle), os.stat(partial.path))
    os.close(handle)
    partial.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """Nor is a device: as root, `--force` with /dev/null as the name would take it from the whole machine."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="is a device or a pipe"):
        check_targets([(path, 0)], force=True)
    with GGUFWriter(path, KVS, TENSORS, force=True) as writer:
        writer.write([payload(t, i)] for i, t in enumerate(TENSORS))
        with pytest.raises(OSError, match="is a device or a pipe"):
            writer.publish()
    assert path.is_fifo() and list(tmp_path.iterdir()) == [path]


def test_a_dangling_link_is_seen_before_the_work(tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError, match="exists already"):
        check_targets([(path, 0)])
    check_targets([(path, 0)], force=True)

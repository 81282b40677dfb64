"""Opening models, what they tell, and how long they live."""

from __future__ import annotations

import dataclasses
import gc
import os
import platform
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ds4
import pytest
from ds4.chat import collect
from ds4.model import diagnose
from support.gguf_write import string, u32
from support.tiny_gguf import tiny_metadata, write_gguf


@pytest.fixture(scope="module")
def model(flash_gguf: Path) -> Iterator[ds4.Model]:
    with ds4.Model.open(flash_gguf) as model:
        yield model


def test_a_model_tells_its_shape(model: ds4.Model) -> None:
    shape = model.shape
    assert (shape.name, shape.n_layer, shape.n_embd, shape.n_vocab) == ("test-flash", 5, 256, 512)
    assert shape.compress_ratio == (0, 0, 4, 128, 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        shape.n_layer = 3  # type: ignore[misc]
    assert model.backend == "cpu"
    assert model.warnings == ()
    assert model.metadata["general.architecture"] == "deepseek4"
    assert "test-flash" in repr(model)


def test_the_shapes_of_both_kinds_are_told_apart(pro_gguf: Path) -> None:
    with ds4.Model.open(pro_gguf) as model:
        assert model.shape.name == "test-pro"
        assert model.shape.compress_ratio[:2] == (128, 128)


def test_a_fingerprint_belongs_to_the_file(model: ds4.Model, flash_gguf: Path, pro_gguf: Path) -> None:
    assert len(model.fingerprint) == 16
    with ds4.Model.open(flash_gguf) as same, ds4.Model.open(pro_gguf) as other:
        assert same.fingerprint == model.fingerprint
        assert other.fingerprint != model.fingerprint


def test_the_tokenizer_comes_from_the_file(model: ds4.Model) -> None:
    text = "The sky is blue. ☃"
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
    assert model.tokenizer is model.tokenizer
    assert model.tokenizer.n_vocab == model.shape.n_vocab


def test_the_memory_plan_grows_with_the_context(model: ds4.Model) -> None:
    with ds4.GGUFFile(model.path) as file:
        file_bytes = file.file_bytes - file.data_offset
    small, large = model.memory_plan(1000), model.memory_plan(100_000)
    assert small.compressed_bytes < large.compressed_bytes
    assert small.window_bytes == large.window_bytes
    for plan in (small, large):
        parts = dataclasses.asdict(plan)
        weights, total = parts.pop("weights_bytes"), parts.pop("total_session_bytes")
        assert sum(parts.values()) == total
        assert weights == file_bytes
    assert model.memory_plan(1000, rows="f32").window_bytes > small.window_bytes
    with model.session(n_ctx=1000, chunk=32) as session:
        plan = model.memory_plan(1000, chunk=32)
        assert session.n_bytes == plan.total_session_bytes - plan.checkpoint_bytes, "no checkpoint yet"
    without = model.memory_plan(1000, checkpoint_bytes=0)
    assert without.checkpoint_bytes == 0
    assert without.total_session_bytes == small.total_session_bytes - small.checkpoint_bytes
    assert small.checkpoint_bytes < model.memory_plan(1000, checkpoint_every=100).checkpoint_bytes
    assert model.memory_plan(100_000, checkpoint_bytes=10**6).checkpoint_bytes == 10**6


def test_weights_are_checked_with_progress(model: ds4.Model) -> None:
    seen: list[tuple[int, int]] = []
    model.check(progress=lambda done, total: seen.append((done, total)))
    assert all(0 <= done <= total for done, total in seen)


def test_what_the_progress_function_raises_ends_the_check(model: ds4.Model) -> None:
    def stop(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(TypeError, match="callable"):
        model.check(progress=3)  # type: ignore[arg-type]
    try:
        model.check(progress=stop)
    except RuntimeError as error:
        assert str(error) == "enough"  # not reached when the whole check takes less than one pulse
    model.check()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("used", [False, True])
def test_closing_gives_the_memory_back(flash_gguf: Path, tmp_path: Path, streamed: bool, used: bool) -> None:
    """The file is let go when model and sessions are closed, though their objects live on."""
    path = shutil.copyfile(flash_gguf, tmp_path / f"own-{streamed}-{used}.gguf")

    def held() -> bool:
        maps = Path("/proc/self/maps").read_text()
        return path.name in maps or path.name in " ".join(
            os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()
        )

    for model_first in (True, False):
        model = ds4.Model.open(path, expert_cache=1 << 20 if streamed else None)
        sessions = [model.session(n_ctx=64, threads=1) for _ in range(2)]
        if used:
            assert model.metadata["general.architecture"] == "deepseek4"
            for session in sessions:
                session.eval([1, 2])
        assert held()
        if model_first:
            model.close()
        for session in sessions:
            assert held()
            session.close()
        model.close()
        assert not held()


def test_a_closed_model_says_so_and_its_sessions_go_on(flash_gguf: Path) -> None:
    model = ds4.Model.open(flash_gguf)
    session = model.session(n_ctx=64)
    model.close()
    model.close()
    assert model.closed
    assert "closed" in repr(model)
    uses = [
        lambda: model.session(),
        lambda: model.tokenizer,
        lambda: model.metadata,
        lambda: model.fingerprint,
        lambda: model.check(),
        lambda: model.memory_plan(),
    ]
    for use in uses:
        with pytest.raises(ds4.ClosedError, match="flash"):
            use()
    session.sync([1, 2, 3])
    steps = list(session.generate(max_tokens=2, sampler=ds4.Sampler.greedy(), stop_tokens=()))
    assert len(steps) == 2, "the session decodes text with a tokenizer of its own"
    session.close()


def test_a_session_outlives_the_model_variable(flash_gguf: Path) -> None:
    """Release order does not matter: the session keeps the weights mapped."""
    model = ds4.Model.open(flash_gguf)
    session = model.session(n_ctx=64)
    metadata = model.metadata
    del model
    gc.collect()
    session.sync([1, 2, 3])
    assert session.logits().shape == (512,)
    session.close()
    del session
    gc.collect()
    assert metadata["general.architecture"] == "deepseek4"


def test_nothing_is_kept_alive_by_a_cycle(flash_gguf: Path) -> None:
    """A progress function is dropped with its call; a tap that refers to its session is found by the collector."""

    def leave_behind() -> weakref.ref[ds4.Session]:
        session = ds4.Model.open(flash_gguf).session(n_ctx=64)
        session.sync([1], progress=lambda done, total: session.n_ctx)
        session.set_tap(lambda stage, layer, pos, values: session.cancel())
        return weakref.ref(session)

    alive = leave_behind()
    gc.collect()
    assert alive() is None


def test_one_model_serves_many_threads(model: ds4.Model) -> None:
    """Sessions of one model in parallel give what each gives alone."""
    prompts = [[i, 2, 3, 40 + i] for i in range(3)]

    def run(prompt: list[int]) -> list[float]:
        with model.session(n_ctx=32, threads=1) as session:
            session.sync(prompt)
            return session.logits().tolist()

    alone = [run(prompt) for prompt in prompts]
    together: dict[int, list[float]] = {}
    threads = [
        threading.Thread(target=lambda i=i, p=p: together.update({i: run(p)}))  # type: ignore[misc]
        for i, p in enumerate(prompts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[i] for i in range(3)] == alone


def test_files_that_are_no_models_are_refused(tmp_path: Path, flash_gguf: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ds4.Model.open(tmp_path / "nothing.gguf")
    text = tmp_path / "text.gguf"
    text.write_text("Once upon a time there was no model in this file.")
    with pytest.raises(ds4.ModelFileError, match="text"):
        ds4.Model.open(text)
    with pytest.raises(FileNotFoundError) as caught:
        ds4.Model.open(flash_gguf, mtp=tmp_path / "mtp.gguf")
    assert caught.value.filename == str(tmp_path / "mtp.gguf"), "the file that is missing is named"


def test_another_family_is_refused_by_name(tmp_path: Path) -> None:
    metadata = {**tiny_metadata("flash"), "general.architecture": string("llama")}
    path = write_gguf(tmp_path / "other.gguf", metadata, [])
    with pytest.raises(ds4.UnsupportedModelError, match="llama") as caught:
        ds4.Model.open(path)
    assert caught.value.path == str(path)
    with ds4.GGUFFile(path) as file, pytest.raises(ds4.UnsupportedModelError, match="llama"):
        diagnose(file)


def test_another_shape_is_refused_with_every_difference(tmp_path: Path) -> None:
    changes = {"deepseek4.expert_count": u32(17), "deepseek4.attention.head_count": u32(5)}
    path = write_gguf(tmp_path / "other.gguf", {**tiny_metadata("flash"), **changes}, [])
    with ds4.GGUFFile(path) as file:
        name, report = diagnose(file)
    assert name == "test-flash", "the nearest shape"
    with pytest.raises(ds4.UnsupportedModelError) as caught:
        ds4.Model.open(path)
    for text in (report, str(caught.value)):
        assert "17" in text
        assert "token_embd.weight" in text, "a tensor that is missing"


def test_a_file_that_would_load_has_no_differences(flash_gguf: Path) -> None:
    with ds4.GGUFFile(flash_gguf) as file:
        assert diagnose(file) == ("test-flash", "")


@pytest.mark.parametrize("backend", ["cuda", "hip", "metal"])
def test_a_missing_backend_is_refused_with_the_reason(flash_gguf: Path, backend: str) -> None:
    with pytest.raises(ds4.BackendUnavailableError, match=backend):
        ds4.Model.open(flash_gguf, backend=backend)
    with pytest.raises(ValueError, match="abacus"):
        ds4.Model.open(flash_gguf, backend="abacus")


@pytest.mark.parametrize(
    ("parameters", "kind", "message"),
    [
        ({"n_ctx": 0}, ValueError, "n_ctx"),
        ({"n_ctx": 1_048_577}, ValueError, "n_ctx"),
        ({"n_ctx": 64.0}, TypeError, "n_ctx"),
        ({"n_ctx": True}, TypeError, "n_ctx"),
        ({"chunk": 0}, ValueError, "chunk"),
        ({"chunk": 4097}, ValueError, "chunk"),
        ({"threads": 0}, ValueError, "threads"),
        ({"threads": 257}, ValueError, "threads"),
        ({"rows": "f8"}, ValueError, "rows"),
        ({"activations": "int8"}, ValueError, "activations"),
    ],
)
def test_session_parameters_are_checked(
    model: ds4.Model, parameters: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        model.session(**{"n_ctx": 64, **parameters})


def test_session_parameters_can_be_read_back(model: ds4.Model) -> None:
    with model.session(n_ctx=96, chunk=7, threads=2, qat=False, rows="f32", activations="float32") as session:
        found = (session.n_ctx, session.chunk, session.threads, session.qat, session.rows, session.activations)
        assert found == (96, 7, 2, False, "f32", "float32")
        assert session.mtp is False
        assert session.model is model
    with model.session(n_ctx=64) as session:
        assert (session.chunk, session.qat, session.rows, session.activations) == (512, True, "f16", "quantized")


class Writer(ds4.Sampler):
    """Writes a given text instead of drawing, then ends the turn."""

    def __init__(self, model: ds4.Model, text: str) -> None:
        super().__init__(seed=0)
        self.ids = iter([*model.tokenizer.encode(text, specials=True), model.tokenizer.eos_id])

    def sample(self, logits: Any) -> tuple[int, float]:
        return next(self.ids), -1.0


USER = [{"role": "user", "content": "What is the time?"}]
CLOCK = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]
CALL = '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="clock">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'


def test_chat_streams_parsed_events(model: ds4.Model) -> None:
    completion = collect(model.chat(USER, sampler=Writer(model, "Let me see.</think>Late.")))
    assert (completion.reasoning, completion.content) == ("Let me see.", "Late.")
    assert completion.finish is not None
    assert completion.finish.reason == "stop"
    completion = collect(model.chat(USER, mode="chat", sampler=Writer(model, "Late. Very late."), stop="Very"))
    assert (completion.reasoning, completion.content) == ("", "Late. ")


def test_chat_ends_with_a_block_of_calls(model: ds4.Model) -> None:
    text = "I look.</think>One moment." + CALL + " and then some"
    with model.session(n_ctx=2048) as session:
        completion = collect(model.chat(USER, tools=CLOCK, sampler=Writer(model, text), session=session))
        assert [(c.name, c.arguments) for c in completion.tool_calls] == [("clock", "{}")]
        assert completion.content == "One moment."
        assert completion.finish is not None
        assert completion.finish.reason == "tool_calls"
        assert not model.tokenizer.decode(session.tokens).endswith("some"), "nothing is drawn behind the block"


def test_chat_goes_on_in_a_given_session(model: ds4.Model) -> None:
    """The second turn computes only what is new: the reply of the first is in the session already."""
    with model.session(n_ctx=512) as session:
        kept: list[int] = []
        sync = session.sync
        session.sync = lambda *a, **k: kept.append(sync(*a, **k)) or kept[-1]  # type: ignore[method-assign]
        reply = collect(model.chat(USER, mode="chat", sampler=Writer(model, "Late."), session=session))
        held = session.pos
        turns = [*USER, {"role": "assistant", "content": reply.content}, {"role": "user", "content": "Sure?"}]
        events = model.chat(turns, mode="chat", max_tokens=2, session=session, sampler=ds4.Sampler.greedy())
        second = collect(events)
        assert kept == [0, held]
        assert second.finish is not None
        assert second.finish.reason in ("length", "stop")
        with pytest.raises(ds4.ContextFullError):
            list(model.chat([{"role": "user", "content": "x " * 600}], session=session))


def test_chat_may_be_left_and_refuses_what_is_wrong(model: ds4.Model, flash_gguf: Path) -> None:
    events = model.chat(USER, sampler=Writer(model, "Let me see.</think>Late."))
    next(events)
    events.close()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="empty"):
        model.chat([])
    with pytest.raises(ValueError, match="mode"):
        model.chat(USER, mode="loud")  # type: ignore[arg-type]
    with (
        ds4.Model.open(flash_gguf) as other,
        other.session(n_ctx=64) as session,
        pytest.raises(ValueError, match="another model"),
    ):
        model.chat(USER, session=session)


def test_the_embedded_model_is_found_or_its_absence_is_told() -> None:
    try:
        path = ds4.Model.embedded_path()
    except FileNotFoundError as error:
        assert "embedded" in str(error)  # a checkout whose model is not built yet
        return
    with ds4.Model.open_embedded() as model:
        assert model.path == str(path)
        assert model.shape.name == "ds4-tiny"


def test_kernel_variants_can_be_limited() -> None:
    best = ds4.cpu_isa()
    try:
        ds4.set_cpu_isa("base")
        assert ds4.cpu_isa() == "base"
        with pytest.raises(ValueError, match="mmx"):
            ds4.set_cpu_isa("mmx")
        # A variant of another architecture is a name that is known and that no machine of this one can run.
        foreign = "avx512vnni" if platform.machine() == "aarch64" else "i8mm"
        with pytest.raises(ds4.BackendUnavailableError, match=f"cannot run the CPU variant '{foreign}'; the best here"):
            ds4.set_cpu_isa(foreign)
        assert ds4.cpu_isa() == "base"
        with pytest.raises(ValueError, match="NUL"):
            ds4.set_cpu_isa("ba\0se")
    finally:
        ds4.set_cpu_isa("auto")
    assert ds4.cpu_isa() == best


FORKED = """
import os, sys, ds4
model = ds4.Model.open(sys.argv[1])
session = model.session(n_ctx=64)
session.sync([1, 2, 3])
pid = os.fork()
if pid == 0:
    bad = 0
    for use in (lambda: session.eval(1), lambda: session.logits(), lambda: session.pos):
        try:
            use()
            bad = 1
        except ds4.StateError as error:
            bad |= "fork" not in str(error)
    try:
        model.session(n_ctx=64)
        bad |= 2
    except ds4.StateError:
        pass
    session.close()  # neither this nor the interpreter's end may wait for threads that do not exist here
    model.close()
    del session, model
    sys.exit(bad)
_, status = os.waitpid(pid, 0)
session.eval(4)
print(os.waitstatus_to_exitcode(status), session.pos)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_child_gets_a_clear_error(flash_gguf: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(flash_gguf)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["0", "4"], done.stderr

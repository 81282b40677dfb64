"""Parts of the program that need no model: sizes, memory, conversation tokens, replies."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from ds4.chat import render
from ds4.cli.conversation import Conversation, fitting_mode
from ds4.cli.editor import trim_history
from ds4.cli.memory import (
    MemoryRefusedError,
    available_memory,
    divide_memory,
    parse_size,
    require_memory,
    show_size,
)
from ds4.cli.reply import make_reply
from ds4.cli.settings import Settings
from ds4.cli.terminal import ProgressLine
from ds4.sampling import Sampler
from ds4.session import Step
from ds4.tokenizer import Tokenizer
from support.tiny_gguf import vocabulary


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokens, types, merges = vocabulary()
    return Tokenizer(tokens, merges, types)


@pytest.mark.parametrize(
    ("text", "n"),
    [("0", 0), ("1024", 1024), ("24GiB", 24 << 30), ("1.5G", 1_500_000_000), ("10 MB", 10_000_000), ("3ki", 3072)],
)
def test_sizes(text: str, n: int) -> None:
    assert parse_size(text) == n


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 GiBs", "1e9", "ten", "5b5"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


def test_sizes_shown() -> None:
    assert [show_size(n) for n in (5, 2048, 86_714_777_664, 1 << 50)] == [
        "5 bytes",
        "2.0 KiB",
        "80.8 GiB",
        "1024.0 TiB",
    ]


def test_available_memory_respects_cgroups(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroup / "a/b").mkdir(parents=True)
    assert available_memory(proc, cgroup) is None
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    1000 kB\n")
    assert available_memory(proc, cgroup) == 1_024_000
    (proc / "self/cgroup").write_text("0::/a/b\n")
    (cgroup / "a/b/memory.max").write_text("max\n")
    (cgroup / "a/memory.max").write_text("500000\n")
    (cgroup / "a/memory.current").write_text("300000\n")
    assert available_memory(proc, cgroup) == 200_000
    (cgroup / "a/memory.stat").write_text("anon 1\nfile 50000\n")
    assert available_memory(proc, cgroup) == 250_000


def test_memory_advice() -> None:
    require_memory(10, 5, 15, n_ctx=8, force=False)
    require_memory(10, 5, None, n_ctx=8, force=False)
    require_memory(10, 5, 3, n_ctx=8, force=True)
    with pytest.raises(MemoryRefusedError, match="smaller context"):
        require_memory(10, 50, 15, n_ctx=8, force=False)
    with pytest.raises(MemoryRefusedError, match="--force-memory"):
        require_memory(100, 5, 15, n_ctx=8, force=False)


def test_progress_is_one_line_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def fileno(self) -> int:
            return 2

    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr("os.get_terminal_size", lambda fd: os.terminal_size((20, 5)))
    line = ProgressLine("prefill", "tokens")
    line._next = 0.0
    line(123456, 7654321)
    line.finish()
    assert shown.getvalue() == "\r\x1b[Kds4: prefill 123456\r\x1b[K"


@pytest.mark.parametrize("mode", ["think", "think-max", "nothink"])
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_first_turn_equals_the_renderer(tokenizer: Tokenizer, mode: str, system: str | None) -> None:
    chat = Conversation(tokenizer, system=system, mode=mode)
    messages = [{"role": "user", "content": "the tools"}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    effort = "max" if mode == "think-max" else None
    whole = render(messages, mode="chat" if mode == "nothink" else "thinking", effort=effort)
    assert chat.add("the tools") == whole.encode(tokenizer)


def test_turns_extend_and_are_closed(tokenizer: Tokenizer) -> None:
    chat = Conversation(tokenizer, system=None, mode="think")
    end_think, eos = tokenizer.special("</think>"), tokenizer.eos_id
    first = chat.add("one")
    chat.set_reply([70, 71, end_think, 72])
    second = chat.add("two")
    assert second[: len(first) + 5] == [*first, 70, 71, end_think, 72, eos]
    chat.set_reply([73])  # stopped while thinking
    third = chat.add("three")
    assert third[: len(second) + 3] == [*second, 73, end_think, eos]
    chat.drop_last()
    chat.mode = "nothink"
    again = chat.add("three")
    assert again[:-1] == third[:-1]
    assert again[-1] == end_think


def test_whole_conversation_equals_the_renderer_with_all_reasoning(tokenizer: Tokenizer) -> None:
    chat = Conversation(tokenizer, system="S", mode="think")
    chat.add("one")
    chat.set_reply(tokenizer.encode("r1</think>in the street", specials=True))
    ids = chat.add("two")
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "reasoning_content": "r1", "content": "in the street"},
        {"role": "user", "content": "two"},
    ]
    assert ids == render(messages, mode="thinking", drop_thinking=False).encode(tokenizer)


def test_think_max_falls_back() -> None:
    assert fitting_mode("think-max", 393_216) == ("think-max", None)
    mode, warning = fitting_mode("think-max", 393_215)
    assert mode == "think" and warning is not None and "393216" in warning
    assert fitting_mode("nothink", 8) == ("nothink", None)


class FakeSession:
    """A session that writes given tokens."""

    def __init__(self, tokenizer: Tokenizer, tokens: list[int]) -> None:
        self.model = self
        self.streams = False
        self.tokenizer = tokenizer
        self.pos = 0
        self._script = tokens

    def sync(self, tokens: list[int], *, progress: Any) -> int:
        self.pos = len(tokens)
        return 0

    def generate(self, *, max_tokens: int, sampler: Sampler, draft: Any = None) -> Any:
        decoder = self.tokenizer.stream_decoder()
        for token in self._script[:-1]:
            yield Step(token, decoder.feed(token), 0.0, 0)
        last = self._script[-1]
        text = "" if last == self.tokenizer.eos_id else decoder.feed(last)
        yield Step(last, text + decoder.flush(), 0.0, 0, "stop" if last == self.tokenizer.eos_id else "length")


class Recorder:
    def __init__(self) -> None:
        self.parts: list[tuple[str, str]] = []

    def progress(self, done: int, total: int) -> None:
        pass

    def prefilled(self) -> None:
        pass

    def written(self, n_tokens: int, used: int) -> None:
        pass

    def reasoning(self, text: str) -> None:
        self.parts.append(("reasoning", text))

    def content(self, text: str) -> None:
        self.parts.append(("content", text))


@pytest.mark.parametrize(
    ("text", "thinking", "reasoning", "content"),
    [
        ("so</think>yes<｜end▁of▁sentence｜>", True, "so", "yes"),
        ("</think>yes<｜end▁of▁sentence｜>", True, "", "yes"),
        ("<think>so</think>yes", True, "so", "yes"),
        ("never closed", True, "never closed", ""),
        ("yes</think>no", False, "", "yes</think>no"),
        ("ü</think>é", True, "ü", "é"),
        ("a</think>b</think>c", True, "a", "b</think>c"),
    ],
)
def test_reply_parts(tokenizer: Tokenizer, text: str, thinking: bool, reasoning: str, content: str) -> None:
    tokens = tokenizer.encode(text, specials=True)
    recorder = Recorder()
    session: Any = FakeSession(tokenizer, tokens)
    reply = make_reply(session, [0, 1], recorder, thinking=thinking, sampler=Sampler.greedy(), max_tokens=99)
    assert (reply.reasoning, reply.content) == (reasoning, content)
    assert "".join(t for kind, t in recorder.parts if kind == "reasoning") == reasoning
    assert "".join(t for kind, t in recorder.parts if kind == "content") == content
    assert tokenizer.eos_id not in reply.tokens
    assert reply.finish == ("stop" if text.endswith("sentence｜>") else "length")


def test_unfinished_character_before_the_end_of_reasoning(tokenizer: Tokenizer) -> None:
    half = tokenizer.encode("ü")[0]
    tokens = [half, tokenizer.special("</think>"), *tokenizer.encode("ok")]
    session: Any = FakeSession(tokenizer, tokens)
    reply = make_reply(session, [0], Recorder(), thinking=True, sampler=Sampler.greedy(), max_tokens=9)
    assert (reply.reasoning, reply.content) == ("\ufffd", "ok")


def test_history_keeps_its_newest_entries(tmp_path: Path) -> None:
    path = tmp_path / "history"
    trim_history(path)
    path.write_text("".join(f"\n# 2026-01-01\n+line {i}\n" for i in range(600)))
    trim_history(path)
    kept = [line for line in path.read_text().splitlines() if line.startswith("+")]
    assert len(kept) == 512
    assert kept[0] == "+line 88" and kept[-1] == "+line 599"


def test_the_tiny_model_is_greedy_unless_sampling_is_asked_for() -> None:
    """No sampling option may be without effect."""
    assert Settings().temperature == 0.0
    assert Settings(model=Path("flash.gguf")).temperature == 1.0
    for given in ({"seed": 0}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.0}):
        assert Settings(**given).temperature == 1.0  # type: ignore[arg-type]
    assert Settings(temp=0.5).temperature == 0.5


@pytest.mark.parametrize(
    ("available", "needs", "shares"),
    [
        (1000, (900, 900), (500, 500)),  # both want more than there is
        (1000, (900, 150), (839, 161)),  # 150 and the sixteenth that stays free
        (1000, (150, 900), (161, 839)),
        (1000, (150, 150), (161, 839)),
        (1001, (900, 900), (500, 501)),
        (0, (1, 1), (0, 0)),
    ],
)
def test_two_models_share_the_memory(available: int, needs: tuple[int, int], shares: tuple[int, int]) -> None:
    assert divide_memory(available, needs) == shares
    assert sum(shares) == available

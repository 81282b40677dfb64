"""Calibration text: what is read, how it is rendered, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ds4.chat import render_text
from ds4.imatrix import CorpusError, CorpusPrompt, read_prompts, write_corpus

CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
AGENT = [
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": "", "reasoning_content": "use it", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "2"},
]


def lines(path: Path, *chats: object) -> Path:
    path.write_text("\n\n".join(json.dumps(c) for c in chats) + "\n", encoding="utf-8")
    return path


def test_chats_are_rendered_as_the_model_sees_them(tmp_path: Path) -> None:
    chats = [
        {"messages": [{"role": "user", "content": "Hi"}], "mode": "chat"},
        {"messages": AGENT, "tools": TOOLS, "mode": "thinking", "id": "a b", "category": "my kind"},
    ]
    plain, agent = read_prompts(lines(tmp_path / "my chats.jsonl", *chats))
    assert plain == CorpusPrompt(
        "my_chats-0", "chat", "chat", "my_chats.jsonl",
        "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>",
    )  # fmt: skip
    assert (agent.id, agent.category, agent.mode) == ("a_b", "my_kind", "thinking")
    assert agent.text == render_text(AGENT, mode="thinking", tools=TOOLS).strip()
    assert '<｜DSML｜invoke name="add">' in agent.text and "<tool_result>2</tool_result>" in agent.text


def test_chats_without_a_mode_take_turns(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    found = list(read_prompts(lines(tmp_path / "c.jsonl", chat, chat, chat)))
    assert [p.mode for p in found] == ["chat", "thinking", "chat"]
    assert [p.text.endswith("<think>") for p in found] == [False, True, False]


def test_a_json_file_holds_one_chat_or_a_list(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    path = tmp_path / "c.json"
    for value, n in ((chat, 1), ([chat, chat], 2)):
        path.write_text(json.dumps(value), encoding="utf-8")
        assert len(list(read_prompts(path))) == n


def test_a_text_becomes_user_messages_that_lose_nothing(tmp_path: Path) -> None:
    text = "\n\n".join(f"Paragraph {i}, " + "with some words. " * 20 for i in range(30))
    path = tmp_path / "notes.txt"
    path.write_text(text, encoding="utf-8")
    found = list(read_prompts(path, text_piece=1000))
    assert [p.mode for p in found[:3]] == ["chat", "thinking", "chat"]
    contents = []
    for p in found:
        assert p.text.startswith("<｜begin▁of▁sentence｜><｜User｜>") and (p.category, p.source) == (
            "text",
            "notes.txt",
        )
        contents.append(p.text.split("<｜User｜>")[1].split("<｜Assistant｜>")[0])
    assert all(len(c) <= 1000 for c in contents)
    assert "".join("".join(contents).split()) == "".join(text.split())
    assert contents[1].startswith("Paragraph")  # cut between paragraphs


def test_text_without_a_place_to_cut_is_cut_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a" * 2500, encoding="utf-8")
    assert len(list(read_prompts(path, text_piece=1000))) == 3


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    prompts = [
        CorpusPrompt("p-0", "agent", "thinking", "a.jsonl", "one\n\n  two\r\n===== three ====="),
        CorpusPrompt("p-1", "chat", "chat", "two words", "ü ｜ \x85 \u2028 end"),
    ]
    assert write_corpus(tmp_path / "c.txt", prompts) == 2
    assert list(read_prompts(tmp_path / "c.txt")) == prompts


def test_a_corpus_of_others_reads(tmp_path: Path) -> None:
    path = tmp_path / "c.txt"
    path.write_text(
        "\n===== DS4_IMATRIX_PROMPT 00001 source nothink /src/a b.c =====\n\n  <｜User｜>x  \n\n"
        "===== DS4_IMATRIX_PROMPT 00002 language think - =====\ny\n",
        encoding="utf-8",
    )
    found = list(read_prompts(path))
    assert [(p.id, p.category, p.mode, p.source, p.text) for p in found] == [
        ("00001", "source", "nothink", "/src/a b.c", "<｜User｜>x"),
        ("00002", "language", "think", "-", "y"),
    ]


@pytest.mark.parametrize(
    ("name", "raw", "text"),
    [
        ("c.txt", b"", "it is empty"),
        ("c.txt", b" \n\n", "it is empty"),
        ("c.txt", b"abc\xff", "not UTF-8 text (byte 3)"),
        ("c.txt", b"===== DS4_IMATRIX_PROMPT a b =====\nx", "line 1: a marker reads"),
        ("c.txt", b"===== DS4_IMATRIX_PROMPT a b c d =====\nx\n===== DS4_IMATRIX_PROMPT\ny", "line 3: a marker reads"),
        ("c.txt", b"===== DS4_IMATRIX_PROMPT a b c d =====\n\n", "line 1: no text follows"),
        ("c.jsonl", b'{"messages": []}', "line 1: messages is empty"),
        ("c.jsonl", b'\n{"messages": 3}', 'line 2: a chat is an object with "messages"'),
        ("c.jsonl", b"[1]", 'line 1: a chat is an object with "messages"'),
        ("c.jsonl", b'{"messages": [}', "line 1: not JSON"),
        ("c.jsonl", b'{"messages": [{"role": "user", "content": "x"}], "mode": "loud"}', "line 1: unknown mode 'loud'"),
        ("c.jsonl", b'{"messages": [{"role": "king", "content": "x"}]}', "line 1: messages[0]"),
        ("c.jsonl", b'{"messages": [{"role": "user", "content": "x"}], "tools": {}}', "line 1: tools must be a list"),
        ("c.json", b"nonsense", "c.json: not JSON"),
        ("c.json", b"[" * 100_000, "c.json: not JSON"),
        ("c.jsonl", b"\n" + b"[" * 100_000, "line 2: not JSON"),
        ("c.json", b'[{"messages": [{"role": "user", "content": "x"}]}, 7]', "chat 1: a chat is an object"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path, name: str, raw: bytes, text: str) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(CorpusError) as caught:
        list(read_prompts(path))
    assert text in str(caught.value) and str(caught.value).startswith(str(path))
    assert isinstance(caught.value, ValueError)


def test_a_prompt_that_would_forge_a_marker_is_refused(tmp_path: Path) -> None:
    prompt = CorpusPrompt("p", "chat", "chat", "a.txt", "x\n===== DS4_IMATRIX_PROMPT 1 2 3 4 =====\ny")
    for prompts, text in (([prompt], "looks like a marker"), ([], "no prompts")):
        with pytest.raises(CorpusError, match=text):
            write_corpus(tmp_path / "c.txt", prompts)
    assert not list(tmp_path.iterdir())


def test_half_characters_become_what_the_tokenizer_reads(tmp_path: Path) -> None:
    chat = r'{"messages": [{"role": "user", "content": "a \ud83d b \ud83d\ude00"}]}'
    (tmp_path / "c.jsonl").write_text(chat, encoding="utf-8")
    write_corpus(tmp_path / "c.txt", read_prompts(tmp_path / "c.jsonl"))
    (found,) = read_prompts(tmp_path / "c.txt")
    assert "a \ufffd b \U0001f600" in found.text

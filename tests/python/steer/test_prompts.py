"""Files of prompts, good and bad, and scales as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds4.steer import parse_scales, read_prompts


def test_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("# a comment\nOne?\n\n  Two?  \r\n", encoding="utf-8")
    found = read_prompts(path)
    assert [prompt.text for prompt in found] == ["One?", "Two?"]
    assert found[0].right("x") is None
    assert [m["role"] for m in read_prompts(path, system="Be kind.")[0].messages] == ["system", "user"]


def test_chats(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"prompt": "One?", "answer": "1"}\n# comment\n'
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Two?"}], "answer": ["a", "b"]}'
    )
    one, two = read_prompts(path, system="other")
    assert (one.right("is 1."), one.right("is 2.")) == (True, False)
    assert (two.right("a and b"), two.right("a")) == (True, False)
    assert two.messages[0]["content"] == "s" and one.messages[0]["content"] == "other"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", "line 1: no JSON"),
        ("[1]", "no JSON object"),
        ('{"question": "x"}', "unknown field 'question'"),
        ('{"answer": "x"}', "messages"),
        ('{"prompt": "x", "messages": []}', "messages"),
        ('{"prompt": 3}', "must be a text"),
        ('{"prompt": " "}', "must be a text"),
        ('{"prompt": "x", "answer": [1]}', "answer"),
        ('{"prompt": "x", "answer": [""]}', "answer"),
        ('{"messages": {}}', "must be a list"),
        ('{"messages": [{"role": "ghost", "content": "x"}]}', "line 1"),
        ('{"messages": [3]}', "line 1"),
        ("# nothing", "holds no prompt"),
        ("", "holds no prompt"),
    ],
)
def test_what_is_no_prompt(tmp_path: Path, line: str, text: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=text) as raised:
        read_prompts(path)
    assert str(path) in str(raised.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(b"One?\n\xff\n")
    with pytest.raises(ValueError, match="not UTF-8 text"):
        read_prompts(path)


def test_scales() -> None:
    assert parse_scales("-2, -0.5,0,1e0") == [-2, -0.5, 0, 1]
    for text, why in [
        ("1,,2", "no scale"), ("a", "no scale"), ("nan", "out of"), ("1e30", "out of"),
        ("1,1.0", "twice"), ("", "no scale"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=why):
            parse_scales(text)

"""Names and fixed texts of the DeepSeek V4 chat protocol.

The special tokens are given by content: their ids belong to the tokenizer. The four long texts are data
(`protocol_texts.json`, taken from the encoder file published with the model, MIT) and are the bytes the model
was trained on: changing one character of them changes its behaviour.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from importlib import resources

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
END_THINK = "</think>"
DSML = "｜DSML｜"
LATEST_REMINDER = "<｜latest_reminder｜>"

TASKS = {name: f"<｜{name}｜>" for name in ("action", "query", "authority", "domain", "title", "read_url")}
"""Quick tasks: the name in a message's `task` and the special token that asks for it."""

SPECIALS = (BOS, EOS, USER, ASSISTANT, THINK, END_THINK, DSML, LATEST_REMINDER, *TASKS.values())
"""Every special token that a rendered prompt may hold."""

TEXT_NAMES = ("TOOLS_HEAD", "TOOLS_TAIL", "EFFORT_MAX", "RESPONSE_FORMAT")

TOOL_RESULT_OPEN = "<tool_result>"
TOOL_RESULT_CLOSE = "</tool_result>"
PARAMETER_CLOSE = f"</{DSML}parameter>"

_SPLIT = re.compile("(" + "|".join(re.escape(s) for s in (THINK, END_THINK, DSML)) + ")")


@cache
def texts() -> dict[str, str]:
    """Return the four fixed texts by name.

    Raises
    ------
    ValueError
        A text differs from its recorded SHA-256: the installed package is damaged.
    """
    raw = resources.files(__package__).joinpath("protocol_texts.json").read_text(encoding="utf-8")
    data = json.loads(raw)
    found: dict[str, str] = {}
    for name in TEXT_NAMES:
        text = data["texts"][name]
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest != data["sha256"][name]:
            raise ValueError(f"protocol text {name} is damaged: SHA-256 {digest}, expected {data['sha256'][name]}")
        found[name] = text
    return found


def split_specials(text: str) -> list[str]:
    """Cut a fixed text at the special tokens it holds; odd places of the list are the specials."""
    return _SPLIT.split(text)

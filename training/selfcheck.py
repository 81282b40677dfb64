"""Quick checks of the data generators and of the parsing in evaluate.py: seconds, no training.

usage: python training/selfcheck.py [--tokenizer TOKENIZER_JSON]
"""

import argparse
import json
import random
import re

from data import KINDS, arithmetic, common, english, heldout, recall, stream, style_pairs, tools
from evaluate import parse_calls, right


def check_scratchpads():
    rng = random.Random(0)
    for _ in range(20000):
        op, a, b = arithmetic.draw(rng)
        *lines, last = arithmetic.scratchpad(op, a, b).split("\n")
        assert int(last) == arithmetic.result(op, a, b)
        digits = ""
        for line in lines[2 if "<" in lines[0] else 1 :]:
            left, value = line.split("=")
            assert eval(re.sub(r"\b0+(?=\d)", "", left)) == int(value)
            digits = value[-1] + digits
        whole = (value[:-1] if op != "-" else "") + digits
        assert abs(int(last)) == int(whole), (op, a, b)


def check_split():
    """No held-out item occurs in training, and items repeat for a seed."""
    for kind in KINDS:
        if kind == "english":
            continue
        one, two = heldout(kind, 50, 3), heldout(kind, 50, 3)
        assert json.dumps(one) == json.dumps(two) and len(one) == 50, kind
        assert all(i["messages"][-1]["role"] == "user" for i in one)
    asked = {
        i["messages"][-1]["content"]
        for k in ("chat", "ds4")
        for i in heldout(k, 300, 1)
        if i["style"] == "plain"
    }
    seen = set()
    for item in stream("check", 3000):
        if item["kind"] in ("chat", "ds4") and not any(m["role"] == "system" for m in item["messages"]):
            seen |= {m["content"] for m in item["messages"] if m["role"] == "user"}
        if item["kind"] == "tools":
            for m in item["messages"]:
                for c in m.get("tool_calls", ()):
                    f = c["function"]
                    assert not common.held(tools.key(f["name"], json.loads(f["arguments"])), 12)
    # a question may be held out for one style only, hence "plain" (no system text) on both sides
    assert not asked & seen, sorted(asked & seen)[:5]


def check_recall():
    """The fact asked for is told once, no training conversation tells it, and the text around it is real."""
    facts = set()
    for low, high in ((130, 300), (1000, 1500)):
        for item in recall.at_distance(50, low, high, seed=5):
            told = "\n".join(m["content"] for m in item["messages"])
            assert told.count(item["needle"]) == 1 and item["expected"][0] in item["needle"]
            facts.add(item["needle"])
    for item in stream("recall", 2000):
        if item["kind"] == "recall":
            told = "\n".join(m["content"] for m in item["messages"])
            assert not any(f in told for f in facts)


def check_english():
    for source in english.SHARES:
        seen, held = english.passages(source, True), english.passages(source, False)
        assert not set(seen) & set(held) and len(held) > 50, source
    assert len({i["text"] for i in heldout("english", 50, 1)}) == 50


def check_styles():
    pairs = style_pairs(60, train=False)
    assert len(pairs) == 60 and pairs == style_pairs(60, train=False)
    asked = {m[-1]["content"] for pair in pairs for m in pair}
    first = tuple(common.ASK_BRIEF + common.ASK_DETAIL)
    seen = set()
    for item in stream("styles", 4000):
        if item["kind"] in ("chat", "ds4"):
            wished = item["messages"][0]["content"] in common.BRIEF + common.DETAIL
            seen |= {
                m["content"]
                for m in item["messages"]
                if m["role"] == "user" and (wished or m["content"].startswith(first))
            }
    assert not asked & seen, sorted(asked & seen)[:5]


def check_parsing():
    good = (
        '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="a" string="true">x y</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="n" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    )
    assert parse_calls(good) == [("f", {"a": "x y", "n": 3})]
    assert parse_calls("Hello.") == []
    for bad in (
        good[:-3],
        good + "x",
        good.replace(">3<", ">3x<"),
        good.replace("</｜DSML｜parameter>", "", 1),
    ):
        assert parse_calls(bad) is None, bad
    item = dict(kind="arithmetic", expected="-7")
    assert right(item, "3 - 10 = -7", []) and not right(item, "3 - 10 = 7", [])
    assert right(dict(kind="arithmetic", expected="7"), "10 - 3 = 7", [])


def check_tokenizer(path):
    from tokenizer import Encoder

    enc = Encoder(path)
    vocab = enc.tok.get_vocab()
    assert sorted(vocab.values()) == list(range(3072))
    assert len(enc.ids("1234")) == 4 and enc.ids("<｜User｜>") == [vocab["<｜User｜>"]]
    for item in stream("tokens", 300):
        ids, w = enc.example(item)
        assert len(ids) == len(w) and ids[0] == enc.bos
        assert 0 < w[-1] <= 1 and (ids[-1] == enc.eos or item["kind"] == "english")
        assert enc.tok.decode(ids, skip_special_tokens=False) == enc.text(item)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--tokenizer")
    a = ap.parse_args()
    check_scratchpads()
    check_split()
    check_recall()
    check_styles()
    if english.available():
        check_english()
    check_parsing()
    if a.tokenizer:
        check_tokenizer(a.tokenizer)
    print("ok")


if __name__ == "__main__":
    main()

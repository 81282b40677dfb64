"""Measure ds4-tiny on held-out items through the public interface of ds4.

usage: python training/evaluate.py [--model FILE] [-n ITEMS] [--seed S] [--json FILE]

Per kind and mode, greedy: the share of right answers, of answers that end by themselves, and of well-formed
calls. Right means: the result of a sum; name and arguments of a call; the expected words of a chat or ds4
answer.  After a right call the tool's result is fed back, and "uses result" is the share of answers that
state it.
"""

import argparse
import json
import re
import time

from data import heldout

DSML = "｜DSML｜"
CALL = re.compile(rf'<{DSML}invoke name="([^"]*)">\n(.*?)\n</{DSML}invoke>', re.S)
PARAMETER = re.compile(
    rf'<{DSML}parameter name="([^"]*)" string="(true|false)">(.*?)</{DSML}parameter>', re.S
)
BLOCK = re.compile(rf"\n\n<{DSML}tool_calls>\n(.*)\n</{DSML}tool_calls>", re.S)


def parse_calls(text):
    """The calls of a strictly well-formed answer as (name, arguments); [] for none, None if malformed."""
    if DSML not in text:
        return []
    start = text.index("\n\n<" + DSML) if "\n\n<" + DSML in text else -1
    block = BLOCK.fullmatch(text[start:]) if start >= 0 else None
    if not block:
        return None
    calls, rest = [], block[1]
    for m in CALL.finditer(block[1]):
        args, inner = {}, m[2]
        for p in PARAMETER.finditer(m[2]):
            if DSML in p[3] or p[1] in args:
                return None
            try:
                args[p[1]] = p[3] if p[2] == "true" else json.loads(p[3])
            except ValueError:
                return None
            inner = inner.replace(p[0], "", 1)
        if inner.strip("\n"):
            return None
        calls.append((m[1], args))
        rest = rest.replace(m[0], "", 1)
    return calls if calls and not rest.strip("\n") else None


class Engine:
    """Greedy answers of a model file."""

    def __init__(self, path, n_ctx=1024):
        import ds4
        from ds4 import chat

        self.chat = chat
        self.model = ds4.Model.open(path) if path else ds4.Model.open_embedded()
        self.session = self.model.session(n_ctx=n_ctx)
        self.sampler = ds4.Sampler(temperature=0)

    def answer(self, messages, mode, max_tokens=256):
        """(reasoning or None, content with calls, tokens, ended by itself)"""
        tok = self.model.tokenizer
        self.session.sync(self.chat.render(messages, mode=mode).encode(tok))
        ids, finish = [], None
        for step in self.session.generate(max_tokens=max_tokens, sampler=self.sampler):
            ids.append(step.token)
            finish = step.finish
        if finish == "stop":
            ids.pop()
        text = tok.decode(ids)
        reasoning = None
        if mode == "thinking":
            reasoning, closed, text = text.partition("</think>")
            if not closed:
                text = ""
        return reasoning, text, len(ids), finish == "stop"


def right(item, content, calls):
    expected = item["expected"]
    if item["kind"] == "arithmetic":
        numbers = re.findall(r"-?\d+", content.replace("= -", "=-").rsplit("=", 1)[-1])
        return bool(numbers) and numbers[-1] == expected
    if item["kind"] == "tools":
        return calls == [(expected["name"], expected["arguments"])]
    return all(w.lower() in content.lower() for w in expected)


def measure(engine, kind, mode, n, seed, show=0):
    """One row of the table."""
    items = heldout(kind, n, seed, mode)
    count = dict.fromkeys(("right", "ended", "formed", "used", "followed"), 0)
    lengths = {}
    for item in items:
        reasoning, content, _, ended = engine.answer(item["messages"], mode)
        calls = parse_calls(content)
        ok = right(item, content, calls)
        count["right"] += ok
        count["ended"] += ended
        count["formed"] += calls is not None and (kind != "tools" or bool(calls))
        if not ok and show:
            show -= 1
            print(
                f"--- {kind} {mode}: {item['messages'][-1]['content']!r}\n    {reasoning!r}\n    {content!r}"
            )
        if "style" in item:
            lengths.setdefault(item["style"], []).append(len(content))
        if kind == "tools" and ok:
            more = [*item["messages"], dict(item["target"]), dict(role="tool", content=item["result"])]
            if mode == "chat":
                more[-2].pop("reasoning_content", None)
            _, content, _, ended = engine.answer(more, mode)
            count["followed"] += 1
            count["used"] += content == item["answer"] and ended
    n = len(items)
    row = dict(kind=kind, mode=mode, items=n, right=count["right"] / n, ended=count["ended"] / n)
    if kind == "tools":
        row |= dict(well_formed=count["formed"] / n, uses_result=count["used"] / max(1, count["followed"]))
    row |= {f"characters_{k}": sum(v) / len(v) for k, v in sorted(lengths.items())}
    return row


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", help="a GGUF file; default: the embedded model")
    ap.add_argument("-n", type=int, default=200, help="items per kind and mode")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--kinds", default="arithmetic,tools,chat,ds4")
    ap.add_argument("--modes", default="thinking,chat")
    ap.add_argument("--show", type=int, default=0, help="print that many wrong answers per row")
    ap.add_argument("--json", help="write the table to this file as well")
    a = ap.parse_args()
    engine = Engine(a.model)
    rows, t0 = [], time.time()
    print(f"{'kind':12}{'mode':10}{'items':>6}{'right':>8}{'ended':>8}")
    for kind in a.kinds.split(","):
        for mode in a.modes.split(","):
            row = measure(engine, kind, mode, a.n, a.seed, a.show)
            rows.append(row)
            more = "  ".join(
                f"{k} {v:.3g}" for k, v in row.items() if k not in ("kind", "mode", "items", "right", "ended")
            )
            print(
                f"{kind:12}{mode:10}{row['items']:6}{row['right']:8.3f}{row['ended']:8.3f}  {more}",
                flush=True,
            )
    seconds = time.time() - t0
    print(f"{seconds:.0f} s")
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(dict(model=a.model or "embedded", seed=a.seed, seconds=seconds, rows=rows), f, indent=1)


if __name__ == "__main__":
    main()

"""Measure ds4-tiny on held-out items through the public interface of ds4.

usage: python training/evaluate.py [--model FILE] [-n ITEMS] [--seed S] [--json FILE]

Per kind and mode, greedy: the share of right answers, of answers that end by themselves, and of well-formed
calls. Right means: the result of a sum; name and arguments of a call; the expected words of a chat or ds4
answer; the fact that was asked for.  After a right call the tool's result is fed back, and "uses result" is
the share of answers that state it.  Facts ("recall") are asked for at four ranges of distance, in tokens
between the fact and the end of the question.

Three more kinds: "style" compares the answers to the same question asked tersely and verbosely ("right": the
terse one is less than half as long); "english" is the loss on plain held-out text; "mtp" is the share of
tokens for which the MTP block's draft equals the model's greedy choice, on greedy answers and along given
text.  English text comes from the folder in DS4_ENGLISH (see data/english.py) or from --english; without both
it is left out.
"""

import argparse
import json
import pathlib
import re
import time

from data import english, heldout, recall, style_pairs

DISTANCES = ((130, 300), (300, 512), (512, 1000), (1000, 1500))

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

    def __init__(self, path, n_ctx=2048):
        import ds4
        from ds4 import chat

        self.chat = chat
        self.model = ds4.Model.open(path) if path else ds4.Model.open_embedded()
        self.session = self.model.session(n_ctx=n_ctx)
        self.sampler = ds4.Sampler(temperature=0)

    def prompt(self, messages, mode):
        return self.chat.render(messages, mode=mode).encode(self.model.tokenizer)

    def distance(self, item):
        """Tokens between the fact of a recall item and the end of the question."""
        text = self.chat.render_text(item["messages"], mode=item["mode"])
        at = text.index(item["needle"]) + len(item["needle"])
        return len(self.model.tokenizer.encode(text[at:], specials=True))

    def answer(self, messages, mode, max_tokens=256):
        """(reasoning or None, content with calls, tokens, ended by itself)"""
        tok = self.model.tokenizer
        self.session.sync(self.prompt(messages, mode))
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


def at_distance(engine, n, low, high, seed, mode, style=None):
    """n items whose fact is really that far away, as this model counts tokens."""
    items = [
        i for i in recall.at_distance(3 * n, low, high, seed, mode, style) if low <= engine.distance(i) < high
    ]
    return items[:n]


def measure(engine, kind, mode, n, seed, show=0, distance=None, style=None):
    """One row of the table."""
    items = at_distance(engine, n, *distance, seed, mode, style) if distance else heldout(kind, n, seed, mode)
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
        if "style" in item and not distance:
            lengths.setdefault(item["style"], []).append(len(content))
        if kind == "tools" and ok:
            more = [*item["messages"], dict(item["target"]), dict(role="tool", content=item["result"])]
            if mode == "chat":
                more[-2].pop("reasoning_content", None)
            _, content, _, ended = engine.answer(more, mode)
            count["followed"] += 1
            count["used"] += content == item["answer"] and ended
    n = len(items)
    if distance:
        kind = f"{kind} {distance[0]}-{distance[1]}" + (f" {style}" if style else "")
    row = dict(kind=kind, mode=mode, items=n, right=count["right"] / n, ended=count["ended"] / n)
    if kind == "tools":
        row |= dict(well_formed=count["formed"] / n, uses_result=count["used"] / max(1, count["followed"]))
    row |= {f"characters_{k}": sum(v) / len(v) for k, v in sorted(lengths.items())}
    return row


def measure_style(engine, mode, n, seed):
    """Lengths of the answers to the same questions, asked for tersely and verbosely."""
    pairs = style_pairs(n, seed, train=False)
    lengths = [[len(engine.answer(m, mode)[1]) for m in pair] for pair in pairs]
    terse, verbose = zip(*lengths, strict=True)
    return dict(
        kind="style", mode=mode, items=len(pairs),
        right=sum(2 * t < v for t, v in lengths) / len(pairs),
        characters_terse=sum(terse) / len(pairs), characters_verbose=sum(verbose) / len(pairs),
    )  # fmt: skip


def measure_english(engine, texts):
    """Loss per token and per byte of plain text after a BOS token."""
    from ds4.score import score_tokens

    tok, session = engine.model.tokenizer, engine.session
    nll, n, size = 0.0, 0, 0
    for text in texts:
        ids = [tok.bos_id, *tok.encode(text)][: session.n_ctx]
        nll += score_tokens(session, ids, 1)
        n += len(ids) - 1
        size += len(tok.decode_bytes(ids[1:]))
    return dict(
        kind="english",
        mode="text",
        items=len(texts),
        tokens=n,
        nll_per_token=nll / n,
        nll_per_byte=nll / size,
    )


def measure_mtp(engine, what, prompts, max_tokens=128):
    """Drafts of the MTP block for the token after next against the model's greedy choice there; prompts are
    (tokens, tokens that follow or None for a greedy answer)."""
    session = engine.model.session(n_ctx=engine.session.n_ctx, mtp=True)
    eos, hits, n = engine.model.tokenizer.eos_id, 0, 0
    for prompt, given in prompts:
        session.reset()
        session.eval(prompt)
        token = int(session.logits().argmax())
        for k in range(max_tokens if given is None else len(given)):
            token = token if given is None else given[k]
            if token == eos and given is None:
                break
            draft = int(session.mtp_logits(token).argmax())
            session.eval(token)
            token = int(session.logits().argmax())
            hits += draft == token
            n += 1
    session.close()
    return dict(kind=f"mtp {what}", mode="", items=len(prompts), tokens=n, accepted=hits / n)


def mtp_rows(engine, n, seed, texts):
    tok = engine.model.tokenizer
    for kind in ("arithmetic", "tools", "chat", "ds4", "recall"):
        items = heldout(kind, n, seed)
        yield measure_mtp(engine, kind, [(engine.prompt(i["messages"], i["mode"]), None) for i in items])
    some = max(1, n // 5)
    items = [i for k in ("arithmetic", "tools", "chat", "ds4", "recall") for i in heldout(k, some, seed)]
    whole = [engine.prompt([*i["messages"], i["target"]], i["mode"])[:1024] for i in items]
    yield measure_mtp(engine, "whole conversation", [(ids[:1], ids[1:]) for ids in whole])
    if texts:
        ids = [tok.encode(t)[:200] for t in texts[:n]]
        yield measure_mtp(engine, "english", [([tok.bos_id], i) for i in ids])


def english_texts(path, n, seed):
    if path:
        return pathlib.Path(path).read_text(encoding="utf-8").strip().split("\n\n")[:n]
    return [i["text"] for i in heldout("english", n, seed)] if english.available() else []


def rows_of(engine, kind, a):
    """The rows of a kind; the special kinds have other columns."""
    modes = a.modes.split(",")
    if kind == "style":
        yield from (measure_style(engine, mode, min(a.n, 80), a.seed) for mode in modes)
    elif kind == "english":
        texts = english_texts(a.english, a.n, a.seed)
        yield from [measure_english(engine, texts)] if texts else []
    elif kind == "mtp":
        n = max(5, a.n // 8)
        yield from mtp_rows(engine, n, a.seed, english_texts(a.english, n, a.seed))
    else:
        for distance in DISTANCES if kind == "recall" else (None,):
            for mode in modes:
                n = max(5, a.n // 2) if distance else a.n
                yield measure(engine, kind, mode, n, a.seed, a.show, distance)
        for mode in modes if kind == "recall" else ():
            yield measure(engine, kind, mode, max(5, a.n // 4), a.seed, a.show, (200, 1500), "brief")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", help="a GGUF file; default: the embedded model")
    ap.add_argument("-n", type=int, default=200, help="items per kind and mode")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--kinds", default="arithmetic,tools,chat,ds4,recall,style,english,mtp")
    ap.add_argument("--english", help="a file of passages with an empty line between them")
    ap.add_argument("--modes", default="thinking,chat")
    ap.add_argument("--show", type=int, default=0, help="print that many wrong answers per row")
    ap.add_argument("--json", help="write the table to this file as well")
    a = ap.parse_args()
    engine = Engine(a.model)
    rows, t0 = [], time.time()
    first = ("kind", "mode", "items", "right", "ended")
    print(f"{'kind':24}{'mode':10}{'items':>6}{'right':>8}{'ended':>8}")
    for kind in a.kinds.split(","):
        for row in rows_of(engine, kind, a):
            rows.append(row)
            shares = "".join(f"{row[k]:8.3f}" if k in row else " " * 8 for k in ("right", "ended"))
            more = "  ".join(f"{k} {v:.4g}" for k, v in row.items() if k not in first)
            print(f"{row['kind']:24}{row['mode']:10}{row['items']:6}{shares}  {more}", flush=True)
    seconds = time.time() - t0
    print(f"{seconds:.0f} s")
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(dict(model=a.model or "embedded", seed=a.seed, seconds=seconds, rows=rows), f, indent=1)


if __name__ == "__main__":
    main()

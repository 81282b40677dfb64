"""Prompts that show what steering does to the tiny model, from its terse and verbose training styles.

usage: python training/steering.py --out DIR [--pairs N] [--heldout N] [--others]

Writes verbose.jsonl, terse.jsonl and plain.jsonl (the same questions, asked in three ways) and heldout.jsonl
(verbose questions that no training conversation contains, with words of a right answer):

    for c in ffn_out attn_out; do for bad in terse plain; do
        ds4 steer build --good verbose.jsonl --bad $bad.jsonl --component $c -o $c-$bad.npz
    done; done
    ds4 steer sweep --direction ffn_out-terse.npz --direction ffn_out-plain.npz \
        --direction attn_out-terse.npz --direction attn_out-plain.npz \
        --prompts heldout.jsonl --scales -1,-0.5,0,0.5,1

--others: held-out questions that are none of those without it, for figures that no choice was made by.
"""

import argparse
import json
import pathlib
import random

from data import common, smalltalk, style_pairs


def plain(messages):
    """The question alone, without what asks for a style."""
    q = messages[-1]["content"]
    for start in common.ASK_BRIEF + common.ASK_DETAIL:
        q = q.removeprefix(start)
    return [common.user(q[0].upper() + q[1:])]


def question(row):
    """What is asked, whatever the style."""
    return plain(row["messages"])[0]["content"]


def heldout(n, seed=0, without=()):
    """n questions in the verbose style, unseen in either style, with their answers; none of `without`."""
    rng = random.Random(f"steering-{seed}")
    out, seen = [], set()
    while len(out) < n:
        kind, q, _, _, words = smalltalk.of_kind(rng, "detail")
        unseen = all(common.held(f"chat {style} {q}", 12) for style in ("brief", "detail"))
        if kind == "greet" or q in seen or q[0].upper() + q[1:] in without or not unseen:
            continue
        seen.add(q)
        if rng.random() < 0.5:
            messages = [*common.styled(rng, "detail", True), common.user(q)]
        else:
            messages = [common.user(common.ask(rng, "detail", q))]
        out.append(dict(messages=messages, answer=words))
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", required=True, type=pathlib.Path)
    ap.add_argument("--pairs", type=int, default=60)
    ap.add_argument("--heldout", type=int, default=40)
    ap.add_argument("--others", action="store_true")
    a = ap.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    pairs = style_pairs(a.pairs)
    rows = dict(
        verbose=[dict(messages=verbose) for _, verbose in pairs],
        terse=[dict(messages=terse) for terse, _ in pairs],
        plain=[dict(messages=plain(verbose)) for _, verbose in pairs],
        heldout=heldout(a.heldout, 1, set(map(question, heldout(40)))) if a.others else heldout(a.heldout),
    )
    for name, some in rows.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in some)
        (a.out / f"{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""What guessing tokens costs and brings.

  python benchmarks/speculation.py                                   # the model of the package
  python benchmarks/speculation.py -m flash.gguf --threads 8 --context 4096
  python benchmarks/speculation.py -m flash.gguf --accept 0.5,0.8,0.95   # acceptance by construction

Three measurements:

costs     times of batches of 1 to 6 tokens and of 1 to 5 guesses, bytes that such a batch reads, and the acceptance
          from which on guessing pays
text      greedy answers to questions, with guesses of the MTP block: acceptance by depth, tokens a batch, and speed
          over that without guesses (the model of the package)
accept    the same text again and again, with guesses that are right with a given chance, as by a perfect block with
          noise; guessing itself costs nothing then

Both sides of a comparison alternate; ratios are medians of rounds. Processor time (--cpu-time) is steadier than time on
a machine that is busy with something else, for one thread.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ds4
from ds4.bench import expected_tokens, measure_draft_costs, token_bytes
from ds4.chat import render
from ds4.speculation import Draft, Speculator

QUESTIONS = {
    "sums": [
        "What is 17 + 25?",
        "What is 812 + 377?",
        "What is 999 - 123?",
        "What is 45 + 67 + 89?",
        "Compute 34 * 2.",
    ],
    "ds4": ["What can ds4 do?", "What is ds4?", "How do I start the server?", "What does ds4 need?"],
    "talk": ["Hello!", "Tell me about the sea.", "Tell me a joke.", "What is your name?", "Good morning!"],
}
DRAFTS: dict[str, Draft | None] = {
    "plain": None,
    **{f"depth {d}": Draft(depth=d, auto=False) for d in (1, 2, 3)},
    "depth 3, margin 2": Draft(depth=3, margin=2.0, auto=False),
    "auto": Draft(depth=5),
}

Clock = Callable[[], float]


def spread(ratios: Sequence[float]) -> str:
    """Median, least and greatest."""
    return "".join(f"{x:>8.3f}" for x in (statistics.median(ratios), min(ratios), max(ratios)))


def costs(model: ds4.Model, session: ds4.Session, context: int, rounds: int, clock: Clock) -> dict[str, Any]:
    """Print and return the costs of batches."""
    found = measure_draft_costs(session, depth=5, context=context, reps=rounds, clock=clock)
    with ds4.GGUFFile(model.path) as file:
        n_bytes = [token_bytes(file, model.shape, depth=context, batch=k).total for k in range(1, 7)]
    print(f"costs behind {context} positions, ms; bytes a batch reads, as many times those of a token")
    print(f"{'tokens':>8}{'batch':>10}{'guesses':>10}{'of alone':>10}{'bytes':>10}{'pays from':>12}")
    for d, seconds in enumerate(found.batch):
        guess = found.guess[d - 1] * 1e3 if d and found.guess else 0.0
        even = found.break_even(d) if d else None
        print(
            f"{d + 1:>8}{seconds * 1e3:>10.3f}{guess:>10.3f}{found.worth(d):>10.2f}{n_bytes[d] / n_bytes[0]:>10.2f}"
            f"{'' if not d else 'never' if even is None else f'{even:.0%}':>12}"
        )
    return {"context": context, **found.as_json(), "bytes": n_bytes}


def text(model: ds4.Model, session: ds4.Session, rounds: int, clock: Clock) -> dict[str, Any]:
    """Print and return acceptance and speed on answers."""
    report: dict[str, Any] = {}
    for kind, questions in QUESTIONS.items():
        prompts = [
            list(render([{"role": "user", "content": q}], mode=mode).encode(model.tokenizer))
            for q in questions
            for mode in ("chat", "thinking")
        ]
        times: dict[str, list[float]] = {name: [] for name in DRAFTS}
        totals: dict[str, ds4.DraftStatistics] = {}
        answers: dict[str, list[list[int]]] = {}
        for _ in range(rounds + 1):
            for name, draft in DRAFTS.items():
                totals[name], spent, answers[name] = ds4.DraftStatistics(), 0.0, []
                for prompt in prompts:
                    session.sync(prompt)
                    start = clock()
                    steps = session.generate(max_tokens=200, sampler=ds4.Sampler.greedy(), draft=draft)
                    answers[name].append([step.token for step in steps])
                    spent += clock() - start
                    if draft is not None:
                        totals[name].add(session.draft_statistics)
                times[name].append(spent)
                if answers[name] != answers["plain"]:
                    raise SystemExit(f"{name} gives another answer")
        n = sum(map(len, answers["plain"]))
        print(f"\n{kind}: {len(prompts)} answers of {n} tokens, {min(times['plain']) / n * 1e3:.3f} ms a token at best")
        print(f"{'':<20}{'speed':>8}{'low':>8}{'high':>8}{'tokens a verify':>17}  accepted by depth")
        report[kind] = {"tokens": n}
        for name in DRAFTS:
            ratios = [a / b for a, b in zip(times["plain"][1:], times[name][1:], strict=True)]
            found = totals[name]
            depths = ", ".join(f"{right / drafted:.0%}" for drafted, right in found.by_depth if drafted)
            verify = f"{found.tokens_per_verify:.2f}" if found.verifies else ""
            print(f"{name:<20}{spread(ratios)}{verify:>17}  {depths}")
            report[kind][name] = {"ratios": ratios, **found.as_json()}
    return report


def accept(
    session: ds4.Session, chances: Sequence[float], n: int, rounds: int, clock: Clock, seed: int
) -> dict[str, Any]:
    """Print and return speeds with guesses that are right by chance."""
    noise = random.Random(seed)
    prompt = [noise.randrange(session.n_vocab) for _ in range(64)]
    session.sync(prompt)
    truth: list[int] = []
    for _ in range(n):  # a synthetic model may have no tokenizer
        truth.append(int(session.logits_view().argmax()))
        session.eval(truth[-1])
    report: dict[str, Any] = {}
    print(f"\nacceptance by construction, {n} tokens")
    print(f"{'chance':>8}{'':<12}{'speed':>8}{'low':>8}{'high':>8}{'tokens a verify':>17}{'expected':>10}")
    first = len(prompt)
    for chance in chances:

        def guess(token: int, depth: int, chance: float = chance) -> list[int]:
            known = truth[session.pos - first + 1 :][:depth]
            return [t if noise.random() < chance else (t + 1) % session.n_vocab for t in known]

        for name in ("depth 1", "depth 2", "depth 3", "auto"):
            draft = DRAFTS[name]
            assert draft is not None
            ratios: list[float] = []
            total = ds4.DraftStatistics()
            for _ in range(rounds):
                spent = []
                for with_guesses in (False, True):
                    session.sync(prompt)
                    speculator = Speculator(session, draft, guess=guess)
                    start = clock()
                    for token in truth:
                        if with_guesses:
                            speculator.eval(token)
                        else:
                            session.eval(token)
                    spent.append(clock() - start)
                    speculator.settle()
                ratios.append(spent[0] / spent[1])
                total.add(speculator.statistics)
            expected = "" if draft.auto else f"{expected_tokens([chance] * draft.depth):.2f}"
            verify = f"{total.tokens_per_verify:.2f}" if total.verifies else ""
            print(f"{chance:>8.0%}  {name:<10}{spread(ratios)}{verify:>17}{expected:>10}")
            report[f"{chance} {name}"] = {"ratios": ratios, **total.as_json()}
    return report


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, help="default: the model of the package")
    parser.add_argument("--mtp", type=Path, help="file with the MTP block")
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--context", type=int, default=0, help="positions before the batches whose costs are measured")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--accept", default="", help="chances that guesses are right, separated by commas")
    parser.add_argument("--tokens", type=int, default=128, help="length of the text of --accept")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    clock = time.process_time if args.cpu_time else time.perf_counter
    chances = [float(x) for x in args.accept.split(",") if x]
    if any(not 0 <= c <= 1 for c in chances):
        parser.error("a chance is between 0 and 1")
    n_ctx = max(1024, args.context + 64, args.tokens + 128)
    with ds4.Model.open(args.model or ds4.Model.embedded_path(), mtp=args.mtp) as model:  # noqa: SIM117
        with model.session(n_ctx=n_ctx, threads=args.threads, mtp=model.has_mtp) as session:
            print(f"{model.shape.name}, {session.threads} thread(s), {ds4.cpu_isa()}")
            report = {
                "model": model.shape.name, "threads": session.threads, "isa": ds4.cpu_isa(),
                "costs": costs(model, session, args.context, args.rounds * 3, clock),
            }  # fmt: skip
            if model.has_mtp and args.model is None:
                report["text"] = text(model, session, args.rounds, clock)
            if chances:
                report["accept"] = accept(session, chances, args.tokens, args.rounds, clock, args.seed)
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

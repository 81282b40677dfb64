"""Given continuations: files of cases, their scores, files of scores."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.chat import protocol
from ds4.score import Case, Run, needed_ctx, read_cases, read_run, score_cases

Write = Callable[[str, "str | bytes"], Path]
HEADER = "id\tprompt_tokens\ttarget_tokens\tnll\tavg_nll\tfirst_match\tgreedy_lcp"


def greedy(model: ds4.Model, prompt: tuple[int, ...], n: int) -> list[int]:
    with model.session(n_ctx=256) as session:
        session.sync(prompt)
        out = []
        for _ in range(n):
            out.append(int(session.logits().argmax()))
            session.eval(out[-1])
    return out


def test_scores_equal_a_direct_computation(model: ds4.Model, session: ds4.Session) -> None:
    prompt = tuple(model.tokenizer.encode("the rest is one", specials=False))
    own = greedy(model, prompt, 6)
    other = (own[3] + 1) % 512
    cases = [
        Case("own", prompt, tuple(own), "k1"),
        Case("bent", prompt, (*own[:3], other, *own[4:]), "k2"),
        Case("first", prompt, (other, *own), "k2"),
        Case("short", (7,), (9,)),
    ]
    run = score_cases(session, cases)
    for case, score in zip(cases, run.cases, strict=True):
        with model.session(n_ctx=64) as fresh:
            rows = fresh.eval_logits([*case.prompt, *case.target])[len(case.prompt) - 1 : -1].astype(np.longdouble)
        losses = np.log(np.exp(rows).sum(axis=1)) - rows[np.arange(len(case.target)), list(case.target)]
        hits = (rows.argmax(axis=1) == case.target).tolist()
        assert score.id == case.id and score.kind == case.kind
        assert (score.prompt_tokens, score.target_tokens) == (len(case.prompt), len(case.target))
        assert score.nll == pytest.approx(float(losses.sum()), rel=1e-9)
        assert score.avg_nll == pytest.approx(float(losses.mean()), rel=1e-9)
        assert score.first_match == hits[0]
        assert score.greedy_lcp == [*hits, False].index(False)
    own_score, bent, first, _ = run.cases
    assert own_score.greedy_lcp == 6 and own_score.first_match
    assert bent.greedy_lcp == 3 and bent.first_match
    assert first.greedy_lcp == 0 and not first.first_match
    assert run.totals.target_tokens == 6 + 6 + 7 + 1
    assert run.totals.avg_nll == pytest.approx(sum(s.nll for s in run.cases) / 20)
    assert run.totals.first_matches == sum(s.first_match for s in run.cases)
    assert list(run.by_kind) == ["k1", "k2"]
    assert run.by_kind["k2"].cases == 2 and run.by_kind["k2"].mean_lcp == 1.5


def test_settings_of_the_computation_change_no_bit(model: ds4.Model) -> None:
    rng = np.random.default_rng(3)
    cases = [Case(str(i), tuple(rng.integers(3, 270, 30 + i)), tuple(rng.integers(3, 270, 17))) for i in range(4)]
    tables = set()
    for chunk, threads, n_ctx in ((256, 1, 64), (3, 2, 64), (20, 1, 200)):
        with model.session(n_ctx=n_ctx, chunk=chunk, threads=threads) as session:
            tables.add(score_cases(session, cases).as_tsv())
            tables.add(Run(tuple(reversed(score_cases(session, cases[::-1]).cases))).as_tsv())
    assert len(tables) == 1


def test_manifest(model: ds4.Model, write: Write) -> None:
    write("prompts/a.txt", "What is <think> one?")
    write("prompts/b.txt", "and\n")
    write("answers/a.txt", "the <think> rest")
    write("answers/b.txt", " another")
    path = write(
        "manifest.tsv",
        "# id\tprompt_file\tcontinuation_file\tresponse_file\n"
        "a\tprompts/a.txt\tanswers/a.txt\tnone.json\n\n"
        "b\tprompts/b.txt\tanswers/b.txt\r\n",
    )
    encode = model.tokenizer.encode
    a, b = read_cases(path, model.tokenizer)
    assert a.id == "a" and b.id == "b" and a.kind is None
    frame = (protocol.BOS + protocol.USER, protocol.ASSISTANT + "</think>")
    middle = encode("What is <think> one?")  # plain text: no special token
    assert list(a.prompt) == encode(frame[0], specials=True) + middle + encode(frame[1], specials=True)
    assert list(a.target) == encode("the <think> rest")
    assert model.tokenizer.special("<think>") not in a.target
    assert list(b.target) == encode(" another")
    assert b.prompt[-1] == model.tokenizer.special("</think>")


def test_json_lines(model: ds4.Model, write: Write) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    messages = [{"role": "user", "content": "one <think>"}]
    rows: list[dict[str, Any]] = [
        {"messages": messages, "continuation": "a <think>"},
        {"id": "seven", "prompt": "<｜User｜>x<think>", "continuation": "a</think>b", "kind": "k"},
        {
            "id": "t",
            "messages": messages,
            "tools": tools,
            "mode": "thinking",
            "continuation": "r</think>",
            "specials": True,
        },
        {"prompt": "x", "continuation": "a</think>b", "specials": False},
    ]
    text = "\n\n".join(json.dumps(r, ensure_ascii=False) for r in rows)
    cases = read_cases(write("c.jsonl", text), model.tokenizer)
    think, end_think = (model.tokenizer.special(t) for t in ("<think>", "</think>"))
    assert [c.id for c in cases] == ["1", "seven", "t", "7"]  # a line number where none is given
    assert cases[1].kind == "k" and cases[0].kind is None
    assert think not in cases[0].target and think not in cases[0].prompt and cases[0].prompt[-1] == end_think
    assert cases[1].prompt[-1] == think and end_think in cases[1].target
    assert end_think in cases[2].target and cases[2].prompt[-1] == think and len(cases[2].prompt) > 100
    assert end_think not in cases[3].target


BAD_LINES = [
    ("nothing", "not JSON"),
    ("[1]", "not a JSON object"),
    ("{}", 'either "prompt" or "messages"'),
    ('{"prompt": "a", "messages": [], "continuation": "b"}', 'either "prompt" or "messages"'),
    ('{"prompt": "a"}', '"continuation" is missing'),
    ('{"prompt": 3, "continuation": "b"}', '"prompt" is int, not str'),
    ('{"prompt": "a", "continuation": ""}', "continuation of '2' is empty"),
    ('{"prompt": "", "continuation": "b"}', "prompt of '2' is empty"),
    ('{"messages": [{"role": "king"}], "continuation": "b"}', "king"),
    ('{"messages": [{"role": "user", "content": "a"}], "mode": "x", "continuation": "b"}', "unknown mode 'x'"),
    ('{"prompt": "a", "continuation": "b", "id": "x\\ty"}', "holds a tab"),
    ('{"prompt": "a", "continuation": "b", "id": "one"}', "is that of line 1"),
    ('{"prompt": "a", "continuation": "b", "id": true}', '"id" must be'),
    ('{"prompt": "a", "continuation": "b", "kind": 3}', '"kind" must be'),
    ("[" * 100_000, ""),
]


@pytest.mark.parametrize(("line", "words"), BAD_LINES)
def test_bad_json_lines_name_their_line(model: ds4.Model, write: Write, line: str, words: str) -> None:
    good = '{"prompt": "a", "continuation": "b", "id": "one"}'
    path = write("bad.jsonl", f"{good}\n{line}\n")
    with pytest.raises(ValueError) as caught:
        read_cases(path, model.tokenizer)
    assert str(caught.value).startswith(f"{path}:2: ") and words in str(caught.value)


def test_bad_manifests_name_their_line(model: ds4.Model, write: Write) -> None:
    write("p.txt", "a")
    write("latin.txt", b"caf\xe9")
    write("empty.txt", "")
    for line, words in (
        ("x\tp.txt", "2 columns"),
        ("x p.txt p.txt", "1 columns"),
        ("\tp.txt\tp.txt", "id '' is empty"),
        ("x\t\tp.txt", "a file name is empty"),
        ("x\tp.txt\tlatin.txt", "not UTF-8 text (byte 3)"),
        ("x\tp.txt\tempty.txt", "continuation of 'x' is empty"),
        ("a\tp.txt\tp.txt", "is that of line 1"),
    ):
        path = write("m.tsv", f"a\tp.txt\tp.txt\n{line}\n")
        with pytest.raises(ValueError) as caught:
            read_cases(path, model.tokenizer)
        assert str(caught.value).startswith(f"{path}:2: ") and words in str(caught.value)
    with pytest.raises(FileNotFoundError) as missing:
        read_cases(write("m.tsv", "a\tp.txt\tnone.txt\n"), model.tokenizer)
    assert str(missing.value.filename).endswith("none.txt")
    for empty in ("", "# only a comment\n"):
        with pytest.raises(ValueError, match="no cases"):
            read_cases(write("m.tsv", empty), model.tokenizer)
    with pytest.raises(ValueError, match="not UTF-8"):
        read_cases(write("m.tsv", b"\xff"), model.tokenizer)


def test_a_case_that_does_not_fit_is_named_before_the_work(model: ds4.Model) -> None:
    cases = [Case("fits", (3, 4), (5,)), Case("long", (3,) * 30, (4,) * 4)]
    assert needed_ctx(cases) == 33
    with model.session(n_ctx=32) as session:
        with pytest.raises(ValueError, match=r"case long: 30 tokens of prompt and 4 of continuation.*33.*32"):
            score_cases(session, cases)
        assert session.pos == 0
        with pytest.raises(ValueError, match="no cases"):
            score_cases(session, [])
    with model.session(n_ctx=33) as session:
        assert len(score_cases(session, cases).cases) == 2


def test_runs_are_written_and_read(model: ds4.Model, session: ds4.Session, write: Write) -> None:
    cases = [Case("a b", (3, 4), (5, 6)), Case("c", (300,), (5, 9, 11), "kind")]
    run = score_cases(session, cases)
    table = run.as_tsv()
    lines = table.splitlines()
    assert lines[0] == HEADER + "\tkind"
    assert lines[1].split("\t")[3] == f"{run.cases[0].nll:.9f}" and lines[1].endswith("\t")
    plain = Run(run.cases[:1]).as_tsv()
    assert plain.splitlines()[0] == HEADER
    for read in (read_run(write("r.tsv", table)), read_run(write("r.tsv", table.replace("\n", "\r\n")))):
        assert [s.id for s in read.cases] == ["a b", "c"]
        assert [s.kind for s in read.cases] == [None, "kind"]
        assert read.cases[1].nll == pytest.approx(run.cases[1].nll, abs=1e-9)
        assert read.cases[1].greedy_lcp == run.cases[1].greedy_lcp
    assert read_run(write("r.json", json.dumps(run.as_json()))) == run
    progress: list[Any] = []
    score_cases(session, cases, progress=lambda *a: progress.append(a))
    assert progress[-1] == (5 + 1, 6, "c")


GOOD = "a\t3\t2\t1.500000000\t0.750000000\t1\t2"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a\t3\t2\t1.5\t0.75\t1", "6 columns"),
        (GOOD.replace("1.5", "x"), "not a number"),
        (GOOD.replace("1.500000000", "nan"), "negative log-likelihood"),
        (GOOD.replace("1.500000000", "-1"), "negative log-likelihood"),
        (GOOD.replace("\t2\t", "\t0\t"), "1 or more"),
        (GOOD[:-1] + "3", "contradict"),
        (GOOD[:-1] + "0", "contradict"),
        (GOOD.replace("\t1\t2", "\t2\t2"), "not a number"),
        (GOOD + "\n" + GOOD, "appears twice"),
        ("", "no cases"),
    ],
)
def test_bad_tables_of_scores(write: Write, row: str, words: str) -> None:
    assert len(read_run(write("good.tsv", f"{HEADER}\n{GOOD}\n")).cases) == 1
    path = write("bad.tsv", f"{HEADER}\n{row}\n")
    with pytest.raises(ValueError) as caught:
        read_run(path)
    assert str(path) in str(caught.value) and words in str(caught.value)
    if words not in ("no cases", "appears twice"):
        assert "line 2" in str(caught.value)


def test_other_files_are_no_runs(write: Write) -> None:
    with pytest.raises(ValueError, match="its header should be id prompt_tokens"):
        read_run(write("x.tsv", "name\tvalue\n"))
    row = {"id": "a", "prompt_tokens": 1, "target_tokens": 1, "nll": 1.0, "first_match": False, "greedy_lcp": 0}
    for content, words in (
        ({"format": "other"}, "not the JSON of a run"),
        ({"format": "ds4-score-cases", "cases": [{**row, "nll": "1"}]}, "'nll' is missing or not of type float"),
        ({"format": "ds4-score-cases", "cases": [{**row, "kind": 1}]}, "kind"),
        ({"format": "ds4-score-cases", "cases": [3]}, "not an object"),
        ({"format": "ds4-score-cases", "cases": [row, row]}, "twice"),
        ({"format": "ds4-score-cases", "cases": [{**row, "nll": math.nan}]}, "negative log-likelihood"),
    ):
        with pytest.raises(ValueError, match=words):
            read_run(write("x.json", json.dumps(content)))
    with pytest.raises(ValueError, match="not JSON"):
        read_run(write("x.json", '{"format": '))
    with pytest.raises(ValueError, match=r"x\.json: not JSON"):
        read_run(write("x.json", '{"format": %s}' % ("9" * 5000)))

"""Files of test vectors, recorded from the tiny model, run against it whole and corrupted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.score import (
    VectorCase,
    VectorReport,
    as_lines,
    default_ids,
    read_vectors,
    record_vectors,
    run_vectors,
    vector_ctx,
)

Write = Callable[[str, "str | bytes"], Path]
PROMPTS = {"one": "What is one?", "two": "the rest of the tools, ü\n"}


@pytest.fixture(scope="module")
def recorded(model: ds4.Model) -> list[VectorCase]:
    with model.session(n_ctx=64) as session:
        return record_vectors(session, list(PROMPTS.items()), steps=5, top=3)


@pytest.fixture
def vec(recorded: list[VectorCase], write: Write) -> Path:
    for name, text in PROMPTS.items():
        write(f"prompts/{name}.txt", text)
    return write("all.vec", "# a comment\n\n" + as_lines([(c, f"prompts/{c.id}.txt") for c in recorded]))


def run(session: ds4.Session, path: Path, **options: Any) -> VectorReport:
    return run_vectors(session, read_vectors(path), **options)


def test_recorded_vectors_are_read_and_pass(
    session: ds4.Session, recorded: list[VectorCase], vec: Path, model: ds4.Model
) -> None:
    cases = read_vectors(vec)
    assert [c.id for c in cases] == ["one", "two"]
    for case, original in zip(cases, recorded, strict=True):
        assert isinstance(case, VectorCase) and case.prompt == PROMPTS[case.id]
        assert [s.token for s in case.steps] == [s.token for s in original.steps]
        for step, first in zip(case.steps, original.steps, strict=True):
            assert step.top[0][0] == step.token and len(step.top) == 3
            assert [p for _, p in step.top] == pytest.approx([p for _, p in first.top], abs=1e-9)
    report = run_vectors(session, cases)
    assert report.passed and [r.status for r in report.results] == ["pass", "pass"]
    assert [r.steps for r in report.results] == [5, 5]
    assert all(r.worst < 1e-6 and not r.reasons for r in report.results)
    needed = vector_ctx(cases, model.tokenizer)
    assert needed == max(c.n_ctx or 0 for c in recorded)
    with model.session(n_ctx=needed) as exact:
        assert run_vectors(exact, cases).passed


def test_only_the_step_that_differs_fails(session: ds4.Session, recorded: list[VectorCase], model: ds4.Model) -> None:
    """After a difference the recorded token is fed, so what follows is compared behind the right prefix (L124)."""
    case = recorded[0]
    session.sync(session.model.tokenizer.encode("x"))
    tokenizer = model.tokenizer
    with model.session(n_ctx=64) as other:
        # The second choice at step 1, and what the model says behind it: a vector of which one step is wrong.
        prompt = [tokenizer.bos_id, tokenizer.special("<｜User｜>"), *tokenizer.encode(case.prompt)]
        prompt += [tokenizer.special("<｜Assistant｜>"), tokenizer.special("</think>")]
        other.sync(prompt)
        steps = []
        for i in range(4):
            best = other.logprobs(2)
            token = best[1 if i == 1 else 0].token
            steps.append(replace(case.steps[0], token=tokenizer.token_bytes(token), top=()))
            other.eval(token)
    report = run_vectors(session, [replace(case, steps=tuple(steps), n_ctx=64)])
    (result,) = report.results
    assert not report.passed and result.status == "fail"
    assert result.steps == 4 and result.mismatches == 1
    assert len(result.reasons) == 1 and result.reasons[0].startswith("step 1: the model's token is ")


def test_corrupted_vectors_fail_with_reasons(session: ds4.Session, recorded: list[VectorCase]) -> None:
    case = recorded[0]
    tokenizer = session.model.tokenizer
    first = case.steps[0]
    absent = next(
        tokenizer.token_bytes(i)
        for i in range(3, 259)
        if tokenizer.token_bytes(i) not in {t for s in case.steps for t, _ in s.top}
    )
    unlikely = tokenizer.token_bytes(
        int(np.argmin([_logits_after(session, case.prompt)[i] for i in range(3, 259)])) + 3
    )

    def reasons(**changes: Any) -> tuple[str, ...]:
        step = replace(first, **changes)
        return run_vectors(session, [replace(case, steps=(step, *case.steps[1:]))]).results[0].reasons

    assert reasons() == ()
    token, logprob = first.top[0]
    assert reasons(top=((token, logprob - 3.9),)) == ()
    assert "more than 4 away" in reasons(top=((token, logprob - 4.1),))[0]
    assert (
        f"{unlikely.decode('utf-8', 'backslashreplace')!r} is not among the 20 best"
        in reasons(top=((unlikely, -1.0),))[0]
    )
    assert "the model's token is" in reasons(token=absent)[0]
    stranger = reasons(token=b"no such token")
    assert "no token has the bytes 'no such token'; later steps are not compared" in stranger[-1]
    for changes, words in (
        ({"prompt_tokens": case.prompt_tokens}, ""),
        ({"prompt_tokens": 7}, f"the prompt has {case.prompt_tokens} tokens, not 7"),
        ({"n_ctx": 9}, "the case says a context of 9"),
        ({"n_ctx": None, "prompt": "x" * 300}, "the context has room for 256"),
    ):
        (result,) = run_vectors(session, [replace(case, **changes)]).results
        assert (result.status == "pass") == (words == "")
        assert words in "; ".join(result.reasons)


def _logits_after(session: ds4.Session, prompt: str) -> np.ndarray:
    tokenizer = session.model.tokenizer
    session.sync(tokenizer.encode(f"<｜begin▁of▁sentence｜><｜User｜>{prompt}<｜Assistant｜></think>", specials=True))
    return session.logits()


def test_skipping(session: ds4.Session, vec: Path) -> None:
    report = run(session, vec, skip=["two"])
    assert report.passed and [r.status for r in report.results] == ["pass", "skip"]
    with pytest.raises(ValueError, match="no case 'three' to skip; there are one, two"):
        run(session, vec, skip=["three"])
    with pytest.raises(ValueError, match="nothing would be compared"):
        run(session, vec, skip=["one", "two"])


def test_the_hosted_json(session: ds4.Session, recorded: list[VectorCase], write: Write) -> None:
    def token(data: bytes) -> dict[str, Any]:
        return {"text": data.decode("utf-8", "replace"), "bytes": list(data)}

    def row(case: VectorCase) -> dict[str, Any]:
        steps = [
            {
                "step": i,
                "token": token(s.token),
                "logprob": 0.0,
                "top_logprobs": [
                    *({"token": token(t), "logprob": p} for t, p in s.top),
                    {"token": token(b"never"), "logprob": -9999.0},
                ],
            }
            for i, s in enumerate(case.steps)
        ]
        return {
            "schema": "ds4-official-logprobs-v1",
            "id": case.id,
            "kind": "short",
            "prompt": case.prompt,
            "usage": {"prompt_tokens": case.prompt_tokens},
            "logits_available": False,
            "steps": steps,
        }

    rows = [row(c) for c in recorded]
    assert run(session, write("v.json", json.dumps(rows))).passed
    assert run(session, write("v.json", json.dumps(rows[0]))).passed
    wrong = json.loads(json.dumps(rows[0]))
    wrong["usage"]["prompt_tokens"] += 1
    assert not run(session, write("v.json", json.dumps(wrong))).passed

    def broken(change: Callable[[Any], Any]) -> str:
        copy = json.loads(json.dumps(rows[0]))
        change(copy)
        with pytest.raises(ValueError) as caught:
            read_vectors(write("v.json", json.dumps(copy)))
        return str(caught.value)

    assert "case one: its schema is 'x'" in broken(lambda r: r.update(schema="x"))
    assert "case one: 'steps' is missing" in broken(lambda r: r.pop("steps"))
    assert "it has no steps" in broken(lambda r: r.update(steps=[]))
    assert "prompt is int, not str" in broken(lambda r: r.update(prompt=1))
    assert "steps[1] is step 5" in broken(lambda r: r["steps"][1].update(step=5))
    assert "steps[0].token.bytes must be whole numbers" in broken(lambda r: r["steps"][0]["token"].update(bytes=[300]))
    assert "steps[0].token.bytes must be" in broken(lambda r: r["steps"][0]["token"].update(bytes=[]))
    assert "bytes is NoneType" in broken(lambda r: r["steps"][0]["token"].update(bytes=None))
    assert "logprob is not a finite number" in broken(lambda r: r["steps"][0]["top_logprobs"][0].update(logprob="0"))
    assert "usage.prompt_tokens is bool" in broken(lambda r: r["usage"].update(prompt_tokens=True))
    for text, words in (("{", "not JSON"), ("3", "case 1: the case is int"), ("[]", "no cases"), (b"\xff", "UTF-8")):
        with pytest.raises(ValueError, match=words):
            read_vectors(write("v.json", text))


LINES = """case a 100 2 p.txt
step 0 61 1
top 61 -0.5
step 1 62 0
end
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("case a", "step a", 1, "where a case should begin"),
        ("case a 100 2 p.txt", "case a 100 2", 1, "not of the form: case ID CTX STEPS PROMPT-FILE"),
        ("case a ", f"case {'a' * 96} ", 1, "96 characters; at most 95"),
        (" 100 ", " 0 ", 1, "the context is '0', not a whole number in 1..1048576"),
        (" 100 ", " 9999999999999999 ", 1, "the context is"),
        (" 2 p", " -2 p", 1, "the number of steps is '-2'"),
        (" 2 p", " 0 p", 1, "the number of steps is '0'"),
        ("p.txt", "q" * 512, 1, "512 bytes; at most 511"),
        ("p.txt", "none.txt", 1, "the prompt file none.txt is not there (looked for "),
        ("p.txt", "latin.txt", 1, "not UTF-8"),
        ("p.txt", "ü.txt", 1, "not ASCII"),
        ("step 0", "step 1", 2, "step 1 of case a where step 0 should be"),
        ("61 1", "61", 2, "not of the form: step"),
        ("61 1", "6g 1", 2, "not the bytes of a token"),
        ("61 1", "616 1", 2, "not the bytes of a token"),
        ("61 1", "61" * 129 + " 1", 2, "more than 128 bytes"),
        ("61 1", "61 2", 4, "'step 1 62 0' in case a, where 'top' should be"),
        ("61 1", "61 0", 3, "'top 61 -0.5' in case a, where 'step' should be"),
        ("-0.5", "nan", 3, "not a finite number"),
        ("-0.5", "x", 3, "not a finite number"),
        ("end", "end now", 5, "where 'end' should be"),
        ("end\n", "", 5, "the file ends in case a, where 'end' should be"),
        ("step 1 62 0\nend\n", "", 4, "the file ends in case a, where 'step' should be"),
    ],
)
def test_damaged_lines_are_named(write: Write, old: str, new: str, line: int, words: str) -> None:
    write("p.txt", "text")
    write("latin.txt", b"\xe9")
    (case,) = read_vectors(write("good.vec", LINES))
    assert isinstance(case, VectorCase) and case.steps[0].top == ((b"a", -0.5),)
    assert old in LINES
    path = write("bad.vec", LINES.replace(old, new, 1))
    with pytest.raises(ValueError) as caught:
        read_vectors(path)
    assert str(caught.value).startswith(f"{path}:{line}: "), caught.value
    assert words in str(caught.value)


def test_paths_of_prompt_files(write: Write, tmp_path: Path) -> None:
    write("sub/a b.txt", "text")
    text = LINES.replace("p.txt", "a b.txt")
    path = write("v.vec", text)
    (case,) = read_vectors(path, base=tmp_path / "sub")
    assert isinstance(case, VectorCase) and case.prompt == "text"
    assert read_vectors(write("v.vec", LINES.replace("p.txt", f"{tmp_path}/sub/a b.txt")))
    with pytest.raises(ValueError, match="appears twice"):
        read_vectors(write("v.vec", text + text), base=tmp_path / "sub")
    with pytest.raises(ValueError, match="no cases"):
        read_vectors(write("v.vec", "# nothing\n\n"))


def test_what_cannot_be_written(recorded: list[VectorCase]) -> None:
    case = recorded[0]
    for changed, path, words in (
        (replace(case, id="a b"), "p", "cannot be written"),
        (replace(case, id="a" * 96), "p", "cannot be written"),
        (replace(case, id=""), "p", "cannot be written"),
        (case, "p\nq", "path"),
        (case, "p" * 512, "path"),
        (replace(case, steps=(replace(case.steps[0], token=b"x" * 129),)), "p", "129 bytes"),
    ):
        with pytest.raises(ValueError, match=words):
            as_lines([(changed, path)])


def test_bad_recordings(session: ds4.Session) -> None:
    for options, words in (({"steps": 0}, "steps"), ({"top": 21}, "top"), ({"steps": 300}, "case a: .*256")):
        with pytest.raises(ValueError, match=words):
            record_vectors(session, [("a", "x")], **options)
    assert default_ids([Path("x/a.txt"), Path("b.txt")]) == ["a", "b"]
    with pytest.raises(ValueError, match="two prompt files are named a"):
        default_ids([Path("x/a.txt"), Path("a.md")])


# Local vectors


def local(session: ds4.Session, mode: str, text: str, frontier: int, n_top: int, shift: float = 0.0) -> str:
    tokenizer = session.model.tokenizer
    ids = tokenizer.encode(text, specials=mode == "rendered")
    if mode == "chat":
        frame = [tokenizer.special(t) for t in ("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "</think>")]
        ids = [*frame[:2], *ids, *frame[2:]]
    session.sync(ids[:frontier])
    best = session.logprobs(n_top)
    lines = [f"case {mode}-{n_top} {mode} 200 {frontier} a b.txt {n_top}"]
    lines += [f"top {i} {b.token} {b.logit + (shift if i == 3 else 0):.6f}" for i, b in enumerate(best)]
    return "\n".join([*lines, "end"]) + "\n"


@pytest.mark.parametrize("mode", ["text", "rendered", "chat"])
def test_local_vectors(session: ds4.Session, write: Write, mode: str) -> None:
    text = "<｜begin▁of▁sentence｜>one and <think> the other rest of it, and another"
    write("a b.txt", text)
    good = "".join(local(session, mode, text, 12, n) for n in (4, 64))
    report = run(session, write("l.vec", good))
    assert report.passed and [r.prompt_tokens for r in report.results] == [12, 12]
    assert report.results[0].worst < 1e-5
    other = run(session, write("l.vec", good.replace(" 200 12 ", " 200 11 ")))
    assert not other.passed
    far = run(session, write("l.vec", local(session, mode, text, 12, 20, shift=8.1)))
    assert "8.100 away; at most 8 is allowed" in "; ".join(far.results[0].reasons)
    near = run(session, write("l.vec", local(session, mode, text, 12, 20, shift=7.9)))
    assert near.passed


def test_overlaps_of_local_vectors(session: ds4.Session, write: Write) -> None:
    text = "one and the other"
    write("a b.txt", text)
    lines = local(session, "text", text, 5, 64).splitlines()
    logits = session.logits()
    order = np.argsort(-logits, kind="stable")

    def reasons(replaced: list[int]) -> str:
        out = list(lines)
        for k, i in enumerate(replaced):
            worst = int(order[-1 - k])
            out[1 + i] = f"top {i} {worst} {logits[worst]:.6f}"
        return "; ".join(run(session, write("o.vec", "\n".join(out) + "\n")).results[0].reasons)

    assert reasons([]) == ""
    assert reasons([1]) == ""
    assert "3 of the 5 best tokens are the same; 4 are needed" in reasons([1, 2])
    assert reasons([5, 6, 7, 8, 9]) == ""
    assert "14 of the 20 best tokens are the same; 15 are needed" in reasons([5, 6, 7, 8, 9, 10])
    assert reasons(list(range(30, 54))) == ""
    assert "39 of the 64 best tokens are the same; 40 are needed" in reasons(list(range(30, 55)))
    assert "the model's best token is" in reasons([0])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (" 200 5 ", " 200 201 ", "the frontier is '201', not a whole number in 1..200"),
        (" b.txt 2", " b.txt 0", "the number of tops is '0'"),
        ("a b.txt 2", "2", "not of the form: case ID text|rendered|chat"),
        ("top 1", "top 2", "rank 2 of case text-2 where rank 1 should be"),
        ("top 0", "top 2", "rank 2 of case text-2 where rank 1 should be"),
        ("top 1 ", "top 1 -", "the token id is"),
        ("end", "", "the file ends in case text-2, where 'end' should be"),
    ],
)
def test_damaged_local_vectors(session: ds4.Session, write: Write, old: str, new: str, words: str) -> None:
    write("a b.txt", "one and the other")
    good = local(session, "text", "one and the other", 5, 2)
    assert old in good and read_vectors(write("g.vec", good))
    with pytest.raises(ValueError) as caught:
        read_vectors(write("b.vec", good.replace(old, new, 1)))
    assert words in str(caught.value)


def test_local_vectors_that_cannot_be_run(session: ds4.Session, write: Write) -> None:
    write("a b.txt", "one and the other")
    good = local(session, "text", "one and the other", 5, 2)
    for text, words in (
        (good.replace(" 200 5 ", " 200 50 "), "fewer than the frontier of 50"),
        ("\n".join([*good.splitlines()[:2], "top 1 512 0.0", "end"]), "token 512 is not in the vocabulary of 512"),
    ):
        (result,) = run(session, write("x.vec", text)).results
        assert result.status == "fail" and words in result.reasons[0]
    from_one = good.replace("top 1", "top 2").replace("top 0", "top 1")
    assert run(session, write("one.vec", from_one)).passed

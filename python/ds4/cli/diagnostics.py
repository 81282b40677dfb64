"""Looking at tokens, logits, log-probabilities and perplexity. Token objects always carry their bytes, because a token
can be a part of a character."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ds4 import GGUFFile, Model, Session, Tokenizer
from ds4.score import score_tokens
from ds4.score.runs import perplexity as perplexity_of

from .oneshot import prompt_text, prompt_tokens
from .opening import make_session, opened_model, read_text, tokenizer_file
from .output import OutputFile
from .settings import Settings
from .terminal import ProgressLine, note, shown_progress

_DEFAULT_TOP_K = 20
_PERPLEXITY_PREFIX = 32


def dump_tokens(settings: Settings) -> int:
    """Print the tokens of the prompt text as it stands, special tokens recognised."""
    print_tokens(tokenizer_file(settings), prompt_text(settings), as_json=settings.as_json)
    return 0


def print_tokens(path: Path, text: str, *, as_json: bool) -> None:
    """Print ids and pieces of a text; needs the head of the model file only."""
    with GGUFFile(path) as file:
        tokenizer = Tokenizer.from_gguf_metadata(file.metadata)
    ids = tokenizer.encode(text, specials=True)
    if as_json:
        print(json.dumps({"n_tokens": len(ids), "tokens": [token_json(tokenizer, i) for i in ids]}, ensure_ascii=False))
        return
    for i in ids:
        print(f"{i:>7}  {tokenizer.piece(i)}")
    note(f"{len(ids)} tokens")


def token_json(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    """Return a token as an object: id, text (broken characters replaced), bytes."""
    raw = tokenizer.token_bytes(token)
    return {"id": token, "text": raw.decode("utf-8", "replace"), "bytes": list(raw)}


def dump_logits(settings: Settings) -> int:
    """Write the logits after the prompt."""
    text = prompt_text(settings)
    assert settings.dump_logits is not None
    with OutputFile(settings.dump_logits) as out:
        n_logits, n_tokens = _write_logits(settings, text, out)
    note(f"wrote {out.name}: {n_logits} logits after {n_tokens} tokens")
    return 0


def _write_logits(settings: Settings, text: str, out: OutputFile) -> tuple[int, int]:
    with opened_model(settings) as model:
        ids, _ = prompt_tokens(model, settings, text)
        with make_session(model, settings, settings.ctx) as session:
            _prefill(session, ids)
            logits = session.logits()
        best = int(np.nanargmax(np.where(np.isfinite(logits), logits, -np.inf)))
        head = {
            **source_of(model, settings),
            "prompt_tokens": len(ids),
            "ctx": settings.ctx,
            "vocab": int(logits.size),
            "argmax_token": token_json(model.tokenizer, best),
            "argmax_logit": float(f"{logits[best]:.9g}"),
        }
    numbers = ", ".join(f"{v:.9g}" if math.isfinite(v) else "null" for v in logits.tolist())
    out.write(_open_object(head) + f',\n "logits": [{numbers}]\n}}\n')
    return int(logits.size), len(ids)


def dump_logprobs(settings: Settings) -> int:
    """Write a greedy answer step by step, with the best alternatives."""
    text = prompt_text(settings)
    assert settings.dump_logprobs is not None
    with OutputFile(settings.dump_logprobs) as out:
        n_steps = _write_logprobs(settings, text, out)
    note(f"wrote {out.name}: {n_steps} steps")
    return 0


def _write_logprobs(settings: Settings, text: str, out: OutputFile) -> int:
    top_k = settings.logprobs_top_k or _DEFAULT_TOP_K
    with opened_model(settings) as model:
        ids, _ = prompt_tokens(model, settings, text)
        with make_session(model, settings, settings.ctx) as session:
            _prefill(session, ids)
            steps = _greedy_steps(session, model.tokenizer, top_k, min(settings.tokens, settings.ctx - len(ids)))
        head = {**source_of(model, settings), "prompt_tokens": len(ids), "ctx": settings.ctx, "top_k": top_k}
    lines = ",\n  ".join(json.dumps(step, ensure_ascii=False, allow_nan=False) for step in steps)
    out.write(_open_object(head) + f',\n "steps": [\n  {lines}\n ]\n}}\n')
    return len(steps)


def _greedy_steps(session: Session, tokenizer: Tokenizer, top_k: int, n_steps: int) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    line = ProgressLine("generation", "tokens")
    while len(steps) < n_steps:
        best = session.logprobs(top_k)
        chosen = best[0].token
        alternatives = [
            {"token": token_json(tokenizer, b.token), "logit": _finite(b.logit), "logprob": _finite(b.logprob)}
            for b in best
        ]
        step = {"step": len(steps), "selected": token_json(tokenizer, chosen), "top_logprobs": alternatives}
        steps.append(step)
        line(len(steps), n_steps)
        if chosen == tokenizer.eos_id:
            break
        if len(steps) < n_steps:
            session.eval(chosen)
    line.finish()
    return steps


def perplexity(settings: Settings) -> int:
    """Print how well the model predicts the tokens of a text, after a prefix of 32."""
    assert settings.perplexity_file is not None
    text = read_text(settings.perplexity_file)
    with opened_model(settings) as model:
        ids = model.tokenizer.encode(text)
        n_scored = min(len(ids) - _PERPLEXITY_PREFIX, settings.tokens)
        if n_scored < 1:
            raise ValueError(
                f"{settings.perplexity_file}: {len(ids)} tokens; more than {_PERPLEXITY_PREFIX} are needed, which "
                "are the prefix"
            )
        ids = ids[: _PERPLEXITY_PREFIX + n_scored]
        if len(ids) > settings.ctx:
            raise ValueError(
                f"{settings.perplexity_file}: {len(ids)} tokens of the text, but the context has room for "
                f"{settings.ctx}; use -c {len(ids)} or more, or -n to score fewer"
            )
        with (
            make_session(model, settings, settings.ctx) as session,
            shown_progress("perplexity", "tokens") as progress,
        ):
            nll = score_tokens(session, ids, _PERPLEXITY_PREFIX, progress=progress)
    average = nll / n_scored
    result = {"tokens": len(ids), "scored": n_scored, "nll": nll, "avg_nll": average, "ppl": perplexity_of(average)}
    if settings.as_json:
        print(json.dumps(result))
    else:
        print(" ".join(f"{k}={v:.9g}" if isinstance(v, float) else f"{k}={v}" for k, v in result.items()))
    return 0


def _prefill(session: Session, ids: list[int]) -> None:
    line = ProgressLine("prefill", "tokens")
    try:
        session.sync(ids, progress=line)
    finally:
        line.finish()


def source_of(model: Model, settings: Settings) -> dict[str, Any]:
    """Return what made the numbers: the model, and the settings that change them."""
    return {
        "source": "ds4",
        "model": Path(model.path).name,
        "shape": model.shape.name,
        "fingerprint": model.fingerprint.hex(),
        "backend": model.backend,
        "quant_bits": _quant_bits(model),
        "qat": not settings.no_qat,
        "activations": settings.activations,
    }


def _quant_bits(model: Model) -> int:
    """Return the bits of one weight of the routed experts, rounded down: 2, 4, 8, 16 or 32."""
    with GGUFFile(model.path) as file:
        experts = file.tensors["blk.0.ffn_gate_exps.weight"]
        return 8 * experts.n_bytes // experts.size


def _finite(value: float) -> float | None:
    return float(f"{value:.9g}") if math.isfinite(value) else None


def _open_object(head: dict[str, Any]) -> str:
    """Return an object as JSON, a key per line, without its closing brace."""
    return "{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in head.items())


WORK: dict[str, Callable[[Settings], int]] = {
    "dump_tokens": dump_tokens,
    "dump_logits": dump_logits,
    "dump_logprobs": dump_logprobs,
    "perplexity_file": perplexity,
}
"""The diagnostics by the name of their option."""

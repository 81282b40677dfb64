"""How well a model file predicts the held-out sets that make_sets.py wrote."""

import ds4
from ds4 import score

N_CTX = 2048


def likelihood(path, sets):
    """Nats per token of a model file: {kind: value} for the answers of held-out conversations, "english" for
    plain text."""
    with ds4.Model.open(path) as model, model.session(n_ctx=N_CTX) as session:
        run = score.score_cases(session, score.read_cases(sets / "heldout.jsonl", model.tokenizer))
        out = {kind: totals.avg_nll for kind, totals in run.by_kind.items()}
        english = score.score_text(session, (sets / "english-heldout.txt").read_text(encoding="utf-8"))
        out["english"] = english.nll / english.tokens
    return out

"""Directions of two kinds of prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from ds4.model import Model
from ds4.session import Session
from ds4.steering import SteeringDirections, contrast
from ds4.token_ids import Tokens

Component = Literal["ffn_out", "attn_out"]


def build_directions(
    model: Model,
    good: Sequence[Tokens],
    bad: Sequence[Tokens],
    *,
    component: Component = "ffn_out",
    at: Literal["last", "mean"] = "last",
    pairs: bool = False,
    orthogonal: bool = True,
    session: Session | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> SteeringDirections:
    """Return the directions in which the outputs of layers differ between two kinds of prompts.

    A positive scale takes out of a layer's output what `good` prompts have and `bad` ones have not; a negative one
    amplifies it.

    Parameters
    ----------
    model : Model
    good, bad : sequence of Tokens
        Rendered prompts, up to where the model begins to write.
    component : {"ffn_out", "attn_out"}
        Whose outputs; the directions are meant for the same place.
    at : {"last", "mean"}
        Of each prompt its last position, where the model begins to answer, or the mean over all but the first, which
        sees what is said of the answer where it is said.
    pairs, orthogonal
        As in `ds4.steering.contrast`.
    session : Session, optional
        As in `Model.activations`.
    progress : callable, optional
        Called with (prompts done, prompts in all).

    Raises
    ------
    ValueError
        There are no prompts, or no pairs of them.
    ContextFullError
        A prompt does not fit the session.
    """
    if component not in ("ffn_out", "attn_out"):
        raise ValueError(f"component must be ffn_out or attn_out, not {component!r}")
    if not good or not bad:
        raise ValueError("there are no prompts on one side")
    if pairs and len(good) != len(bad):
        raise ValueError(f"{len(good)} and {len(bad)} prompts are no pairs")
    found = model.activations([*good, *bad], component, at=at, session=session, progress=progress)
    directions = contrast(found[: len(good)], found[len(good) :], pairs=pairs, orthogonal=orthogonal)
    notes = {
        "component": component, "at": at, "pair_normalize": pairs, "orthogonalise": orthogonal,
        "good_prompts": len(good), "bad_prompts": len(bad), "model": model.shape.name,
    }  # fmt: skip
    return SteeringDirections(directions.values, notes=notes)

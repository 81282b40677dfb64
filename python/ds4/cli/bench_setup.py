"""What the forms of ``ds4 bench`` share: settings, the variant of the kernels, the session."""

from __future__ import annotations

from typing import Any

import click

import ds4
from ds4 import Model, Session

from .opening import check_memory
from .settings import Settings


def bench_settings(n_ctx: int, values: dict[str, Any]) -> Settings:
    """Return the settings of the options for a context of `n_ctx` positions."""
    if values["cpu"] and values["backend"] not in ("auto", "cpu"):
        raise click.UsageError(f"--cpu and --backend {values['backend']} contradict each other")
    return Settings(ctx=n_ctx, **values)


def choose_isa(name: str) -> None:
    """Limit the kernels to a variant; an unknown one is a wrong command line."""
    try:
        ds4.set_cpu_isa(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--isa") from None


def bench_session(model: Model, settings: Settings, chunk: int | None, *, mtp: bool = False) -> Session:
    """Make a session after checking that model and session fit into memory."""
    sizes: dict[str, Any] = {} if chunk is None else {"chunk": chunk}
    plan = model.memory_plan(settings.ctx, threads=settings.threads, mtp=mtp, **sizes)
    check_memory([model], plan.total_session_bytes, settings, weights_bytes=plan.weights_bytes, n_ctx=settings.ctx)
    return model.session(
        n_ctx=settings.ctx,
        threads=settings.threads,
        affinity=settings.affinity,
        numa="interleave" if settings.numa == "interleave" else "none",
        qat=not settings.no_qat,
        mtp=mtp,
        activations="quantized" if settings.activations == "quantized" else "float32",
        **sizes,
    )

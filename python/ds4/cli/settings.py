"""What the options of ``ds4 chat`` say, and which of them go together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import click
from click.core import ParameterSource

from ds4 import Draft
from ds4.costs import MOST_DEPTH
from ds4.steering import MAX_DIRECTIONS

from .options import DEFAULT_CONTEXT, DEFAULT_TOKENS, OPTIONS, SECTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values of the option table (see `options.OPTIONS`)."""

    model: Path | None = None
    mtp: Path | None = None
    mtp_draft: str | None = None
    mtp_margin: float = 0.0
    backend: str = "auto"
    cpu: bool = False
    threads: int | None = None
    affinity: str = "none"
    numa: str = "none"
    check: bool = False
    force_memory: bool = False
    simulate_memory: int | None = None
    expert_cache: int | str | None = None
    ssd_streaming: bool = False
    read_depth: int | None = None
    cold: bool = False
    ctx: int = DEFAULT_CONTEXT
    no_qat: bool = False
    activations: str = "quantized"
    prompt: str | None = None
    prompt_file: Path | None = None
    system: str | None = None
    think: bool = False
    think_max: bool = False
    nothink: bool = False
    tokens: int = DEFAULT_TOKENS
    temp: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.05
    seed: int | None = None
    dir_steering_file: tuple[Path, ...] = ()
    dir_steering_ffn: tuple[float, ...] = ()
    dir_steering_attn: tuple[float, ...] = ()
    power: int = 100
    as_json: bool = False
    dump_tokens: bool = False
    dump_logits: Path | None = None
    dump_logprobs: Path | None = None
    logprobs_top_k: int | None = None
    perplexity_file: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself; every program makes its settings from its options."""
        if self.ssd_streaming and self.expert_cache == "off":
            raise click.UsageError("--ssd-streaming and --expert-cache off contradict each other")
        if self.cold and self.cache is None:
            raise click.UsageError("--cold has no effect without --expert-cache or --ssd-streaming")
        if self.read_depth is not None and self.cache is None:
            raise click.UsageError("--read-depth has no effect without --expert-cache or --ssd-streaming")
        n_files = len(self.dir_steering_file)
        if n_files > MAX_DIRECTIONS:
            raise click.UsageError(f"{n_files} files for --dir-steering-file; at most {MAX_DIRECTIONS} act at a time")
        for option, scales in (
            ("--dir-steering-ffn", self.dir_steering_ffn),
            ("--dir-steering-attn", self.dir_steering_attn),
        ):
            if scales and not n_files:
                raise click.UsageError(f"{option} has no effect without --dir-steering-file")
            if len(scales) not in (0, 1, n_files):
                raise click.UsageError(f"{option} is given {len(scales)} times for {n_files} files")

    @property
    def cache(self) -> int | str | None:
        """Memory for streamed experts in bytes, or "auto"; None when nothing is streamed."""
        asked = self.expert_cache if self.expert_cache is not None else "auto" if self.ssd_streaming else "off"
        return None if asked == "off" else asked

    @property
    def mode(self) -> str:
        """How to think: "think", "think-max" or "nothink"."""
        return "nothink" if self.nothink else "think-max" if self.think_max else "think"

    @property
    def temperature(self) -> float:
        """The temperature to use: the tiny model's few facts come out right when it takes its best token.

        An option that only sampling can follow asks for sampling.
        """
        if self.temp is not None:
            return self.temp
        untouched = (self.seed, self.top_k, self.top_p, self.min_p) == (None, 0, 1.0, 0.05)
        return 0.0 if self.model is None and untouched else 1.0

    @property
    def draft(self) -> Draft | None:
        """How to guess tokens, if at all."""
        how = self.mtp_draft or ("auto" if self.mtp is not None else "off")
        if how == "off":
            return None
        if how == "auto":
            return Draft(depth=MOST_DEPTH, margin=self.mtp_margin)
        return Draft(depth=int(how), margin=self.mtp_margin, auto=False)

    @property
    def has_prompt(self) -> bool:
        """Whether a prompt was given."""
        return self.prompt is not None or self.prompt_file is not None


_DRAFTS = {"mtp_draft", "mtp_margin"}
_MODEL, _SESSION, _PROMPT = (set(SECTIONS[name]) - _DRAFTS for name in ("Model", "Session", "Prompt"))
_CHAT = _MODEL | _DRAFTS | _SESSION | {"system", "think", "think_max", "nothink", "power"}
_CHAT |= set(SECTIONS["Sampling"]) | set(SECTIONS["Steering"])
_TEXT = {"prompt", "prompt_file"}

_USED: dict[str, Collection[str]] = {
    "dump_tokens": {"model", "dump_tokens", "json", *_TEXT},
    "dump_logits": {"dump_logits", *_MODEL, *_SESSION, *_PROMPT},
    "dump_logprobs": {"dump_logprobs", "logprobs_top_k", "tokens", *_MODEL, *_SESSION, *_PROMPT},
    "perplexity_file": {"perplexity_file", "tokens", "json", *_MODEL, *_SESSION},
    "prompt": {"json", *_CHAT, *_TEXT},
    "repl": _CHAT,
}
"""For every kind of work the options that have an effect on it; the others are refused, not ignored."""

_WORK = {
    "dump_tokens": "with --dump-tokens",
    "dump_logits": "with --dump-logits",
    "dump_logprobs": "with --dump-logprobs",
    "perplexity_file": "with --perplexity-file",
    "prompt": "here; it belongs to --dump-logprobs",
    "repl": "without a prompt (-p)",
}


def kind_of_work(ctx: click.Context, settings: Settings) -> str:
    """Return what the options ask for, a key of `_USED`.

    Raises
    ------
    click.UsageError
        Options contradict each other, miss another one, or would have no effect.
    """
    given = {name for name in OPTIONS if ctx.get_parameter_source(_parameter(name)) is ParameterSource.COMMANDLINE}
    _one_of(given, "prompt", "prompt_file")
    _one_of(given, "think", "think_max", "nothink")
    _one_of(given, "dump_tokens", "dump_logits", "dump_logprobs", "perplexity_file")
    if settings.cpu and settings.backend not in ("auto", "cpu"):
        raise click.UsageError(f"--cpu and --backend {settings.backend} contradict each other", ctx)
    dumps = [name for name in ("dump_tokens", "dump_logits", "dump_logprobs", "perplexity_file") if name in given]
    kind = dumps[0] if dumps else "prompt" if settings.has_prompt else "repl"
    if "mtp_margin" in given and settings.draft is None:
        raise click.UsageError("--mtp-margin has no effect without --mtp-draft", ctx)
    if kind.startswith("dump_") and not settings.has_prompt:
        raise click.UsageError(f"{flag(kind)} needs a prompt (-p or --prompt-file)", ctx)
    useless = sorted(given - set(_USED[kind]))
    if useless:
        raise click.UsageError(f"{flag(useless[0])} has no effect {_WORK[kind]}", ctx)
    return kind


def flag(name: str) -> str:
    """Return an option as users write it, in its long form."""
    declarations, _ = OPTIONS[name]
    return next(d for d in declarations if d.startswith("--"))


def _parameter(name: str) -> str:
    return "as_json" if name == "json" else name


def _one_of(given: Collection[str], *names: str) -> None:
    found = [flag(name) for name in names if name in given]
    if len(found) > 1:
        raise click.UsageError(f"{found[0]} and {found[1]} cannot be given together")

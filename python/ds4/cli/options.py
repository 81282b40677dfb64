"""The one table of options: every program takes its options from here, so that a name means the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ds4.costs import MOST_DEPTH

from .completion import complete_model
from .memory import parse_size
from .user import model_or_default

F = TypeVar("F", bound=Callable[..., Any])

MAX_CONTEXT = 1_048_576
DEFAULT_CONTEXT = 32_768
DEFAULT_TOKENS = 50_000
MAX_TOP_LOGPROBS = 128


class SizeType(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.4 on
    """A number of bytes: 24GiB, 500M, 1048576."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a size, or fail as a usage error."""
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class CacheType(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Memory for streamed experts: a size, auto or off."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Read a size or a word, or fail as a usage error."""
        if isinstance(value, int) or value in ("auto", "off"):
            return value  # type: ignore[no-any-return]
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(f"{error}, or auto or off", param, ctx)


class Whole(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A whole number within bounds."""

    name = "number"

    def __init__(self, low: int, high: int | None = None) -> None:
        self.low, self.high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a number, or fail as a usage error."""
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if number < self.low or (self.high is not None and number > self.high):
            upper = "" if self.high is None else f" and at most {self.high}"
            self.fail(f"{number} must be at least {self.low}{upper}", param, ctx)
        return number


class AffinityType(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Where threads run: none, auto, or a list of processors; the machine decides whether it has them."""

    name = "processors"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the form, or fail as a usage error."""
        text = str(value)
        if not re.fullmatch(r"none|auto|[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*", text):
            self.fail(f"{text!r} is neither none, auto nor a list of processors such as 0-3,8", param, ctx)
        return text


class DraftType(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """How many tokens to guess: off, auto, or a number."""

    name = "drafts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the word, or fail as a usage error."""
        text = str(value)
        if text not in ("off", "auto") and not re.fullmatch(f"[1-{MOST_DEPTH}]", text):
            self.fail(f"{text!r} is neither off, auto nor a number from 1 to {MOST_DEPTH}", param, ctx)
        return text


class FiniteFloat(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A float within bounds; NaN fails every bound."""

    name = "number"

    def __init__(self, low: float, high: float, *, above: bool = False) -> None:
        self.low, self.high, self.above = low, high, above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a number, or fail as a usage error."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)
        inside = self.low < number <= self.high if self.above else self.low <= number <= self.high
        if not inside:
            first = "above" if self.above else "at least"
            self.fail(f"{value} must be {first} {self.low:g} and at most {self.high:g}", param, ctx)
        return number


_FILE = click.Path(path_type=Path)  # existence is checked where the file is opened: one message for all faults


OPTIONS: dict[str, tuple[Sequence[str], Mapping[str, Any]]] = {
    # -- the model
    "model": (("-m", "--model"), {
        "type": _FILE, "metavar": "FILE", "callback": model_or_default, "shell_complete": complete_model,
        "help": "Model, a GGUF file. Default: that of ds4 default, else the tiny model of the package (-m tiny).",
    }),
    "mtp": (("--mtp",), {
        "type": _FILE, "metavar": "FILE", "shell_complete": complete_model,
        "help": "Separate file with the MTP block, which guesses tokens (see --mtp-draft).",
    }),
    "mtp_draft": (("--mtp-draft",), {
        "type": DraftType(), "metavar": "N",
        "help": "Guess tokens with the MTP block, to be faster; the answer is the same. N of 1 to 5 at a time; auto: "
        "as many as pays; off. Default: auto with --mtp, else off.",
    }),
    "mtp_margin": (("--mtp-margin",), {
        "type": FiniteFloat(0.0, 1000.0), "metavar": "F", "default": 0.0, "show_default": True,
        "help": "Guess no further where the best logit is less than this above the second best.",
    }),
    "backend": (("--backend",), {
        "metavar": "NAME", "default": "auto", "show_default": True,
        "help": "Where to compute: auto or cpu.",
    }),
    "cpu": (("--cpu",), {
        "is_flag": True,
        "help": "Same as --backend cpu.",
    }),
    "threads": (("-t", "--threads"), {
        "type": Whole(1, 256), "metavar": "N",
        "help": "CPU threads, at most 256. Default: one per core that this process may use.",
    }),
    "affinity": (("--affinity",), {
        "type": AffinityType(), "metavar": "WHERE", "default": "none", "show_default": True,
        "help": "Processors of the threads: none (the system chooses), auto (one core each), or a list as 0-3,8.",
    }),
    "numa": (("--numa",), {
        "type": click.Choice(["none", "interleave"]), "default": "none", "show_default": True,
        "help": "Spread the memory over all NUMA nodes, for machines with several sockets.",
    }),
    "check": (("--check",), {
        "is_flag": True,
        "help": "Look for NaN and infinity in every weight before starting.",
    }),
    "force_memory": (("--force-memory",), {
        "is_flag": True,
        "help": "Run a model that does not fit into memory.",
    }),
    "expert_cache": (("--expert-cache",), {
        "type": CacheType(), "metavar": "SIZE|auto|off",
        "help": "For models larger than the memory: read routed experts from the file when they are needed, and keep "
        "so much of them in memory; auto: as much as there is room for. Default: off.",
    }),
    "ssd_streaming": (("--ssd-streaming",), {
        "is_flag": True,
        "help": "Same as --expert-cache auto.",
    }),
    "read_depth": (("--read-depth",), {
        "type": Whole(1, 1024), "metavar": "N",
        "help": "Reads of streamed experts under way at a time. Default: what the disk was found to be fastest with, "
        "which is measured once for each file system.",
    }),
    "cold": (("--cold",), {
        "is_flag": True,
        "help": "Begin with an empty expert cache, and do not remember which experts were used.",
    }),
    "simulate_memory": (("--simulate-memory",), {
        "type": SizeType(), "metavar": "SIZE",
        "help": "Decide as if that much memory were available.",
    }),
    # -- the session
    "ctx": (("-c", "--ctx"), {
        "type": Whole(1, MAX_CONTEXT), "metavar": "N", "default": DEFAULT_CONTEXT, "show_default": True,
        "help": "Positions of the context: prompt and reply together.",
    }),
    "no_qat": (("--no-qat",), {
        "is_flag": True,
        "help": "Leave out the FP8 and FP4 rounding that the model was trained with.",
    }),
    "activations": (("--activations",), {
        "type": click.Choice(["float32", "quantized"]), "default": "quantized", "show_default": True,
        "help": "Activations in products with quantized weights: rounded to 8 bits, or exact and slow.",
    }),
    # -- the prompt
    "prompt": (("-p", "--prompt"), {
        "metavar": "TEXT",
        "help": "Answer this and exit. A text that begins with the BOS token is taken as an already rendered chat.",
    }),
    "prompt_file": (("--prompt-file",), {
        "type": _FILE, "metavar": "FILE",
        "help": "Read the prompt from a file (- is standard input).",
    }),
    "system": (("-sys", "--system"), {
        "metavar": "TEXT",
        "help": "System text.",
    }),
    "think": (("--think",), {
        "is_flag": True,
        "help": "Reason before answering (the default).",
    }),
    "think_max": (("--think-max",), {
        "is_flag": True,
        "help": "Reason at length; needs -c 393216 or more.",
    }),
    "nothink": (("--nothink",), {
        "is_flag": True,
        "help": "Answer at once.",
    }),
    # -- sampling
    "tokens": (("-n", "--tokens"), {
        "type": Whole(1), "metavar": "N", "default": DEFAULT_TOKENS, "show_default": True,
        "help": "Most tokens to generate; the context is a limit too.",
    }),
    "temp": (("--temp",), {
        "type": FiniteFloat(0.0, 100.0), "metavar": "T",
        "help": "Temperature; 0 always takes the best token. Default: 1; with the tiny model of the package 0, "
        "unless another sampling option is given.",
    }),
    "top_k": (("--top-k",), {
        "type": Whole(0, 1024), "metavar": "N", "default": 0, "show_default": True,
        "help": "Draw from the N best tokens only; 0 from all.",
    }),
    "top_p": (("--top-p",), {
        "type": FiniteFloat(0.0, 1.0, above=True), "metavar": "P", "default": 1.0, "show_default": True,
        "help": "Draw from the best tokens that make up this share.",
    }),
    "min_p": (("--min-p",), {
        "type": FiniteFloat(0.0, 1.0), "metavar": "P", "default": 0.05, "show_default": True,
        "help": "Drop tokens less likely than this share of the best one.",
    }),
    "seed": (("--seed",), {
        "type": Whole(0, (1 << 64) - 1), "metavar": "N",
        "help": "Seed of the drawing; random by default.",
    }),
    # -- steering
    "dir_steering_file": (("--dir-steering-file",), {
        "type": _FILE, "metavar": "FILE", "multiple": True,
        "help": "Directions to steer by (ds4 steer build); can be repeated.",
    }),
    "dir_steering_ffn": (("--dir-steering-ffn",), {
        "type": FiniteFloat(-100.0, 100.0), "metavar": "F", "multiple": True,
        "help": "Their scale on the outputs of the FFN: one for all files, or one for each. Default: 1 if the file was "
        "made there or does not say, else 0.",
    }),
    "dir_steering_attn": (("--dir-steering-attn",), {
        "type": FiniteFloat(-100.0, 100.0), "metavar": "F", "multiple": True,
        "help": "Their scale on the outputs of attention. Default: 1 if the file was made there, else 0.",
    }),
    # -- pace
    "power": (("--power",), {
        "type": Whole(1, 100), "metavar": "PERCENT", "default": 100, "show_default": True,
        "help": "Rest between pieces of the work, so that it takes that share of the time. The output is the same.",
    }),
    # -- output
    "json": (("--json", "as_json"), {
        "is_flag": True,
        "help": "Print one JSON object instead of text.",
    }),
    # -- diagnostics
    "dump_tokens": (("--dump-tokens",), {
        "is_flag": True,
        "help": "Print the tokens of the prompt text as it stands, and exit.",
    }),
    "dump_logits": (("--dump-logits",), {
        "type": _FILE, "metavar": "FILE",
        "help": "Write the logits after the prompt as JSON (- is standard output), and exit.",
    }),
    "dump_logprobs": (("--dump-logprobs",), {
        "type": _FILE, "metavar": "FILE",
        "help": "Write the steps of a greedy answer with the best alternatives as JSON (- is standard output), "
        "and exit.",
    }),
    "logprobs_top_k": (("--logprobs-top-k",), {
        "type": Whole(1, MAX_TOP_LOGPROBS), "metavar": "N", "default": None,
        "help": "Alternatives per step of --dump-logprobs.  [default: 20]",
    }),
    "perplexity_file": (("--perplexity-file",), {
        "type": _FILE, "metavar": "FILE",
        "help": "Print how well the model predicts a text, and exit.",
    }),
}  # fmt: skip

DEVICE = ("backend", "cpu", "threads", "affinity", "numa")
"""What computes, and where its threads are."""
MEMORY = ("force_memory", "simulate_memory", "expert_cache", "ssd_streaming", "read_depth", "cold")
"""What of a model is in memory."""

SECTIONS: dict[str, tuple[str, ...]] = {
    "Model": ("model", "mtp", "mtp_draft", "mtp_margin", *DEVICE, "check", *MEMORY),
    "Session": ("ctx", "no_qat", "activations"),
    "Prompt": ("prompt", "prompt_file", "system", "think", "think_max", "nothink"),
    "Sampling": ("tokens", "temp", "top_k", "top_p", "min_p", "seed"),
    "Steering": ("dir_steering_file", "dir_steering_ffn", "dir_steering_attn"),
    "Pace": ("power",),
    "Output": ("json",),
    "Diagnostics": ("dump_tokens", "dump_logits", "dump_logprobs", "logprobs_top_k", "perplexity_file"),
}
"""How the help groups the options."""


model_of_state_option = click.option(
    "-m",
    "--model",
    type=_FILE,
    metavar="FILE",
    shell_complete=complete_model,
    help="The model file that the state is of. Default: the tiny model.",
)
"""Decorates a command that works on a state of one certain model, whatever the default is."""

report_option = click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a report as JSON (- is standard output).",
)
"""Decorates a command with the option of its report; the argument is `json_file`."""


def take(*names: str) -> Callable[[F], F]:
    """Decorate a command with options of the table, in the given order."""

    def decorate(function: F) -> F:
        for name in reversed(names):
            declarations, settings = OPTIONS[name]
            function = click.option(*declarations, **settings)(function)
        return function

    return decorate

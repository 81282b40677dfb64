"""``ds4 bench``: how fast a model runs on this machine, and where the time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from . import bench_compare, bench_drafts, bench_micro, bench_sweep, bench_tests
from .options import MAX_CONTEXT, FiniteFloat, Whole, report_option, take

_FILE = click.Path(path_type=Path)

_HELP = """\b
Examples:
  ds4 bench                                          the tiny model of the package
  ds4 bench -m flash.gguf --csv speed.csv --plot speed.svg
  ds4 bench -m flash.gguf --ctx-max 131072 --step-mul 2 --repeats 3 --csv speed.csv
  ds4 bench --compare old.csv new.csv --plot both.svg
  ds4 bench -m flash.gguf --tests pp128,pp512,tg32 --reps 5
  ds4 bench -m flash.gguf --tests tg32@1024,tg32@16384   decode behind long contexts
  ds4 bench -m flash.gguf --profile --plot parts.svg     where the time goes
  ds4 bench -m flash.gguf --micro -t 1                   the kernels one by one
  ds4 bench -m flash.gguf --mtp mtp.gguf --drafts        does guessing tokens pay here?

Without --tests it sweeps: one text is computed piece by piece, and at every frontier from --ctx-start to --ctx-max
the speed of the new piece and of --gen-tokens decoded tokens is measured. The table is CSV, a row as soon as it is
known.

With --tests (or --profile) it runs single tests with random tokens: ppN is the prefill of a prompt of N tokens, tgN
are N tokens decoded one by one. With @DEPTH the context holds DEPTH positions before; they are filled with random
numbers instead of being computed, which costs the same afterwards. Each test is warmed up, then run --reps times; the
table gives the median and the extremes of tokens a second.

With --micro the parts of the layers are timed with 1, 12 and 128 tokens, under every CPU variant that this machine can
run (with --isa that one), which shows what each kernel reaches.

With --drafts batches of a token and 1 to 5 guesses, and the guesses of the MTP block, are timed against a token alone:
`cost` is how many tokens' time a batch takes, `bytes` how many times the bytes it reads, `pays from` the share of
guesses that must be right, `at most` the gain when all are.

With --compare nothing is measured: two tables are held against each other. Give it once for every pair of files;
pairs measured in alternating order show how large the noise is."""

_TESTS = ("tests", "ctx", "seed", "bandwidth", "profile", "jsonl")
_SWEEP = ("prompt_file", "chat_prompt_file", "system", "ctx_start", "ctx_max", "ctx_alloc", "step_incr", "step_mul",
          "gen_tokens", "csv", "dump_frontier_logits_dir", "cold")  # fmt: skip
_COMPARE = ("compare", "plot", "json_file")
_NOT_MICRO = ("plot", "chunk", "expert_profile")
_NOT_DRAFTS = ("plot", "expert_profile")


@click.command("bench", help=_HELP, short_help="Measure speed, and where the time goes.")
@take("model")
@click.option("--prompt-file", type=_FILE, metavar="FILE", help="Text to compute, at least --ctx-max tokens. Default: "
              "a text made by rules.")  # fmt: skip
@click.option("--chat-prompt-file", type=_FILE, metavar="FILE", help="The same as one user message, without thinking.")
@take("system")
@click.option("--ctx-start", type=Whole(1, MAX_CONTEXT), default=2048, show_default=True, metavar="N",
              help="First frontier, in tokens.")  # fmt: skip
@click.option("--ctx-max", type=Whole(1, MAX_CONTEXT), metavar="N",
              help=f"Last frontier.  [default: {bench_sweep.CTX_MAX}; with the tiny model of the package "
              f"{bench_sweep.TINY_CTX_MAX}]",
)  # fmt: skip
@click.option("--ctx-alloc", type=Whole(1, MAX_CONTEXT), metavar="N",
              help="Positions of the context. Default: --ctx-max + --gen-tokens + 1.")  # fmt: skip
@click.option("--step-incr", type=Whole(1, MAX_CONTEXT), default=2048, show_default=True, metavar="N",
              help="Tokens from one frontier to the next.")  # fmt: skip
@click.option("--step-mul", type=FiniteFloat(1.0, 1e6), default=1.0, show_default=True, metavar="F",
              help="Above 1: factor from one frontier to the next, instead of --step-incr.")  # fmt: skip
@click.option("--gen-tokens", type=Whole(0, MAX_CONTEXT), default=128, show_default=True, metavar="N",
              help="Tokens to decode at each; 0 measures the prefill alone.")  # fmt: skip
@click.option("--csv", type=_FILE, metavar="FILE", help="Where the table goes. Default: standard output.")
@click.option("--dump-frontier-logits-dir", type=_FILE, metavar="DIR",
              help="Write the logits at every frontier as JSON into this folder, which must exist.")  # fmt: skip
@click.option("--cold", is_flag=True,
              help="No warm-up before the first frontier, and with --expert-cache an empty cache.")  # fmt: skip
@click.option("--compare", type=_FILE, nargs=2, multiple=True, metavar="A.csv B.csv",
              help="Compare tables: how much faster is B?")  # fmt: skip
@click.option("--micro", is_flag=True, help="Time the kernels one by one instead.")
@click.option("--drafts", is_flag=True, help="Time batches of a token and guesses instead (see ds4 --mtp-draft).")
@take("mtp")
@click.option(
    "--tests", metavar="LIST", help=f"Run these single tests instead.  [default with --profile: {bench_tests.DEFAULT}]"
)
@click.option(
    "--reps", "--repeats", "reps", type=Whole(1, 1000), metavar="N",
    help="Timed runs of each frontier or test.  [default: 1; with --tests or --micro 3]",
)  # fmt: skip
@click.option(
    "-c", "--ctx", type=Whole(1, MAX_CONTEXT), metavar="N",
    help="Positions of the context for --tests. Default: what the tests need.",
)  # fmt: skip
@click.option("--chunk", type=Whole(1, 4096), metavar="N", help="Most tokens computed together. Default: the engine's.")
@click.option(
    "--seed", type=Whole(0, (1 << 64) - 1), default=1, show_default=True, metavar="N",
    help="Of the random tokens of --tests.",
)  # fmt: skip
@take("backend", "cpu", "threads", "affinity", "numa", "no_qat", "activations", "force_memory", "simulate_memory")
@take("expert_cache", "ssd_streaming", "read_depth")
@click.option("--isa", metavar="NAME", help="Use at most this CPU kernel variant: base, avx2, avx512, ...")
@click.option(
    "--bandwidth",
    type=FiniteFloat(0.0, 1e6, above=True),
    metavar="GB/S",
    help="Bandwidth of the memory, with --tests; shows how fast it lets a token be decoded, and what share of that was "
    "reached.",
)
@click.option("--warm-weights", is_flag=True, help="Read the whole model file first.")
@click.option(
    "--profile", is_flag=True, help="Show the time of every part of the layers, in one more run of each test."
)
@click.option(
    "--plot",
    type=_FILE,
    metavar="FILE",
    help="Draw the speeds (with --tests the parts as stacked bars; implies --profile), .svg or .png; needs matplotlib.",
)
@click.option("--expert-profile", type=_FILE, metavar="FILE",
              help="With --expert-cache: draw which experts were selected, .svg or .png, and write FILE's name with "
              ".json: counts, and how caches of several sizes and policies would have done.")  # fmt: skip
@click.option("--jsonl", is_flag=True, help="With --tests, print one JSON object a run instead of the table.")
@report_option
@click.pass_context
def command(context: click.Context, /, **values: Any) -> int:
    """Run the command."""
    given = {name for name in values if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if "compare" in given:
        _refuse(context, given - set(_COMPARE), "with --compare: nothing is measured")
        return bench_compare.run(values["compare"], values["plot"], values["json_file"])
    if "drafts" in given:
        _refuse(context, given & {*_SWEEP, *_TESTS, *_NOT_DRAFTS, "micro"}, "with --drafts")
        values = {
            k: v for k, v in values.items() if k not in (*_SWEEP, *_TESTS, *_NOT_DRAFTS, "compare", "micro", "drafts")
        }
        return bench_drafts.run(**{**values, "reps": values["reps"] or 15})
    _refuse(context, given & {"mtp"}, "without --drafts")
    del values["drafts"], values["mtp"]
    if "micro" in given:
        _refuse(context, given & {*_SWEEP, *_TESTS, *_NOT_MICRO}, "with --micro")
        values = {k: v for k, v in values.items() if k not in (*_SWEEP, *_TESTS, *_NOT_MICRO, "compare", "micro")}
        return bench_micro.run(**{**values, "reps": values["reps"] or 3})
    del values["micro"]
    if given & {"tests", "profile"}:
        _refuse(context, given & set(_SWEEP), "with --tests or --profile; it belongs to the sweep")
        values = {k: v for k, v in values.items() if k not in (*_SWEEP, "compare")}
        return bench_tests.run(
            **{**values, "tests": values["tests"] or bench_tests.DEFAULT, "reps": values["reps"] or 3}
        )
    _refuse(context, given & set(_TESTS), "in a sweep; it belongs to --tests, as in --tests pp512,tg32")
    values = {k: v for k, v in values.items() if k not in (*_TESTS, "compare")}
    return bench_sweep.run(**{**values, "reps": values["reps"] or 1})


def _refuse(ctx: click.Context, useless: set[str], why: str) -> None:
    """Refuse options that would have no effect."""
    for parameter in ctx.command.params:
        if parameter.name in useless:
            option = next(o for o in parameter.opts if o.startswith("--"))
            raise click.UsageError(f"{option} has no effect {why}", ctx)

"""``ds4 chat``, which is also ``ds4`` without a command: one answer, a conversation, or a diagnostic."""

from __future__ import annotations

from typing import Any

import click

from . import diagnostics, oneshot, repl
from .opening import check_text
from .options import OPTIONS, SECTIONS, take
from .settings import Settings, kind_of_work

EXAMPLES = """\b
Examples:
  ds4 -m flash.gguf                        a conversation
  ds4 -m flash.gguf -p "Why is the sky blue?"
  ds4 -m flash.gguf --prompt-file question.txt --nothink --temp 0
  ds4 -m flash.gguf -p "Name a prime" --json
  ds4 -m flash.gguf -p "Hello" --dump-logprobs steps.json -n 16

The answer goes to standard output; progress and speeds go to standard error, and so does the reasoning when
standard output is not a terminal."""


def write_sections(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the options of the table, section by section."""
    by_name = {p.name: p for p in command.params}
    for title, names in SECTIONS.items():
        with formatter.section(title):
            records = [by_name["as_json" if n == "json" else n].get_help_record(ctx) for n in names]
            formatter.write_dl([r for r in records if r is not None])


class _ChatCommand(click.Command):
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(self, ctx, formatter)
        with formatter.section("Other"):
            formatter.write_dl([("-h, --help", "Show this text.")])


@click.command("chat", cls=_ChatCommand, help=EXAMPLES, short_help="Chat, or answer one prompt (the default).")
@take(*OPTIONS)
@click.argument("words", nargs=-1, metavar="")
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...], **values: Any) -> int:
    """Run the command."""
    if words:
        assert ctx.parent is not None and isinstance(ctx.parent.command, click.Group)
        if words[0] in ctx.parent.command.commands:
            raise click.UsageError(f"the command comes first: ds4 {words[0]} ...", ctx)
        raise click.UsageError(f"unexpected {words[0]!r}; a prompt is given with -p TEXT", ctx)
    settings = Settings(**values)
    check_text(settings.prompt or "", "prompt")
    check_text(settings.system or "", "system text")
    check_text(settings.backend, "name of the backend")
    kind = kind_of_work(ctx, settings)
    if kind == "repl":
        return repl.run(settings)
    if kind == "prompt":
        return oneshot.run(settings)
    return diagnostics.WORK[kind](settings)

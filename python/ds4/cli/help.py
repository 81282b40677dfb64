"""``ds4 help``: everything on one page, or the help of a command."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

import ds4

_HELP = """\b
Examples:
  ds4 help                                 the whole program on one page
  ds4 help download                        the same as ds4 download -h
  ds4 help kv export

Without a command: what there is, by what it is for, the files that ds4 uses, the variables that it reads, and its
exit codes."""

GROUPS: dict[str, tuple[str, ...]] = {
    "To talk with a model": ("chat", "server"),
    "To get one, and to know what runs here": ("download", "default", "doctor", "inspect"),
    "To make one in other types": ("convert", "quantize", "imatrix", "splice"),
    "To measure it": ("bench", "eval", "score"),
    "To steer it, and to look inside": ("steer", "tokens", "kv"),
    "The program itself": ("completion", "help"),
}
"""The commands, by what they are for."""

_FILES = (
    ("~/.ds4/settings.json", "the default model (ds4 default)"),
    ("~/.ds4/models/", "what ds4 download gets"),
    ("~/.ds4/chats/", "saved conversations, with the states of their sessions in states/"),
    ("~/.ds4_history", "what was typed in conversations"),
    ("~/.cache/ds4/", "which experts are used often, and the states that a server keeps if it is told to"),
)
_VARIABLES = (
    ("HF_TOKEN, HF_ENDPOINT", "token and address of the hub"),
    ("NO_COLOR, TERM=dumb", "no attributes in the text; dumb: nothing is redrawn"),
    ("XDG_CACHE_HOME", "in place of ~/.cache"),
)
_EXIT_CODES = (
    ("0", "done"),
    ("1", "the work failed; one message says why"),
    ("2", "the command line is wrong"),
    ("130", "ended by Ctrl-C"),
)


def _complete_command(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(n) for names in GROUPS.values() for n in names if n.startswith(incomplete)]


@click.command("help", help=_HELP, short_help="Everything on one page, or the help of a command.")
@click.argument("words", nargs=-1, metavar="[COMMAND...]", shell_complete=_complete_command)
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...]) -> int:
    """Run the command."""
    parent = ctx.parent
    assert parent is not None and isinstance(parent.command, click.Group)
    if not words:
        click.echo(overview(parent).rstrip("\n"))
        return 0
    found: click.Command = parent.command
    here = parent
    for word in words:
        below = found.commands.get(word) if isinstance(found, click.Group) else None
        if below is None:
            raise click.UsageError(f"there is no command ds4 {' '.join(words)}; ds4 help lists all", ctx)
        here = click.Context(below, info_name=word, parent=here, max_content_width=parent.max_content_width)
        found = below
    click.echo(found.get_help(here))
    return 0


def overview(ctx: click.Context) -> str:
    """Return the page about the whole program."""
    program = ctx.command
    assert isinstance(program, click.Group)
    formatter = ctx.make_formatter()
    formatter.write(f"ds4 {ds4.__version__} - run DeepSeek V4 on your own machine\n\n")
    formatter.write_usage("ds4", "[OPTIONS]", prefix="Usage: ")
    formatter.write_usage("ds4", "COMMAND [ARGUMENTS]", prefix="       ")
    for title, names in GROUPS.items():
        with formatter.section(title):
            formatter.write_dl([row for name in names for row in _rows(name, program.commands[name])])
    for title, rows in (("Files", _FILES), ("Variables", _VARIABLES), ("Exit codes", _EXIT_CODES)):
        with formatter.section(title):
            formatter.write_dl(list(rows))
    with formatter.section("More"):
        formatter.write_dl([
            ("ds4 -h", "the options of a conversation or a single answer"),
            ("ds4 help COMMAND", "examples, then the options of a command"),
            ("-m FILE", "the model, wherever one is needed; without it the default one"),
        ])  # fmt: skip
    return formatter.getvalue()


def _rows(name: str, command: click.Command) -> list[tuple[str, str]]:
    """Return the line of a command, and those of the commands below it."""
    out = [(name, command.get_short_help_str(200))]
    if isinstance(command, click.Group):
        out += [(f"  {name} {below}", c.get_short_help_str(200)) for below, c in command.commands.items()]
    return out

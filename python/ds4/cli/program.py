"""The commands of ``ds4``, and what becomes of their errors.

An error that a user can cause is one clear message on stderr; a traceback means a bug in ds4.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

import ds4

from . import (
    bench,
    chat,
    completion,
    convert,
    doctor,
    download,
    eval,
    help,
    imatrix,
    inspect,
    kv,
    quantize,
    score,
    server,
    splice,
    steer,
    tokens,
)
from .terminal import describe, end_output, note, prepare_streams, tell

EXIT_FAILURE, EXIT_USAGE = 1, 2
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)

_HELP = """\b
Examples:
  ds4                                      chat with the tiny model of the package
  ds4 -m flash.gguf                        chat with DeepSeek V4 Flash
  ds4 -m flash.gguf -p "Why is the sky blue?"
  answer=$(ds4 -m flash.gguf --nothink -p "One word for a small river")
  ds4 doctor                               what this machine can run
  ds4 download q2                          get DeepSeek V4 Flash, which ds4 opens from then on
  ds4 help                                 everything on one page

Without a command ds4 chats; the options below belong to that. The answer goes to standard output; progress and
speeds go to standard error, and so does the reasoning when standard output is not a terminal."""


_UNNAMED = "ds4.unnamed"  # "chat" was not typed


class _Program(click.Group):
    """A group whose command is "chat" when the first word is not the name of another one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing and not args:
            return super().parse_args(ctx, args)  # a first word is completed: it may be a command or an option
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help", "--version")):
            args = ["chat", *args]
            ctx.meta[_UNNAMED] = True
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands, and the options of the default one."""
        return [*super().shell_complete(ctx, incomplete), *chat.command.shell_complete(ctx, incomplete)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands first, then the options of the default one."""
        self.format_commands(ctx, formatter)
        chat.write_sections(chat.command, ctx, formatter)
        with formatter.section("Other"):
            formatter.write_dl([("-h, --help", "Show this text."), ("--version", "Show the version.")])

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both forms of use."""
        formatter.write_usage(ctx.command_path, "[OPTIONS]")
        formatter.write_usage(ctx.command_path, "COMMAND [ARGUMENTS]", prefix="       ")


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        print(f"ds4 {ds4.__version__} (core {ds4.native_version()}, cpu variant {ds4.cpu_isa()})")
        ctx.exit()


@click.group(
    cls=_Program, help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def program() -> None:
    """Run DeepSeek V4 on your own machine."""


program.add_command(bench.command)
program.add_command(chat.command)
program.add_command(completion.command)
program.add_command(convert.command)
program.add_command(download.default_command)
program.add_command(doctor.command)
program.add_command(download.command)
program.add_command(eval.command)
program.add_command(help.command)
program.add_command(imatrix.command)
program.add_command(inspect.command)
program.add_command(kv.command)
program.add_command(quantize.command)
program.add_command(score.command)
program.add_command(server.command)
program.add_command(splice.command)
program.add_command(steer.command)
program.add_command(tokens.command)


def run(argv: Sequence[str] | None) -> int:
    """Run ``ds4`` and return its exit code; Ctrl-C is the caller's.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C.
    """
    prepare_streams()
    try:
        result = program.main(args=None if argv is None else list(argv), prog_name="ds4", standalone_mode=False)
        lost = end_output()
        if isinstance(lost, BrokenPipeError):
            return EXIT_FAILURE
        if lost is not None:
            note(f"standard output: {describe(lost)}")
            return EXIT_FAILURE
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.UsageError as error:
        _print_usage_error(error)
        return EXIT_USAGE
    except click.ClickException as error:
        note(error.format_message())
        return EXIT_FAILURE
    except click.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        end_output()  # whoever reads has closed: nothing to tell
        return EXIT_FAILURE
    except (ds4.DS4Error, OSError, ValueError, MemoryError) as error:
        lost = end_output()
        if lost is None and isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            lost = error  # files are named by whoever writes them
        note(describe(error) if lost is None else f"standard output: {describe(lost)}")
        return EXIT_FAILURE
    return result if isinstance(result, int) else 0


def _print_usage_error(error: click.UsageError) -> None:
    note(error.format_message())
    ctx = error.ctx
    path = ctx.command_path if ctx is not None and not ctx.meta.get(_UNNAMED) else "ds4"
    tell(f"{path} -h lists the options\n")

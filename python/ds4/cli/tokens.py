"""``ds4 tokens``: how a text is cut into tokens."""

from __future__ import annotations

from pathlib import Path

import click

from ds4 import Model

from .diagnostics import print_tokens
from .opening import check_text, read_text
from .options import take

_EXAMPLES = """\b
Examples:
  ds4 tokens "Hello, world!"
  ds4 tokens -m flash.gguf --json "Hello, world!"
  ds4 tokens --prompt-file story.txt

Prints the id and the text of every token. Special tokens such as </think> are recognised, nothing is added. Only the
head of the model file is read."""


@click.command("tokens", help=_EXAMPLES, short_help="Show how a text is cut into tokens.")
@click.argument("text", required=False)
@take("model", "prompt_file", "json")
def command(text: str | None, model: Path | None, prompt_file: Path | None, as_json: bool) -> int:
    """Run the command."""
    if (text is None) == (prompt_file is None):
        raise click.UsageError("give either TEXT or --prompt-file")
    if prompt_file is not None:
        text = read_text(prompt_file)
    assert text is not None
    check_text(text, "text")
    print_tokens(model if model is not None else Model.embedded_path(), text, as_json=as_json)
    return 0

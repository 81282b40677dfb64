"""``ds4 completion``: completion of commands, options, words and model files in bash, zsh and fish.

The scripts ask the program itself. It gets the words of the line (COMP_WORDS, one a line, as they are typed) and which
of them the cursor is in (COMP_CWORD), and answers with lines "kind TAB value TAB help". Kinds are plain words, and
files, folders or model files that begin with the value: those the shell looks up.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, split_arg_string

from .terminal import note
from .user import SettingsError, user_directory

_BASH = """\
_ds4_complete() {
    local kind value words=("${COMP_WORDS[@]}") at=$COMP_CWORD
    case ${1##*/} in
        ds4-*) words=(ds4 "${1##*ds4-}" "${COMP_WORDS[@]:1}"); at=$((at + 1)) ;;
    esac
    COMPREPLY=()
    while IFS=$'\\t' read -r kind value _; do
        case $kind in
            plain) COMPREPLY+=("$value"); continue ;;
        esac
        compopt -o filenames 2>/dev/null
        case $kind in
            model) mapfile -t COMPREPLY < <(compgen -f -X '!*.gguf' -- "$value"; compgen -d -- "$value") ;;
            file) mapfile -t COMPREPLY < <(compgen -f -- "$value") ;;
            dir) mapfile -t COMPREPLY < <(compgen -d -- "$value") ;;
        esac
    done < <(COMP_WORDS="$(printf '%s\\n' "${words[@]}")" COMP_CWORD=$at _DS4_COMPLETE=bash_complete ds4 2>/dev/null)
}
complete -F _ds4_complete ds4 ds4-bench ds4-eval ds4-server
"""

_ZSH = """\
#compdef ds4 ds4-bench ds4-eval ds4-server
_ds4_complete() {
    local kind value text line at=$((CURRENT - 1))
    local -a asked found
    asked=("${words[@]}")
    if [[ ${words[1]:t} == ds4-* ]]; then
        asked=(ds4 "${${words[1]:t}#ds4-}" "${words[@]:1}")
        at=$((at + 1))
    fi
    for line in "${(@f)$(COMP_WORDS="${(F)asked}" COMP_CWORD=$at _DS4_COMPLETE=zsh_complete ds4 2>/dev/null)}"; do
        IFS=$'\\t' read -r kind value text <<< "$line"
        case $kind in
            plain) found+=("${value//:/\\\\:}${text:+:$text}") ;;
            model) _files -g '*.gguf' ;;
            file) _files ;;
            dir) _files -/ ;;
        esac
    done
    (( $#found )) && _describe -V 'ds4' found
}
if ! whence compdef >/dev/null; then
    autoload -Uz compinit && compinit
fi
compdef _ds4_complete ds4 ds4-bench ds4-eval ds4-server
"""

_FISH = """\
function _ds4_complete
    set -l before (commandline -opc)
    switch (path basename -- $before[1])
        case 'ds4-*'
            set before ds4 (string replace -r '.*ds4-' '' -- $before[1]) $before[2..]
    end
    set -lx COMP_CWORD (count $before)
    set -lx COMP_WORDS (string join \\n -- (string escape -- $before) (commandline -ct) | string collect)
    set -lx _DS4_COMPLETE fish_complete
    for line in (ds4 2>/dev/null)
        set -l item (string split \\t -- $line)
        switch $item[1]
            case plain
                printf '%s\\t%s\\n' $item[2] $item[3]
            case model
                __fish_complete_suffix .gguf
            case file
                __fish_complete_path $item[2]
            case dir
                __fish_complete_directories $item[2]
        end
    end
end
complete -c ds4 -f -a '(_ds4_complete)'
complete -c ds4-bench -f -a '(_ds4_complete)'
complete -c ds4-eval -f -a '(_ds4_complete)'
complete -c ds4-server -f -a '(_ds4_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

_HELP = """\b
Examples:
  ds4 completion --install                 for the shell that you use; open a new one then
  ds4 completion zsh --install
  source <(ds4 completion bash)            for this shell only
  ds4 completion fish | source

Prints the script that completes commands, options, words and model files with Tab. --install puts it into
~/.ds4/completion.SHELL and a line that reads it into ~/.bashrc or ~/.zshrc; for fish it goes to
~/.config/fish/completions/ds4.fish. Doing it again replaces the script and adds nothing."""


class _Complete(ShellComplete):
    """The answers to all three scripts."""

    def source(self) -> str:
        """Return the script."""
        return SCRIPTS[self.name]

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor's one, and that one."""
        words = split_arg_string(os.environ.get("COMP_WORDS", ""))
        at = int(os.environ.get("COMP_CWORD", "0"))
        last = words[at] if at < len(words) else ""
        before = [word for word in words[1:at] if word != "="]  # bash takes --option=value for three words
        if not before and "=" in last:
            before = ["chat"]  # an option of the command that is meant when none is named
        return before, last

    def format_completion(self, item: CompletionItem) -> str:
        """Write an item as a line."""
        text = " ".join((item.help or "").split())
        return f"{item.type}\t{item.value}\t{text}"


def _register() -> None:
    for name in SCRIPTS:
        add_completion_class(type(f"_{name.title()}", (_Complete,), {"name": name, "source_template": ""}))


_register()


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a model file (for the `shell_complete` of options and arguments)."""
    return [CompletionItem(incomplete, type="model")]


@click.command("completion", help=_HELP, short_help="Complete commands and files in your shell.")
@click.argument("shell", required=False, type=click.Choice(list(SCRIPTS)))
@click.option("--install", is_flag=True, help="Set it up for new shells.")
def command(shell: str | None, install: bool) -> int:
    """Run the command."""
    if shell is None:
        shell = Path(os.environ.get("SHELL", "")).name
        if shell not in SCRIPTS:
            raise click.UsageError(f"name the shell: {', '.join(SCRIPTS)} (SHELL is {os.environ.get('SHELL', '')!r})")
    if install:
        _install(shell)
    else:
        print(SCRIPTS[shell], end="")
    return 0


def _install(shell: str) -> None:
    home = user_directory()
    if home is None:
        raise SettingsError("there is no home directory to install into; source the printed script")
    if shell == "fish":
        config = os.environ.get("XDG_CONFIG_HOME", "")
        script = (Path(config) if config.startswith("/") else home.parent / ".config") / "fish/completions/ds4.fish"
    else:
        script = home / f"completion.{shell}"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(SCRIPTS[shell])
    note(f"wrote {script}")
    if shell == "fish":
        return
    start = Path(os.environ.get("ZDOTDIR") or home.parent) / ".zshrc" if shell == "zsh" else home.parent / ".bashrc"
    line = f'[ -r "$HOME/.ds4/completion.{shell}" ] && . "$HOME/.ds4/completion.{shell}"'
    old = _text_of(start)
    if line in old.splitlines():
        note(f"{start} reads it already")
        return
    with start.open("a", encoding="utf-8") as f:
        f.write(("" if not old or old.endswith("\n") else "\n") + line + "\n")
    note(f"{start} reads it from the next shell on")


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return ""

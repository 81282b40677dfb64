"""One prompt, one answer."""

from __future__ import annotations

import json

from ds4 import Model, Sampler
from ds4.chat import protocol

from .conversation import Conversation, fitting_mode
from .live import LiveLine
from .opening import check_text, make_session, opened_model, read_text
from .pace import Pace
from .reply import Reply, make_reply
from .settings import Settings
from .steering import chosen_steering
from .terminal import AnswerPrinter, ProgressLine, note

_INTERRUPTED = 130


def run(settings: Settings) -> int:
    """Answer the prompt of the options."""
    text = prompt_text(settings)
    sampler = make_sampler(settings)
    with opened_model(settings) as model:
        ids, thinking = prompt_tokens(model, settings, text)
        with make_session(model, settings, settings.ctx) as session:
            session.set_steering(chosen_steering(model, settings))
            listener = Listener(quiet=settings.as_json)
            try:
                reply = make_reply(
                    session,
                    ids,
                    listener,
                    thinking=thinking,
                    sampler=sampler,
                    max_tokens=settings.tokens,
                    draft=settings.draft,
                    pace=Pace(settings.power),
                )
            finally:
                listener.finish()
        if settings.as_json:
            print_json(model, sampler, reply)
        note(reply.summary())
    return _INTERRUPTED if reply.finish == "interrupted" else 0


def prompt_text(settings: Settings) -> str:
    """Return the prompt.

    Raises
    ------
    OSError
        The prompt file cannot be read.
    ValueError
        The prompt is empty or no valid text.
    """
    text = settings.prompt if settings.prompt is not None else ""
    if settings.prompt_file is not None:
        text = read_text(settings.prompt_file)
    check_text(text, "prompt")
    if not text.strip():
        where = f" ({settings.prompt_file})" if settings.prompt_file is not None else ""
        raise ValueError(f"the prompt is empty{where}")
    return text


def prompt_tokens(model: Model, settings: Settings, text: str) -> tuple[list[int], bool]:
    """Render and encode the prompt; also tells whether it opens the reasoning.

    Raises
    ------
    ValueError
        The prompt does not fit into the context, or options do not go with a rendered prompt.
    """
    if text.startswith(protocol.BOS):
        rendering = [name for name in ("system", "think", "think_max", "nothink") if getattr(settings, name)]
        if rendering:
            raise ValueError(
                f"--{rendering[0].replace('_', '-')} has no effect on a prompt that begins with {protocol.BOS}: "
                "it is rendered already"
            )
        ids = model.tokenizer.encode(text, specials=True)
        thinking = ids[-1] == model.tokenizer.special(protocol.THINK)
    else:
        mode, warning = fitting_mode(settings.mode, settings.ctx)
        if warning:
            note(f"warning: {warning}")
        conversation = Conversation(model.tokenizer, system=settings.system or None, mode=mode)
        ids, thinking = conversation.add(text), conversation.thinking
    check_fits(len(ids), settings.ctx)
    return ids, thinking


def check_fits(n_tokens: int, n_ctx: int) -> None:
    """Check that a prompt leaves room for at least one token.

    Raises
    ------
    ValueError
        It does not; the text names both numbers.
    """
    if n_tokens >= n_ctx:
        raise ValueError(
            f"the prompt has {n_tokens} tokens, but the context has room for {n_ctx} and a reply needs at least one "
            f"of them; use -c {n_tokens + 1} or more"
        )


def make_sampler(settings: Settings) -> Sampler:
    """Return the sampler that the options describe."""
    return Sampler(settings.temperature, settings.top_k, settings.top_p, settings.min_p, settings.seed)


def print_json(model: Model, sampler: Sampler, reply: Reply) -> None:
    """Print a reply as one JSON object."""
    head = {"model": str(model.metadata.get("general.name", model.shape.name)), "shape": model.shape.name}
    print(json.dumps({**head, **reply.as_json(), "seed": sampler.seed}, ensure_ascii=False))


class Listener:
    """Shows a reply while it is made: progress on stderr, then the text.

    Parameters
    ----------
    quiet : bool
        Show progress only.
    live : LiveLine, optional
        Where to show the speed while the text is written.
    n_ctx : int
        Positions of the context, for that.
    """

    def __init__(self, *, quiet: bool, live: LiveLine | None = None, n_ctx: int = 0) -> None:
        self._quiet, self._live, self._n_ctx = quiet, live, n_ctx
        self._line = ProgressLine("prefill", "tokens")
        self._printer = AnswerPrinter(None if live is None else live.wrote)

    def progress(self, done: int, total: int) -> None:
        """Show the state of the prefill."""
        self._line(done, total)

    def prefilled(self) -> None:
        """Take the progress away."""
        self._line.finish()
        if self._live is not None:
            self._live.begin()

    def written(self, n_tokens: int, used: int) -> None:
        """Show the speed."""
        if self._live is not None:
            self._live.show(n_tokens, used, self._n_ctx)

    def reasoning(self, text: str) -> None:
        """Print a piece of the reasoning."""
        if not self._quiet:
            self._printer.reasoning(text)

    def content(self, text: str) -> None:
        """Print a piece of the answer."""
        if not self._quiet:
            self._printer.content(text)

    def finish(self) -> None:
        """Close the output, whatever happened."""
        self._line.finish()
        try:
            self._printer.finish()
        finally:
            if self._live is not None:
                self._live.end()

"""OpenAI text completions: POST /v1/completions.

The model knows chats only, so the prompt is asked as one user message. It thinks only when the request says so: the
text of a completion has no place for reasoning, which then counts in the usage and is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from ..contract import Done, ModelInfo, Request, RequestError, TokenLogprob
from . import fields
from .chat import StreamOptions
from .fields import Call, Choices, Common, Count
from .reply import CallText, Objects, Reply, finite, openai_usage
from .settings import Settings


class CompletionBody(Common, kw_only=True):
    """The body of a text completion."""

    prompt: str | list[Any]
    max_tokens: Count | None = None
    stop: str | list[str] | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    best_of: Choices | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None


def read(body: CompletionBody, settings: Settings, info: ModelInfo, request_id: str) -> Call:
    """Turn a body into a request.

    Raises
    ------
    RequestError
        A field is wrong; the error names it.
    """
    if body.suffix:
        raise RequestError("suffix is not supported: the model cannot fill a gap", param="suffix")
    if body.echo:
        raise RequestError("echo is not supported", param="echo")
    n = fields.choices(body.n, settings)
    if body.best_of is not None and body.best_of != n:
        raise RequestError(f"best_of must be {n}, the number of choices", param="best_of")
    mode, effort = fields.thinking(body, settings, info, default=("chat", None))
    request = Request(
        dialect="completion",
        model=body.model or info.id,
        messages=({"role": "user", "content": _prompt(body.prompt)},),
        mode=mode,
        effort=effort,
        sampling=fields.sampling(body, settings.sampling),
        max_tokens=body.max_tokens,
        stop=fields.stops(body.stop, "stop"),
        n=n,
        logprobs=body.logprobs,
        steering=body.steering,
        id=request_id,
    )
    return Call(
        request=request,
        stream=bool(body.stream),
        ignored=tuple(fields.unused(body)),
        include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
    )


def _prompt(given: str | list[Any]) -> str:
    if isinstance(given, str):
        return given
    if len(given) != 1 or not isinstance(given[0], str):
        raise RequestError(
            "prompt must be a string or a list of one string; token ids and several prompts are not supported",
            param="prompt",
        )
    return given[0]


class CompletionReply(Reply):
    """A text completion and its chunks."""

    def __init__(self, call: Call, prompt_tokens: int) -> None:
        super().__init__(call, prompt_tokens)
        self._length = [0] * len(self.choices)

    def reasoning(self, choice: int, text: str, tokens: Sequence[TokenLogprob]) -> Objects:
        """Return nothing: there is no place for it."""
        return []

    def content(self, choice: int, text: str, tokens: Sequence[TokenLogprob]) -> Objects:
        """Return a chunk."""
        logprobs = self._logprobs(tokens, self._length[choice])
        self._length[choice] += len(text)
        return [self._chunk(self._item(choice, text, logprobs))]

    def call_start(self, choice: int, made: CallText) -> Objects:
        """Return nothing: no tools were declared."""
        return []

    def call_arguments(self, choice: int, made: CallText, text: str) -> Objects:
        """Return nothing: no tools were declared."""
        return []

    def done(self, choice: int, event: Done) -> Objects:
        """Return the last chunk of a choice."""
        chunk = self._chunk(self._item(choice, "", None, event))
        if self.over and not self.call.include_usage:
            chunk["ds4"] = self.insight()
        return [chunk]

    def end(self) -> Objects:
        """Return the chunk of the usage, if it was asked for."""
        if not self.call.include_usage:
            return []
        return [{**self._head(), "choices": [], "usage": openai_usage(self.usage()), "ds4": self.insight()}]

    def tail(self) -> bytes:
        """Return the end of a stream."""
        return b"data: [DONE]\n\n"

    def whole(self) -> dict[str, Any]:
        """Return the completion."""
        choices = []
        for i, choice in enumerate(self.choices):
            assert choice.done is not None
            tokens = [token for token in choice.tokens if token.part == "content"]
            choices.append(self._item(i, "".join(choice.content), self._logprobs(tokens, 0), choice.done))
        return {**self._head(), "choices": choices, "usage": openai_usage(self.usage()), "ds4": self.insight()}

    def _head(self) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self.hex}",
            "object": "text_completion",
            "created": self.created,
            "model": self.request.model,
        }

    def _chunk(self, item: dict[str, Any]) -> dict[str, Any]:
        return {**self._head(), "choices": [item]}

    def _item(
        self, choice: int, text: str, logprobs: dict[str, Any] | None, done: Done | None = None
    ) -> dict[str, Any]:
        item: dict[str, Any] = {"text": text, "index": choice, "logprobs": logprobs}
        item["finish_reason"] = None if done is None else done.finish
        if done is not None and done.stop is not None:
            item["stop_reason"] = done.stop
        return item

    def _logprobs(self, tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any] | None:
        if self.request.logprobs is None:
            return None
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token.text)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": [{other.text: finite(other.logprob) for other in token.top} for token in tokens],
            "text_offset": offsets,
        }

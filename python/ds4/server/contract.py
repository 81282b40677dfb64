"""What the two halves of the server agree on.

The side of the network turns every dialect into a `Request`; the side of the model answers with a stream of events.
Each of them can be tested with a stand-in of the other: `Engine` and `Generation` are protocols, which
`ds4.server.engine.LocalEngine` fulfils.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ..experts import ExpertUse

Dialect = Literal["chat", "completion", "responses", "messages"]
"""The interface that a request came by: OpenAI chat, completions and Responses, Anthropic messages."""

# Requests


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; the fields are those of `ds4.Sampler`.

    Parameters
    ----------
    temperature : float
        0 takes the best token.
    top_p : float
        0 < top_p <= 1.
    top_k : int
        0..1024; 0 keeps all tokens.
    min_p : float
        0..1.
    seed : int or None
        0..2**64 - 1; a random one when None.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """The choice of one tool: the answer must call it."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | Named


@dataclass(frozen=True, slots=True)
class JsonObject:
    """The answer must be a JSON object."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The answer must be JSON that a schema allows.

    Parameters
    ----------
    schema : mapping
        A JSON schema.
    name : str
        As the client calls it.
    strict : bool
        As sent. The answer is held to the schema either way.
    """

    schema: Mapping[str, Any]
    name: str = ""
    strict: bool = True


ResponseFormat = JsonObject | JsonSchema


@dataclass(frozen=True, slots=True)
class Request:
    """A request of any dialect, its values checked for type but not yet against the model.

    Parameters
    ----------
    dialect : str
    model : str
        The name that the client used; echoed only.
    messages : tuple of mappings
        As `ds4.chat.render` takes them, with the reasoning in "reasoning_content". In the dialects "responses" and
        "messages" they may begin (behind system messages) with tool results whose calls are not shown: then they
        continue the turn in which this server gave out those call ids.
    tools : tuple of mappings
        In the form `{"type": "function", "function": {...}}`.
    tool_choice : {"auto", "none", "required"} or Named
    parallel_tool_calls : bool
        False: at most one call an answer.
    mode : {"chat", "thinking"}
        Whether the answer begins with reasoning.
    effort : {None, "max"}
    sampling : Sampling
    max_tokens : int or None
        At least 1; as many as the context and the server's setting allow when None.
    stop : tuple of str
        Strings that end the visible answer; reasoning and tool calls are not searched.
    n : int
        Number of choices.
    logprobs : int or None
        None for none, else how many alternatives are reported at each token, 0..20.
    response_format : JsonObject, JsonSchema or None
    steering : mapping or None
        As the client sent it: {"scale": F} multiplies the scales of the server's directions.
    id : str
        Names the request in logs and in the trace.
    """

    dialect: Dialect
    model: str
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    mode: Literal["chat", "thinking"] = "thinking"
    effort: Literal["max"] | None = None
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    logprobs: int | None = None
    response_format: ResponseFormat | None = None
    steering: Mapping[str, Any] | None = None
    id: str = field(default_factory=lambda: f"req_{secrets.token_hex(12)}")


# Refusals


class RequestError(Exception):
    """A request cannot be answered; what a client is told.

    Parameters
    ----------
    message : str
    status : int
        HTTP status.
    type : str
        "invalid_request_error", "rate_limit_error" or "server_error"; a dialect may have other words for it.
    code : str or None
        A word for programs, such as "context_length_exceeded".
    param : str or None
        The field of `Request` that is wrong, with an index where that helps ("messages[2].role").
    extra : mapping
        More members of the error object, such as n_prompt_tokens and n_ctx.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.code = code
        self.param = param
        self.extra: dict[str, Any] = dict(extra or {})


class Overloaded(RequestError):  # noqa: N818 - the name of a state of the server
    """Too many requests are waiting already.

    Parameters
    ----------
    retry_after : int
        Seconds after which another try makes sense.
    """

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message, status=429, type="rate_limit_error", code="queue_full")
        self.retry_after = retry_after


# Events. Those of the text follow ds4.chat.events, and carry the choice that they belong to and the ids of calls.


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits; `position` requests are before it. Comes again when that changes."""

    position: int
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Prefill:
    """So many of the tokens that must be computed of the prompt are done."""

    done: int
    total: int
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt is computed; comes once, before any text.

    Parameters
    ----------
    prompt_tokens : int
        Tokens of the prompt.
    cached_tokens : int
        How many of them were not computed for this request.
    why : str
        Where the cached ones came from, or why there are not more.
    """

    prompt_tokens: int
    cached_tokens: int
    why: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the reasoning."""

    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the visible answer."""

    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call has named its tool. `index` counts the calls of the choice from 0, `id` is new."""

    index: int
    name: str
    id: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of the JSON text of a call's arguments; the pieces joined are `ToolCallEnd.arguments`."""

    index: int
    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call is over.

    Parameters
    ----------
    index, name, id
        As in its `ToolCallStart`.
    arguments : str
        Always the JSON text of an object.
    error : str or None
        Why the call must not be carried out: it was cut off or damaged.
    """

    index: int
    name: str
    id: str
    arguments: str
    error: str | None = None
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token with its bytes and its log-probability under the model's own logits."""

    token: int
    bytes: bytes
    logprob: float

    @property
    def text(self) -> str:
        """The bytes as text; those of an unfinished character become U+FFFD."""
        return self.bytes.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A drawn token: itself, what stood beside it (the best first), and what it belongs to."""

    token: int
    bytes: bytes
    logprob: float
    top: tuple[Candidate, ...]
    part: Literal["reasoning", "content", "tool_calls"]

    @property
    def text(self) -> str:
        """The bytes as text; those of an unfinished character become U+FFFD."""
        return self.bytes.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Log-probabilities of tokens, when they were asked for; comes before the text that the tokens complete."""

    tokens: tuple[TokenLogprob, ...]
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one choice.

    Parameters
    ----------
    prompt : int
        Tokens of the prompt.
    cached, computed : int
        Their parts that were kept and that were computed; together `prompt`.
    completion : int
        Tokens drawn, the token that ends the turn included.
    reasoning : int
        How many of those belong to the reasoning.
    """

    prompt: int = 0
    cached: int = 0
    computed: int = 0
    completion: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time went, in seconds.

    Parameters
    ----------
    queue : float
        From the request to its first step.
    prefill, decode : float
        Spent in its own steps.
    first_token : float
        From the request to the first token; 0 if there was none.
    total : float
        From the request to the end, the steps of other requests included.
    """

    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    first_token: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Drafts:
    """Tokens that were guessed: how many, how many of them came true, and in how many batches."""

    drafted: int = 0
    accepted: int = 0
    verifies: int = 0


FinishReason = Literal["stop", "length", "tool_calls", "error", "cancelled"]


@dataclass(frozen=True, slots=True)
class Done:
    """A choice is over. The last event of a generation is the `Done` of its last choice.

    Parameters
    ----------
    finish : {"stop", "length", "tool_calls", "error", "cancelled"}
    stop : str or None
        The stop string that was met.
    usage : Usage
    timings : Timings
    notes : tuple of str
        What was repaired or ignored, for a log.
    error : str or None
        What went wrong, when `finish` is "error".
    drafts : Drafts or None
        What guessing tokens brought, when the server does that.
    experts : ExpertUse or None
        What streamed experts cost, when they are streamed.
    """

    finish: FinishReason
    stop: str | None
    usage: Usage
    timings: Timings
    notes: tuple[str, ...] = ()
    error: str | None = None
    choice: int = 0
    drafts: Drafts | None = None
    experts: ExpertUse | None = None


Event = (
    Queued | Prefill | Started | Reasoning | Content | ToolCallStart | ToolCallArguments | ToolCallEnd | Tokens | Done
)


# The side of the model


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What /v1/models tells.

    Parameters
    ----------
    id : str
        Name under which the model is served.
    n_ctx : int
        Tokens that prompt and answer may have together.
    max_tokens : int
        Most tokens of an answer.
    shape : str
        Name of the model's shape.
    created : int
        Seconds since 1970; when the server opened the model.
    """

    id: str
    n_ctx: int
    max_tokens: int
    shape: str
    created: int


class Generation(Protocol):
    """The answer to one request: an asynchronous iterator of events, to be read by one task."""

    @property
    def request(self) -> Request:
        """What is answered."""

    @property
    def info(self) -> Started | None:
        """Size of the prompt and how much of it was cached; None until `Started` was read."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt; known from the beginning."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """Iterate over the events that are not read yet, up to the last `Done`."""

    async def cancel(self) -> None:
        """End the work; at once for the caller, within one chunk for the model. Choices end as "cancelled"."""


class Engine(Protocol):
    """Answers requests. Methods belong to the event loop in which the engine was started."""

    @property
    def info(self) -> ModelInfo:
        """The model served."""

    async def start(self) -> None:
        """Begin to work, in the event loop that runs; does nothing when it works already."""

    async def open(self, request: Request) -> Generation:
        """Take a request; raises `RequestError` or `Overloaded` when it cannot be answered."""

    async def count(self, request: Request) -> int:
        """Return the number of tokens of a request's prompt; raises `RequestError`."""

    def statistics(self) -> Mapping[str, Any]:
        """Return counters and levels by name, for /metrics; see `ds4.server.engine.Statistics`."""

    def experts(self) -> Mapping[str, Any] | None:
        """Return which routed experts are in memory, for /experts; None for a model that does not stream them."""

    async def close(self, *, drain: float | None = None) -> None:
        """Refuse new requests, let those that run go on for `drain` seconds (None: to their end), stop."""

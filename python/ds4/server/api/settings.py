"""What the side of the network can be told: who may ask, how long it waits, what an open request means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..contract import Sampling

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the application.

    Parameters
    ----------
    api_keys : tuple of str
        Keys that clients may show; nobody is asked for one when empty.
    cors : tuple of str
        Origins of web pages that may call this server; "*" lets all of them.
    hosts : tuple of str or None
        Names under which the server may be addressed (header `Host`, without the port). None: under any.
    mode : {"chat", "thinking"}
        Whether the model reasons first when a request does not say so.
    effort : {None, "max"}
        How long it then reasons.
    sampling : Sampling
        Values for what a request leaves out.
    max_body : int
        Most bytes of a request's body.
    max_bodies : int
        Most bytes of all bodies that are being read at one time.
    max_choices : int
        Most choices of one request (`n`).
    max_connections : int
        Most connections at one time; more are answered 503.
    head_timeout, body_timeout, body_total_timeout : float
        Seconds for a request's head, for the next piece of its body, and for the whole body.
    idle_timeout : float
        Seconds that a connection may stay open without a request.
    reader_timeout : float
        Seconds after which a client that does not read its answer is dropped.
    keepalive : float
        Seconds of silence in a stream after which a sign of life is sent.
    settle : float
        Seconds for which the head of a streamed answer waits for the first event, so that an early failure gets a
        status of its own.
    drain : float
        Seconds that running answers have to come to their end when the server stops.
    """

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    cors: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = None
    mode: Literal["chat", "thinking"] = "thinking"
    effort: Literal["max"] | None = None
    sampling: Sampling = field(default_factory=lambda: Sampling(min_p=0.05))
    max_body: int = 64 * MIB
    max_bodies: int = 512 * MIB
    max_choices: int = 16
    max_connections: int = 1024
    head_timeout: float = 10.0
    body_timeout: float = 10.0
    body_total_timeout: float = 120.0
    idle_timeout: float = 75.0
    reader_timeout: float = 20.0
    keepalive: float = 4.0
    settle: float = 0.25
    drain: float = 30.0

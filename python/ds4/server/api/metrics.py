"""Numbers for Prometheus, in a registry of this application's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..contract import Engine
from .reply import Reply

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_LABELS = {
    "requests_total": "dialect",
    "finished_total": "finish",
    "refused_total": "code",
    "prefixes_total": "source",
}


class Metrics:
    """Counts requests on the side of the network, and shows the engine's own numbers.

    Parameters
    ----------
    engine : Engine
    """

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.responses = Counter(
            "ds4_http_responses", "Responses by path and status", ["path", "status"], registry=self.registry
        )
        self.dropped = Counter(
            "ds4_http_dropped", "Requests whose client left or did not read", ["path"], registry=self.registry
        )
        self.open = Gauge("ds4_http_requests_open", "Requests in work", registry=self.registry)
        self.first_token = Histogram(
            "ds4_first_token_seconds", "Time to the first token", ["dialect"], buckets=_SECONDS, registry=self.registry
        )
        self.total = Histogram(
            "ds4_answer_seconds", "Time to the end of the answer", ["dialect"], buckets=_SECONDS, registry=self.registry
        )
        self.registry.register(_EngineNumbers(engine))

    def answered(self, dialect: str, reply: Reply) -> None:
        """Count an answer that was sent."""
        times = [choice.done.timings for choice in reply.choices if choice.done is not None]
        if times:
            self.first_token.labels(dialect).observe(times[0].first_token)
            self.total.labels(dialect).observe(max(t.total for t in times))

    def text(self) -> bytes:
        """Return all numbers as Prometheus reads them."""
        return generate_latest(self.registry)


class _EngineNumbers(Collector):
    """The numbers of `Engine.statistics`, read when they are asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self) -> Iterator[Metric]:
        """Return nothing: the names are the engine's."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return one family for each name."""
        for name, value in self._engine.statistics().items():
            if isinstance(value, Mapping):
                yield _labelled(name, value)
            elif isinstance(value, (int, float)):
                yield _plain(name, value)


def _plain(name: str, value: float) -> Metric:
    text = name.replace("_", " ")
    if name.endswith("_total"):
        return CounterMetricFamily(f"ds4_{name.removesuffix('_total')}", text, value=value)
    return GaugeMetricFamily(f"ds4_{name}", text, value=value)


def _labelled(name: str, values: Mapping[str, Any]) -> Metric:
    text = name.replace("_", " ")
    label = "block" if name.startswith("expert") else _LABELS.get(name, "kind")
    family: CounterMetricFamily | GaugeMetricFamily
    if name.endswith("_total"):
        family = CounterMetricFamily(f"ds4_{name.removesuffix('_total')}", text, labels=[label])
    else:
        family = GaugeMetricFamily(f"ds4_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([str(key)], value)
    return family

"""Machines and texts that are made up, for what decides by measured times: sessions without a model."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ds4.costs import CostModel
from ds4.sampling import Sampler
from ds4.speculation import Draft, Speculator


@dataclass(frozen=True)
class Noise:
    """How times vary.

    Attributes
    ----------
    level : float
        Every call by this factor at most, up and down.
    spikes : float
        Part of the calls that take ten times as long.
    drift : float
        The machine becomes slower and faster by this factor, in waves of 100 to 1500 tokens.
    step, flip : float
        With the chance `flip` a token the machine becomes slower by `step`, or as fast as before again.
    batch_step : float
        The same for batches alone.
    stalls : float
        Part of the batches that take ten times as long, while tokens alone never do.
    """

    level: float = 0.0
    spikes: float = 0.0
    drift: float = 0.0
    step: float = 0.0
    flip: float = 0.0
    batch_step: float = 0.0
    stalls: float = 0.0


class Machine:
    """A session without a model: calls take the time that was set, and guesses come true by chance.

    `spent` and `alone` are what was computed took, and what the tokens would have taken one by one, both at the speed
    that the machine had at that moment, without what is the same for both in the long run (`level` and `spikes`).

    Parameters
    ----------
    batch : sequence of float
        Seconds of a batch of 1, 2, ... tokens.
    guess : float
        Seconds of a guess.
    chances : sequence of float
        That guess 1, 2, ... is right when those before it were.
    noise : Noise
    """

    can_draft = True

    def __init__(
        self,
        batch: Sequence[float],
        guess: float,
        chances: Sequence[float],
        *,
        noise: Noise | None = None,
        seed: int = 0,
    ) -> None:
        self.batch, self.guess, self.chances, self.noise = batch, guess, chances, noise or Noise()
        self.random = random.Random(seed)
        self.now = self.spent = self.alone = 0.0
        self.n = 0
        self.pending: list[int] = []
        self.slow = bool(self.noise.flip) and self.random.random() < 0.5
        self.phase = self.random.uniform(0, 2 * math.pi)
        self.period = self.random.uniform(100, 1500)

    @property
    def ahead(self) -> int:
        return len(self.pending)

    def clock(self) -> float:
        return self.now

    def _speed(self) -> float:
        factor = 1 + self.noise.step * self.slow
        if self.noise.drift:
            factor *= 1 + self.noise.drift * math.sin(2 * math.pi * self.n / self.period + self.phase)
        return factor

    def _token(self) -> None:
        self.alone += self.batch[0] * self._speed()
        self.n += 1
        if self.noise.flip and self.random.random() < self.noise.flip:
            self.slow = not self.slow

    def _spend(self, seconds: float) -> None:
        self.spent += seconds
        if self.noise.level:
            seconds *= 1 + self.random.uniform(-self.noise.level, self.noise.level)
        if self.noise.spikes and self.random.random() < self.noise.spikes:
            seconds *= 10
        self.now += seconds

    def eval(self, tokens: int, *, progress: Callable[[int, int], object] | None = None) -> None:
        seconds = self.batch[0] * self._speed()
        self._token()
        if self.pending and self.pending[0] == tokens:
            self.pending.pop(0)
            return
        self.pending = []
        self._spend(seconds)

    def eval_ahead(
        self, token: int, guesses: Sequence[int], *, progress: Callable[[int, int], object] | None = None
    ) -> None:
        seconds = self.batch[len(guesses)] * self._speed() * (1 + self.noise.batch_step * self.slow)
        if self.noise.stalls and self.random.random() < self.noise.stalls:
            seconds *= 10
        self._token()
        self._spend(seconds)
        self.pending = list(guesses)

    def draft(self, token: int, depth: int, *, margin: float = 0.0, sampler: Sampler | None = None) -> list[int]:
        self._spend(self.guess * depth * self._speed())
        guesses = []
        right = True
        for i in range(depth):
            right = right and self.random.random() < self.chances[i]
            guesses.append(1 if right else 2)
        return guesses


def run(machine: Machine, n: int, *, costs: CostModel | None = None, draft: Draft | None = None) -> Speculator:
    """A generation of n tokens, all of them 1."""
    speculator = Speculator(machine, draft or Draft(depth=5), costs=costs, clock=machine.clock)
    for _ in range(n):
        speculator.eval(1)
    speculator.settle()
    machine.pending = []  # another prompt
    return speculator


def best_rate(batch: Sequence[float], guess: float, chances: Sequence[float]) -> float:
    """Seconds a token of the best number of guesses."""
    rates = [1.0]
    for depth in range(1, 6):
        tokens, chance = 1.0, 1.0
        for c in chances[:depth]:
            chance *= c
            tokens += chance
        rates.append((batch[depth] + guess * depth) / tokens)
    return min(rates)


Machines = dict[str, tuple[list[float], float, list[float]]]

SHARED = [1.0, 1.25, 1.5, 1.75, 2.0, 2.25]
UNSHARED = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]

UNPROFITABLE: Machines = {
    "nothing is shared": (UNSHARED, 0.1, [1.0] * 5),
    "guesses are dear": (SHARED, 1.2, [0.9] * 5),
    "guesses are wrong": (SHARED, 0.1, [0.0] * 5),
    "guesses are often wrong": (SHARED, 0.1, [0.3, 0.2, 0.1, 0.1, 0.1]),
    "just not worth it": ([1.0, 1.6, 2.2, 2.8, 3.4, 4.0], 0.2, [0.75, 0.5, 0.4, 0.3, 0.2]),
    "not quite worth it": ([1.0, 1.5, 2.2, 2.8, 3.4, 4.0], 0.2, [0.62, 0.5, 0.4, 0.3, 0.2]),
    "a batch is dear": ([1.0, 2.4, 3.4, 5.0, 6.0, 7.0], 0.1, [0.9] * 5),
    "a batch is very dear": ([1.0, 4.0, 7.0, 10.0, 13.0, 16.0], 0.1, [0.9] * 5),
}
PROFITABLE: Machines = {
    "good guesses": (SHARED, 0.1, [0.95, 0.9, 0.85, 0.8, 0.8]),
    "one good guess": (SHARED, 0.2, [0.9, 0.3, 0.2, 0.1, 0.1]),
    "a little": ([1.0, 1.3, 1.7, 2.1, 2.5, 2.9], 0.1, [0.8, 0.5, 0.4, 0.3, 0.3]),
    "perfect": ([1.0, 1.05, 1.1, 1.15, 1.2, 1.25], 0.05, [1.0] * 5),
}
NOISES: dict[str, Noise] = {
    "none": Noise(),
    "5 %": Noise(0.05, spikes=0.02),
    "10 %": Noise(0.1, spikes=0.02),
    "20 %": Noise(0.2, spikes=0.02),
    "30 %": Noise(0.3, spikes=0.02),
    "drift": Noise(0.1, spikes=0.01, drift=0.3),
    "drift, 30 %": Noise(0.3, drift=0.3),
    "steps": Noise(0.05, step=0.3, flip=0.01),
    "many steps": Noise(0.1, spikes=0.01, step=0.3, flip=0.033),
    "steps, 30 %": Noise(0.3, step=0.3, flip=0.01),
    "steps of batches": Noise(0.05, batch_step=0.3, flip=0.01),
    "steps of batches, 20 %": Noise(0.2, batch_step=0.3, flip=0.03),
}

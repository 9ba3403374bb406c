"""How long the next chunk is: samplers that `OnlineDataset` asks once per step.

Every process draws a stream of its own. A sampler that was made with a seed repeats itself in the process that made
it. Its copies in other processes, forked or spawned, draw other streams: in a `DataLoader` worker the stream follows
from the seed and the worker's seed, so it repeats when torch is seeded; in any other process it follows from the seed
and the process id, so it does not.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from numbers import Real

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from odstream.validation import check_int

__all__ = ["ChunkSizeSampler", "GMMChunkSampler", "UniformChunkSampler"]


class ChunkSizeSampler(ABC):
    """Draws a chunk length: a positive number of frames, a new one for each call.

    A sampler that travels to spawned `DataLoader` workers must be picklable.
    """

    @abstractmethod
    def __call__(self) -> int:
        """Return the length of the next chunk, in frames."""


class UniformChunkSampler(ChunkSizeSampler):
    """Draws every length in ``[low, high]`` with the same probability.

    Args:
        low: Shortest chunk, in frames, at least 1.
        high: Longest chunk, in frames, itself included.
        seed: For draws that repeat; a non-negative integer, or None for fresh randomness.

    Raises:
        TypeError: If a bound or the seed is not an int.
        ValueError: If a bound is below 1, ``low`` exceeds ``high``, or the seed is negative.
    """

    def __init__(self, low: int, high: int, *, seed: int | None = None) -> None:
        check_int("high", high, 1)  # here it has no default, so None is no value either
        _check_bounds(low, high)
        self.low, self.high = low, high
        self._stream = _ProcessStream(seed)

    def __call__(self) -> int:
        """Return the length of the next chunk, in frames."""
        return int(self._stream.generator().integers(self.low, self.high, endpoint=True))


class GMMChunkSampler(ChunkSizeSampler):
    """Draws lengths from a mixture of Gaussians, rounded to whole frames.

    A draw outside ``[low, high]`` becomes the nearer bound, so a bound can be more likely than its neighbours.

    Args:
        means: Mean length of each component, in frames, finite.
        stds: Standard deviation of each component, in frames, finite, zero or more.
        weights: Relative frequency of each component, finite, zero or more, with a positive sum; they need not sum
            to one. A component of weight zero is never drawn.
        low: Shortest chunk, in frames, at least 1.
        high: Longest chunk, in frames, or None for no bound.
        seed: For draws that repeat; a non-negative integer, or None for fresh randomness.

    Raises:
        TypeError: If a bound or the seed is not an int.
        ValueError: If the lists are empty or of different lengths, or a value is outside the range above.
    """

    def __init__(
        self,
        means: Iterable[float],
        stds: Iterable[float],
        weights: Iterable[float],
        low: int = 1,
        high: int | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        _check_bounds(low, high)
        self.low, self.high = low, high
        self.means = _checked_numbers("means", means)
        self.stds = _checked_numbers("stds", stds, minimum=0.0)
        self.weights = _checked_numbers("weights", weights, minimum=0.0)
        if not len(self.means) == len(self.stds) == len(self.weights):
            lengths = f"{len(self.means)}, {len(self.stds)} and {len(self.weights)}"
            raise ValueError(f"means, stds and weights must have the same length, got {lengths}")
        if max(self.weights) == 0.0:
            raise ValueError(f"weights must have a positive sum, got {list(self.weights)}")
        self._cumulative = cumulative_weights(self.weights)
        self._stream = _ProcessStream(seed)

    def __call__(self) -> int:
        """Return the length of the next chunk, in frames."""
        generator = self._stream.generator()
        component = choose_component(self._cumulative, generator.random())
        length = round(generator.normal(self.means[component], self.stds[component]))
        return max(self.low, length if self.high is None else min(self.high, length))


def cumulative_weights(weights: Sequence[float]) -> NDArray[np.float64]:
    """Return ``[K]`` running sums of the weights, the last being exactly 1."""
    scaled = np.asarray(weights, dtype=np.float64) / max(weights)  # sums of huge weights stay finite
    cumulative: NDArray[np.float64] = np.cumsum(scaled)
    cumulative /= cumulative[-1]
    return cumulative


def choose_component(cumulative: NDArray[np.float64], uniform: float) -> int:
    """Return the component that a draw ``uniform`` in ``[0, 1)`` selects.

    It is the first whose running sum exceeds the draw, so one of weight zero, which does not add to the sum, is
    never selected, not even by a draw of exactly 0.
    """
    return int(np.searchsorted(cumulative, uniform, side="right"))


class _ProcessStream:
    """A random generator that no two processes share."""

    def __init__(self, seed: int | None) -> None:
        self._seed = None if seed is None else check_int("seed", seed, 0)
        self._maker = os.getpid()
        self._user: int | None = None
        self._generator: np.random.Generator | None = None

    def generator(self) -> np.random.Generator:
        """Return this process's generator, made at its first use here."""
        process = os.getpid()
        if self._generator is None or self._user != process:
            self._user, self._generator = process, np.random.default_rng(self._sequence(process))
        return self._generator

    def _sequence(self, process: int) -> np.random.SeedSequence:
        if self._seed is None or process == self._maker:
            return np.random.SeedSequence(self._seed)
        worker = get_worker_info()
        return np.random.SeedSequence(self._seed, spawn_key=(process if worker is None else worker.seed,))

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_user": None, "_generator": None}


def _check_bounds(low: int, high: int | None) -> None:
    check_int("low", low, 1)
    if high is not None and check_int("high", high, 1) < low:
        raise ValueError(f"high must be at least low, got low={low} and high={high}")


def _checked_numbers(field: str, values: Iterable[float], *, minimum: float = -math.inf) -> tuple[float, ...]:
    numbers = tuple(values) if isinstance(values, Iterable) else ()
    if not numbers:
        raise ValueError(f"{field} must list at least one number, got {values!r}")
    for index, number in enumerate(numbers):
        if isinstance(number, bool) or not isinstance(number, Real) or not math.isfinite(number):
            raise ValueError(f"{field}[{index}] must be a finite number, got {number!r}")
        if number < minimum:
            raise ValueError(f"{field}[{index}] must be at least {minimum:g}, got {number!r}")
    return tuple(float(number) for number in numbers)

"""Chunk lengths: ranges, frequencies, and a stream of its own for every process."""

from __future__ import annotations

import copy
import math
import pickle
from collections import Counter

import numpy as np
import pytest

from odstream.datasets.sampler import (
    ChunkSizeSampler,
    GMMChunkSampler,
    UniformChunkSampler,
    choose_component,
    cumulative_weights,
)

pytestmark = pytest.mark.spec("DATA-03")


def draws(sampler: ChunkSizeSampler, count: int = 50) -> list[int]:
    return [sampler() for _ in range(count)]


def test_every_length_of_a_uniform_range_is_drawn_equally_often() -> None:
    counts = Counter(draws(UniformChunkSampler(3, 6, seed=0), 8000))
    assert sorted(counts) == [3, 4, 5, 6]
    assert all(abs(count / 8000 - 0.25) < 0.02 for count in counts.values())


def test_a_range_of_one_length_draws_it() -> None:
    assert set(draws(UniformChunkSampler(7, 7))) == {7}


def test_mixture_components_are_drawn_by_weight() -> None:
    sampler = GMMChunkSampler([16.0, 64.0], [0.0, 0.0], [6, 2], seed=1)
    counts = Counter(draws(sampler, 8000))
    assert sorted(counts) == [16, 64]
    assert abs(counts[16] / 8000 - 0.75) < 0.02


def test_a_component_has_its_mean_and_deviation() -> None:
    lengths = np.array(draws(GMMChunkSampler([500.0], [20.0], [1.0], seed=2), 8000))
    assert abs(lengths.mean() - 500) < 1.0
    assert abs(lengths.std() - 20) < 1.0


def test_a_mixture_draw_outside_the_bounds_becomes_the_nearer_bound() -> None:
    lengths = draws(GMMChunkSampler([10.0], [100.0], [1.0], low=8, high=12, seed=3), 400)
    assert set(lengths) == {8, 9, 10, 11, 12}
    assert set(draws(GMMChunkSampler([-50.0], [1.0], [1.0]))) == {1}


def test_lengths_are_plain_integers() -> None:
    for sampler in (UniformChunkSampler(1, 9), GMMChunkSampler([4.0], [2.0], [1.0])):
        assert all(type(length) is int for length in draws(sampler))


@pytest.mark.parametrize(
    ("weights", "uniform", "component"),
    [
        ([0, 1], 0.0, 1),
        ([1, 0], math.nextafter(1.0, 0.0), 0),
        ([0, 2, 0, 2, 0], 0.0, 1),
        ([0, 2, 0, 2, 0], 0.5, 3),
        ([0, 2, 0, 2, 0], math.nextafter(1.0, 0.0), 3),
        ([1e308, 1e308], 0.25, 0),
        ([0.1] * 10, math.nextafter(1.0, 0.0), 9),
    ],
)
def test_a_component_of_weight_zero_is_never_chosen(weights: list[float], uniform: float, component: int) -> None:
    """Field case S07."""
    assert choose_component(cumulative_weights(weights), uniform) == component


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weights": [0.0, 0.0]}, r"weights must have a positive sum, got \[0.0, 0.0\]"),
        ({"weights": [-1.0, 2.0]}, r"weights\[0\] must be at least 0, got -1.0"),
        ({"weights": [math.nan, 1.0]}, r"weights\[0\] must be a finite number, got nan"),
        ({"weights": [math.inf, 1.0]}, r"weights\[0\] must be a finite number, got inf"),
        ({"weights": [True, 1.0]}, r"weights\[0\] must be a finite number, got True"),
        ({"weights": [1.0]}, "must have the same length, got 2, 2 and 1"),
        ({"weights": []}, r"weights must list at least one number, got \[\]"),
        ({"weights": 1.0}, "weights must list at least one number, got 1.0"),
        ({"means": [16.0, math.nan]}, r"means\[1\] must be a finite number, got nan"),
        ({"means": ["16", 64.0]}, r"means\[0\] must be a finite number, got '16'"),
        ({"stds": [-0.1, 1.0]}, r"stds\[0\] must be at least 0, got -0.1"),
        ({"low": 0}, "low must be at least 1, got 0"),
        ({"low": 9, "high": 8}, "high must be at least low, got low=9 and high=8"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(changed: dict[str, object], message: str) -> None:
    """Field case S07."""
    settings: dict[str, object] = {"means": [16.0, 64.0], "stds": [4.0, 8.0], "weights": [0.6, 0.4]}
    with pytest.raises(ValueError, match=message):
        GMMChunkSampler(**(settings | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("low", "high", "error", "message"),
    [
        (0, 4, ValueError, "low must be at least 1, got 0"),
        (5, 4, ValueError, "high must be at least low, got low=5 and high=4"),
        (1.0, 4, TypeError, "low must be an int, got 1.0"),
        (True, 4, TypeError, "low must be an int, got True"),
        (1, None, TypeError, "high must be an int, got None"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(low: int, high: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        UniformChunkSampler(low, high)


def test_numbers_of_numpy_are_numbers() -> None:
    sampler = GMMChunkSampler(np.array([16.0, 64.0]), np.float32([1, 2]), np.array([1, 3]))
    assert sampler.weights == (1.0, 3.0)


def test_a_seed_repeats_the_draws_and_touches_no_global_state() -> None:
    before = np.random.get_state()[1].tolist()
    assert draws(UniformChunkSampler(1, 1000, seed=5)) == draws(UniformChunkSampler(1, 1000, seed=5))
    assert draws(UniformChunkSampler(1, 1000, seed=5)) != draws(UniformChunkSampler(1, 1000, seed=6))
    assert draws(UniformChunkSampler(1, 1000)) != draws(UniformChunkSampler(1, 1000))
    assert np.random.get_state()[1].tolist() == before


def test_a_copy_starts_the_stream_anew_and_is_small() -> None:
    """Field case S12: a handle carries no position."""
    sampler = UniformChunkSampler(1, 1000, seed=5)
    first = draws(sampler)
    assert draws(copy.deepcopy(sampler)) == first
    assert len(pickle.dumps(sampler)) < 500

"""What may be asked of a source."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from odstream.datasets import SequenceSpecCfg

pytestmark = pytest.mark.spec("SRC-01")


def test_a_specification_says_how_long_its_contexts_are() -> None:
    assert SequenceSpecCfg(2, 64).length == 65
    assert SequenceSpecCfg(history_length=1, prediction_horizon=1).length == 1


def test_a_specification_is_frozen_and_comparable() -> None:
    spec = SequenceSpecCfg(2, 4, generations=[1, 2])  # type: ignore[arg-type]
    assert spec == SequenceSpecCfg(2, 4, "episode", (1, 2))
    assert hash(spec) == hash(SequenceSpecCfg(2, 4, "episode", (1, 2)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.history_length = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"history_length": 0}, "history_length must be at least 1, got 0"),
        ({"prediction_horizon": -1}, "prediction_horizon must be at least 1, got -1"),
        ({"sampling_mode": "boundary"}, "sampling_mode must be one of 'episode', 'segment', got 'boundary'"),
        ({"generations": ()}, r"generations must be None or list at least one generation, got \(\)"),
        ({"generations": 1}, "generations must be None or list at least one generation, got 1"),
        ({"generations": (1, 0)}, r"generations\[1\] must be at least 1, got 0"),
    ],
)
def test_specifications_out_of_range_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SequenceSpecCfg(**({"history_length": 2, "prediction_horizon": 4} | fields))


@pytest.mark.parametrize("value", [True, 2.0, "2", None])
def test_lengths_are_integers(value: Any) -> None:
    with pytest.raises(TypeError, match="history_length must be an int"):
        SequenceSpecCfg(value, 4)

"""Resident episodes against the cache: whatever the episodes are, the same draws yield the same contexts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from odstream.datasets import DataUnavailableError, SequenceSpecCfg, TensorDataSource
from tests.fakes.cache import Cache, Row, context, seeded
from tests.fakes.sources import SCHEMA, episode, padded
from tests.property.episodes import episodes

pytestmark = [pytest.mark.spec("SRC-08", "CTX-02"), pytest.mark.timeout(180)]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(episodes(20), min_size=1, max_size=5),
    mode=st.sampled_from(["episode", "segment"]),
    history=st.integers(1, 30),
    horizon=st.integers(1, 30),
    as_rows=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_resident_episodes_are_sampled_as_the_cache_samples_them(
    rows: list[Row], mode: str, history: int, horizon: int, as_rows: bool, seed: int
) -> None:
    assume(any(len(row.gaps) < row.length for row in rows))
    cache = Cache(slots=len(rows), max_episode_steps=20)
    given_episodes = [episode(one) for one in cache.fill(*rows)]
    source = TensorDataSource(
        padded(given_episodes, 21) if as_rows else given_episodes, schema=SCHEMA, source_id="property"
    )
    spec = SequenceSpecCfg(history, horizon, mode)  # type: ignore[arg-type]
    try:
        live = cache.sampler().draw(context(16, history, horizon, mode), seeded(seed))
    except DataUnavailableError as unavailable:
        with pytest.raises(DataUnavailableError, match=str(unavailable).split(" episodes")[0]):
            source.sample_context(16, spec)
        return
    batch = source.sample_context(16, spec, generator=seeded(seed))
    for key in live.keys(include_nested=True, leaves_only=True):
        assert torch.equal(batch[key], live[key]), key

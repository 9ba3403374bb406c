"""Whole episodes, copied out of a running engine."""

from __future__ import annotations

import numpy as np
import pytest

from odstream.engine.episodes import copy_episodes
from odstream.errors import EngineStateError
from tests.fakes.producers import Script
from tests.process.consumers import running

pytestmark = pytest.mark.timeout(120)


def test_copies_are_whole_owned_and_no_selection() -> None:
    with running(Script(lengths=(4, 7), gaps=(2,)), buffer_size=2, include_provenance=True) as engine:
        first = list(copy_episodes(engine))
        assert [(one.episode_id, one.generation, one.length) for one in first] == [(0, 1, 4), (1, 1, 7)]
        assert first[1].frames["obs",][:, 0].tolist() == [1000, 1001, 0, 1003, 1004, 1005, 1006]
        kept = [one.frames["obs",].copy() for one in first]
        engine.wait_for_generation(engine.request_refill(), timeout=60)
        assert all(np.array_equal(one.frames["obs",], old) for one, old in zip(first, kept, strict=True))
        assert [one.episode_id for one in copy_episodes(engine, after=2)] == [3]
        assert engine.get_stats()["sampled_chunks"] == 0


def test_what_is_replaced_while_the_caller_looks_at_another_is_left_out() -> None:
    with running(Script(), buffer_size=3, include_provenance=True) as engine:
        episodes = copy_episodes(engine)
        assert next(episodes).episode_id == 0
        engine.wait_for_generation(engine.request_refill(), timeout=60)
        assert list(episodes) == []
        assert [one.episode_id for one in copy_episodes(engine)] == [3, 4, 5]
    with pytest.raises(EngineStateError):
        next(copy_episodes(engine))

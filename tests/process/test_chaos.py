"""The soak of `chaos`, in a small size."""

from __future__ import annotations

import random

import pytest

from tests.process import chaos


@pytest.mark.timeout(150)
@pytest.mark.spec("ENG-06", "ENG-10")
def test_kills_and_suspensions_at_random_moments_cause_no_hang_and_no_torn_sample() -> None:
    """Field cases C01, C03, C04 and C11. For more: ``python -m tests.process.chaos``."""
    seed = random.randrange(2**32)
    print("seed", seed)
    done = chaos.run(2, seed)
    assert set(done.values()) == {2}

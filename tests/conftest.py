"""What holds for every test: one thread per process, and nothing left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.leaks import Holdings, wait_until_released

# Before a test imports torch or numpy; child processes inherit it.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves child processes, shared memory or open memory files behind.

    What a fixture of a wider scope holds when the test begins is not counted.
    """
    before = Holdings.now()
    yield
    left = wait_until_released(before)
    if left:
        pytest.fail("left behind: " + ", ".join(left), pytrace=False)

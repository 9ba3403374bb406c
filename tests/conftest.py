"""What holds for every test: one thread per process, and nothing left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import pytest

from tests.leaks import Holdings, wait_until_released

# Before a test imports torch or numpy; child processes inherit it.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# A shell that runs the tests in the background has them ignore Ctrl-C, and child processes would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_HELD_BEFORE = pytest.StashKey[Holdings]()


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> None:
    """Fail a test, after its teardown, that leaves child processes, shared memory or open memory files behind.

    What a fixture of a wider scope holds when the test begins is not counted.
    """
    request.node.stash[_HELD_BEFORE] = Holdings.now()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Compare once the fixtures are torn down and their values are dropped."""
    yield
    before = item.stash.get(_HELD_BEFORE, None)
    if before is None:  # the test was skipped, or its setup failed
        return
    getattr(item, "funcargs", {}).clear()  # pytest keeps them a moment longer
    if left := wait_until_released(before):
        pytest.fail("left behind: " + ", ".join(left), pytrace=False)

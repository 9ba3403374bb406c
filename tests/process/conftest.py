"""One spawned consumer for all tests: it takes seconds to import torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.process.consumers import Consumer


@pytest.fixture(scope="session")
def _spawned_once() -> Iterator[Consumer]:
    with Consumer("spawn") as consumer:
        yield consumer


@pytest.fixture
def spawned(_spawned_once: Consumer) -> Iterator[Consumer]:
    """A spawned process; `Consumer.hold` gives it an engine. It must be alive afterwards."""
    yield _spawned_once
    _spawned_once.hold(None)

"""One cache folder of the SDK per run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here may reach for a network


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    try:
        import datasets
    except ImportError:
        yield
        return
    datasets.disable_progress_bars()
    before, datasets.config.HF_DATASETS_CACHE = datasets.config.HF_DATASETS_CACHE, tmp_path_factory.mktemp("hf-cache")
    yield
    datasets.config.HF_DATASETS_CACHE = before

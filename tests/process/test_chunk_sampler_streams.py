"""Chunk lengths in several processes."""

from __future__ import annotations

import multiprocessing
from multiprocessing.queues import SimpleQueue

import pytest

from odstream.datasets.sampler import ChunkSizeSampler, UniformChunkSampler


def draws(sampler: ChunkSizeSampler) -> tuple[int, ...]:
    return tuple(sampler() for _ in range(50))


def report(sampler: ChunkSizeSampler, answers: SimpleQueue[tuple[int, ...]]) -> None:
    answers.put(draws(sampler))


@pytest.mark.spec("DATA-03", "DATA-04")
@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_each_process_draws_its_own_lengths(method: str, seed: int | None) -> None:
    """Field case S02."""
    context = multiprocessing.get_context(method)
    sampler = UniformChunkSampler(16, 64, seed=seed)
    sampler()  # so that the copies are taken of a stream that is in use
    answers = context.SimpleQueue()
    children = [context.Process(target=report, args=(sampler, answers)) for _ in range(2)]
    for child in children:
        child.start()
    sequences = {draws(sampler), *(answers.get() for _ in children)}
    for child in children:
        child.join()
        child.close()
    answers.close()
    assert len(sequences) == 3

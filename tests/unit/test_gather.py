"""What comes out of the cache is what went in, bit for bit, and belongs to the caller for ever."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from odstream.cache.gather import BufferPool
from odstream.cache.layout import Field
from tests.fakes.cache import FIELDS, Cache, Row, chunk, context, seeded

MIB = 2**20
DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "float16", "int32", "uint32", "float32"]
DTYPES += ["int64", "uint64", "float64", "complex64", "complex128"]


def extremes(dtype: np.dtype[np.generic], count: int) -> NDArray[np.generic]:
    """Every bit pattern that a careless conversion would change: ends of the range, NaN, infinities, minus zero."""
    if dtype.kind == "b":
        return np.resize(np.array([True, False, True]), count)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.resize(np.array([info.min, info.max, info.max - 1, 1, 0, info.max // 3], dtype), count)
    single = dtype.type(0).real.dtype
    info = np.finfo(single)
    values = np.array([np.nan, np.inf, -np.inf, -0.0, info.max, info.smallest_subnormal, 1 / 3, info.eps], single)
    return np.resize(values, 2 * count).view(dtype) if dtype.kind == "c" else np.resize(values, count)


@pytest.mark.spec("ENG-18", "ENG-21")
@pytest.mark.parametrize("mode", ["chunk", "context"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (8, 8, 3)])
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_survives_bit_for_bit(name: str, shape: tuple[int, ...], mode: str) -> None:
    """Field cases N01, N03 and L07: also large integers, NaN payloads, and widths of one."""
    dtype, frames = np.dtype(name), 5
    item = Field(("obs", "value"), shape, dtype)
    numbers = extremes(dtype, frames * int(np.prod(shape, dtype=int))).reshape(frames, *shape)
    cache = Cache(slots=1, max_episode_steps=6, fields=(item, *FIELDS[1:3]))
    published = cache.publish(Row(length=frames), values={item.key: numbers})
    request = chunk(1, frames) if mode == "chunk" else context(8, 4, 4)
    batch = cache.sampler().draw(request, seeded(1))
    tensor = batch["obs", "value"]
    assert tensor.shape == (*batch.batch_size, *shape)
    assert tensor.dtype == torch.from_numpy(np.empty(0, dtype)).dtype
    for line in range(len(batch)):
        indices = batch["ods_frame_index"][line].tolist()
        assert tensor[line].numpy().tobytes() == cache.window(published, indices)[item.key].tobytes()


@pytest.mark.spec("ENG-21")
def test_times_one_nanosecond_apart_stay_apart() -> None:
    """Field case N03: a float64 would take them for equal."""
    cache = Cache(slots=2, max_episode_steps=2)
    cache.unix_ns.now = cache.monotonic_ns.now = 1_700_000_000_000_000_000
    cache.fill(Row(length=1), Row(length=1))
    batch = cache.sampler().draw(context(64, 1, 2), seeded(1))
    for name in ("ods_accepted_at_ns", "ods_published_at_monotonic_ns"):
        assert batch[name].dtype == torch.int64
        assert set(batch[name][:, 0].tolist()) == {1_700_000_000_000_000_001, 1_700_000_000_000_000_002}
        assert (batch[name][:, 1] == -1).all()


def test_fields_keep_their_places_in_a_nested_batch() -> None:
    fields = (
        Field(("obs", "arm", "q"), (2,), np.dtype(np.float64)),
        Field(("obs", "arm", "gripper"), (), np.dtype(np.uint8)),
        Field(("obs", "camera"), (4, 4, 3), np.dtype(np.uint8)),
        Field(("obs", "camera.arm"), (4, 4, 3), np.dtype(np.uint8)),
        Field(("obs", "small"), (5,), np.dtype(np.float32)),
        Field(("small",), (5,), np.dtype(np.float32)),
        *FIELDS[1:3],
    )
    cache = Cache(slots=1, max_episode_steps=4, fields=fields)
    published = cache.publish(Row(length=4))
    batch = cache.sampler().draw(chunk(2, 4), None)
    expected = cache.window(published, range(4))
    leaves = {key if isinstance(key, tuple) else (key,) for key in batch.keys(include_nested=True, leaves_only=True)}
    assert leaves == set(expected)
    assert list(batch.keys())[:4] == ["obs", "small", "actions", "rewards"]
    assert isinstance(batch["obs", "arm"], TensorDict) and batch["obs", "arm"].batch_size == (2, 4)
    for key, values in expected.items():
        assert batch[key][1].numpy().tobytes() == values.tobytes(), key


def snapshot(batch: TensorDict) -> dict[object, bytes]:
    return {key: batch[key].numpy().tobytes() for key in batch.keys(include_nested=True, leaves_only=True)}


BIG = Field(("obs",), (64, 64, 3), np.dtype(np.uint8))


@pytest.mark.spec("ENG-18")
@pytest.mark.parametrize("fields", [FIELDS, (BIG, *FIELDS[1:])], ids=["small", "pooled"])
@pytest.mark.parametrize("mode", ["chunk", "context"])
def test_a_batch_that_is_held_is_never_changed(fields: tuple[Field, ...], mode: str) -> None:
    """Field case C12: by later samples, by replacement, by the end of the cache."""
    cache = Cache(slots=2, max_episode_steps=8, fields=fields)
    cache.fill(Row(length=8), Row(length=5))
    sampler = cache.sampler()
    request = chunk(300, 5) if mode == "chunk" else context(300, 4, 3)
    held = sampler.draw(request, seeded(1))
    part = sampler.draw(request, seeded(2))["obs"][7:9]
    before, part_before = snapshot(held), part.numpy().tobytes()
    for generation in (2, 3):
        cache.fill(Row(length=8, mark=40), Row(length=6, mark=50), generation=generation)
        for _ in range(6):
            sampler.draw(request, None)
    del cache, sampler
    gc.collect()
    assert snapshot(held) == before and part.numpy().tobytes() == part_before


@pytest.mark.spec("ENG-18")
def test_writing_into_a_batch_changes_nothing_else() -> None:
    """Field case C12: neither the cache, nor another batch, nor another field of the same batch."""
    cache = Cache(slots=1, max_episode_steps=8)
    published = cache.publish(Row(length=8))
    sampler = cache.sampler()
    first, second = sampler.draw(chunk(4, 8), None), sampler.draw(chunk(4, 8), None)
    other = snapshot(second)
    for key in list(first.keys(include_nested=True, leaves_only=True)):
        rest = {name: number for name, number in snapshot(first).items() if name != key}
        first[key].fill_(0)
        assert {name: number for name, number in snapshot(first).items() if name != key} == rest
    assert snapshot(second) == other
    for key, values in cache.window(published, range(8)).items():
        assert sampler.draw(chunk(1, 8), None)[key][0].numpy().tobytes() == values.tobytes()


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.mark.spec("ENG-18")
@pytest.mark.parametrize(
    "last_user",
    [
        lambda batch: batch,
        lambda batch: batch[5:7],
        lambda batch: batch.view(torch.int64)[::3],
        lambda batch: batch.numpy()[1:],
        lambda batch: memoryview(batch.numpy()),
        lambda batch: batch.untyped_storage(),
        lambda batch: TensorDict({"a": batch.view(-1, 4)}, batch_size=[]),
    ],
    ids=["tensor", "view", "other dtype", "array", "memory", "storage", "tensordict"],
)
def test_large_memory_is_used_again_once_its_last_user_is_gone(last_user: Callable[[torch.Tensor], object]) -> None:
    pool = BufferPool()
    batch = pool.empty(20 * MIB)
    place = address(batch)
    user = last_user(batch)
    del batch
    assert address(pool.empty(20 * MIB)) != place
    pool._free.clear()
    del user
    assert address(pool.empty(20 * MIB)) == place


@pytest.mark.parametrize("keep", [1, 4])
def test_little_memory_waits_for_reuse(keep: int) -> None:
    """Field case M10: batches of ever new sizes do not pile up."""
    pool = BufferPool(keep)
    for size in range(20, 400, 16):
        batch = pool.empty(size * MIB)
        del batch
    assert len(pool._free) == keep


def test_memory_much_larger_than_needed_is_left_for_others() -> None:
    pool = BufferPool()
    place = address(pool.empty(100 * MIB))
    small = pool.empty(17 * MIB)
    assert address(small) != place
    assert address(pool.empty(90 * MIB)) == place


def test_small_memory_is_not_pooled() -> None:
    pool = BufferPool()
    assert pool.empty(0).shape == (0,) and pool.empty(MIB).shape == (MIB,)
    assert not pool._free


def test_a_copy_of_a_pool_starts_empty() -> None:
    pool = BufferPool(2)
    pool.empty(17 * MIB)
    copied = pickle.loads(pickle.dumps(pool))
    assert len(pool._free) == 1 and not copied._free and copied._keep == 2


@pytest.mark.spec("ENG-09")
def test_a_forked_child_cannot_change_a_held_batch() -> None:
    pool = BufferPool()
    held, free = pool.empty(17 * MIB), pool.empty(17 * MIB)
    held.fill_(1)
    del free
    pid = os.fork()
    if pid == 0:
        held.fill_(2)
        pool.empty(17 * MIB).fill_(3)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert bool((held == 1).all())

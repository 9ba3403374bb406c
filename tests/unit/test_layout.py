"""Where everything lies: nothing overlaps, everything is aligned, the size is exact, whatever the fields are."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odstream.cache.layout import ANNOTATIONS, PROVENANCE, CacheLayout, Field
from odstream.cache.lock import LOCK_BYTES
from odstream.cache.store import CacheStore
from odstream.errors import SharedMemoryError
from tests.fakes.cache import FIELDS

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "float16", "int32", "uint32", "float32"]
DTYPES += ["int64", "uint64", "float64", "complex64", "complex128"]
NAMES = st.text("ab.'", min_size=1, max_size=3) | st.just("small")
KEYS = st.lists(NAMES, min_size=1, max_size=2).map(tuple)


@st.composite
def layouts(draw: st.DrawFn) -> CacheLayout:
    shapes = st.lists(st.integers(1, 5), max_size=3).map(tuple)
    fields = draw(st.dictionaries(KEYS, st.tuples(shapes, st.sampled_from(DTYPES)), min_size=1, max_size=6))
    return CacheLayout(
        slots=draw(st.integers(1, 4)),
        spare_rows=draw(st.integers(1, 3)),
        max_episode_steps=draw(st.sampled_from([1, 2, 7, 64, 65, 100])),
        fields=(*(Field(key, shape, np.dtype(name)) for key, (shape, name) in fields.items()), *ANNOTATIONS),
        event_capacity=draw(st.sampled_from([0, 1, 5])),
        language_bytes=draw(st.sampled_from([0, 1, 1000])),
    )


@given(layouts())
def test_no_two_arrays_overlap_and_all_are_aligned(layout: CacheLayout) -> None:
    places = [("lock", 0, LOCK_BYTES)]
    for name, array in layout.arrays.items():
        assert array.offset % (4096 if name.startswith("block:") else 64) == 0
        places.append((name, array.offset, array.offset + prod(array.shape) * array.dtype.itemsize))
    places.sort(key=lambda place: place[1])
    for (_, _, end), (name, begin, _) in pairwise(places):
        assert begin >= end, name
    assert layout.nbytes % 4096 == 0 and 0 <= layout.nbytes - places[-1][2] < 4096


@given(layouts())
def test_every_field_lies_in_one_block_aligned_and_alone(layout: CacheLayout) -> None:
    found = [member.field.key for block in layout.blocks for member in block.members]
    assert sorted(found) == sorted(field.key for field in layout.fields)
    assert len({block.name for block in layout.blocks}) == len(layout.blocks)
    for block in layout.blocks:
        ends = 0
        for field, offset in block.members:
            assert offset >= ends and offset % field.dtype.alignment == 0
            assert block.width_bytes % field.dtype.alignment == 0
            ends = offset + field.nbytes
        assert ends <= block.width_bytes
    assert sum(block.width_bytes for block in layout.blocks) < layout.frame_bytes + 16


@given(layouts(), st.data())
def test_what_is_written_to_one_field_of_one_frame_is_read_there_and_nowhere_else(
    layout: CacheLayout, data: st.DataObject
) -> None:
    store = CacheStore.create(layout)
    rows = store.rows_of_fields()
    key = data.draw(st.sampled_from([field.key for field in layout.fields]))
    row = data.draw(st.integers(0, layout.rows - 1))
    frame = data.draw(st.integers(0, layout.max_episode_steps - 1))
    before = {field.key: frames.copy() for field, frames in store.fields()}
    rows[key][row, frame] = 1
    position = int(store.first_frame(np.array([row]))[0]) + frame
    for field, frames in store.fields():
        if field.key == key:
            assert (frames[position] == 1).all()
            before[key][position] = 1
        assert frames.tobytes() == before[field.key].tobytes(), field.key
        assert rows[field.key].shape == (layout.rows, layout.max_episode_steps, *field.shape)


@pytest.mark.parametrize("steps", [1, 63, 64, 65, 300])
def test_guard_frames_lie_before_the_first_row_between_rows_and_behind_the_last(steps: int) -> None:
    layout = CacheLayout(slots=2, spare_rows=1, max_episode_steps=steps, fields=ANNOTATIONS)
    store = CacheStore.create(layout)
    for key, rows in store.rows_of_fields().items():
        rows[...] = 1
        frames = dict((field.key, values) for field, values in store.fields())[key]
        inner = np.ones(layout.frames, bool)
        for row in range(layout.rows):
            first = int(store.first_frame(np.array([row]))[0])
            inner[first : first + steps] = False
        padding = -1 if key[0] in ("task_index", "subtask_index") else 0
        assert (frames[inner] == padding).all() and (frames[~inner] == 1).all()
        assert inner[: layout.guard_frames].all() and inner[-layout.guard_frames :].all()
        assert inner.sum() == (layout.rows + 1) * min(steps, 64)


def test_a_new_cache_holds_nothing_but_padding() -> None:
    layout = CacheLayout(slots=3, spare_rows=2, max_episode_steps=5, fields=(*FIELDS, *ANNOTATIONS, *PROVENANCE))
    store = CacheStore.create(layout)
    for field, frames in store.fields():
        assert (frames == field.padding).all()
    assert store.row_of_slot.tolist() == [-1] * 3 and store.episode_id.tolist() == [-1] * 5
    assert not store.assigned.any() and not store.delivered.any() and not store.longest.any()


def test_offsets_beyond_four_gigabytes_are_exact() -> None:
    """A terabyte of pictures: arithmetic only, nothing is allocated."""
    image = Field(("obs",), (1024, 1024, 3), np.dtype(np.uint8))
    layout = CacheLayout(slots=900, spare_rows=100, max_episode_steps=300, fields=(image, *ANNOTATIONS))
    frames = 1000 * 364 + 64
    assert layout.frames == frames
    blocks = {name: array for name, array in layout.arrays.items() if name.startswith("block:")}
    assert blocks[f"block:{image.key}"].shape == (frames, 3 * 2**20)
    assert layout.nbytes > frames * 3 * 2**20 > 2**40
    assert max(array.offset for array in blocks.values()) > 2**40


@pytest.mark.spec("ENG-18")
def test_a_cache_larger_than_memory_is_refused_in_bytes() -> None:
    """Field case M01."""
    layout = CacheLayout(slots=2**40, spare_rows=1, max_episode_steps=300, fields=ANNOTATIONS)
    with pytest.raises(SharedMemoryError, match=rf"needs {layout.nbytes} bytes .* but \d+ bytes .* are available"):
        CacheStore.create(layout)

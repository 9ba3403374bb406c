"""The sub-task that an expert is in, frame by frame. Optional: most experts have none.

An expert that works in sub-tasks has, besides being callable,

* ``segment_names``: the names of its sub-tasks, and, if it likes, ``segment_instructions``, as many texts;
* ``segments``: after each call, the index of the sub-task that the action belongs to; one index, or ``[P]``.

Shapes: ``P`` rows of the batch, 1 for a single environment; ``T`` frames per attempt at most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from odstream.errors import EnvironmentContractError
from odstream.producers.base import Segment


class SegmentTrace:
    """Remembers the sub-task of every frame of the attempts under way, and cuts finished ones into segments.

    Raises:
        EnvironmentContractError: If names and instructions do not match.
    """

    def __init__(self, expert: Any, num_rows: int, max_episode_steps: int) -> None:
        self._expert = expert
        names = tuple(getattr(expert, "segment_names", ()))
        instructions = tuple(getattr(expert, "segment_instructions", (None,) * len(names)))
        if len(instructions) != len(names):
            raise EnvironmentContractError(
                f"the expert has {len(names)} segment_names and {len(instructions)} segment_instructions"
            )
        self._labels = tuple(zip(names, instructions, strict=True))
        self._rows = np.arange(num_rows)
        self._last = max_episode_steps - 1
        self._indices = np.zeros((num_rows, max_episode_steps), np.int64)

    def note(self, frames: NDArray[np.int64]) -> None:
        """Note the sub-tasks of the expert's latest actions, at frame ``frames[row]`` of each row.

        Raises:
            EnvironmentContractError: If ``expert.segments`` is not an index of a name per row.
        """
        if not self._labels:
            return
        segments = np.asarray(self._expert.segments)
        if segments.dtype.kind != "i" or segments.size not in (1, len(self._rows)):
            raise EnvironmentContractError(
                f"expert.segments must be an integer, or one per row ({len(self._rows)}), got {segments!r}"
            )
        if segments.min() < 0 or segments.max() >= len(self._labels):
            raise EnvironmentContractError(
                f"expert.segments must be indices into its {len(self._labels)} segment_names, got {segments!r}"
            )
        self._indices[self._rows, np.minimum(frames, self._last)] = segments.reshape(-1)

    def cut(self, row: int, length: int) -> tuple[Segment, ...]:
        """The segments of an attempt of ``length`` frames: consecutive, covering all of them; none without names."""
        if not self._labels or not length:
            return ()
        indices = self._indices[row, :length]
        starts = [0, *(np.flatnonzero(np.diff(indices)) + 1).tolist()]
        return tuple(
            Segment(
                start=start, end=end, name=self._labels[indices[start]][0], instruction=self._labels[indices[start]][1]
            )
            for start, end in zip(starts, [*starts[1:], length], strict=True)
        )

"""The limit: how fast this machine copies the chunks of a batch, with nothing else to do.

A C loop of ``memcpy`` takes one contiguous chunk per batch row out of process-shared memory (a cache that two
processes use cannot lie anywhere else) into memory that is reused. The chunks to copy are drawn before the clock
starts. Nothing is selected, checked, accounted, padded or wrapped.

The limit keeps the same promise as everyone else: the batch before the current one stays intact, since a training
loop still holds it. It therefore writes into two buffers in turn. A *bare* limit, which overwrites its only buffer,
is measured beside it; it is faster where cache and batch together just fit into the processor's own cache.
"""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from workload import Case, Shape, episode_lengths

C_SOURCE = """
#include <string.h>
#include <stdint.h>
void copy_chunks(const char *source, char *target, const int64_t *offsets, int64_t count, int64_t chunk_bytes) {
    for (int64_t i = 0; i < count; i++)
        memcpy(target + i * chunk_bytes, source + offsets[i], (size_t)chunk_bytes);
}
"""
PREPARED_DRAWS = 64

CopyChunks = Callable[[int, int, NDArray[np.int64], int], None]
"""``(source address, target address, offsets [B] in bytes, chunk bytes)``."""


def compile_copy_loop() -> CopyChunks | None:
    """Compile the loop with the system's C compiler; None where there is none or it fails."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "limit.c"), Path(folder, "limit.so")
        source.write_text(C_SOURCE, encoding="utf-8")
        command = [compiler, "-O3", "-shared", "-fPIC", "-o", str(library), str(source)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return None
        function = ctypes.CDLL(str(library)).copy_chunks
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    function.restype = None

    def copy_chunks(source: int, target: int, offsets: NDArray[np.int64], chunk_bytes: int) -> None:
        function(source, target, offsets.ctypes.data, len(offsets), chunk_bytes)

    return copy_chunks


def copy_with_memmove(source: int, target: int, offsets: NDArray[np.int64], chunk_bytes: int) -> None:
    """The same copies, one ``ctypes.memmove`` each: about 0.3 us per chunk slower than the C loop."""
    for index, offset in enumerate(offsets.tolist()):
        ctypes.memmove(target + index * chunk_bytes, source + offset, chunk_bytes)


class Limit:
    """Holds frames as large as the cache's in shared memory and copies chunks of them."""

    def __init__(self, shape: Shape) -> None:
        compiled = compile_copy_loop()
        self.name = "C loop" if compiled is not None else "ctypes.memmove loop (no C compiler)"
        self._copy_chunks = compiled or copy_with_memmove
        self._shape = shape
        self._lengths = episode_lengths(shape)
        self._memory = mmap.mmap(-1, shape.rows * shape.steps * shape.frame_bytes)
        source = np.frombuffer(self._memory, np.uint8)
        source[:] = 1
        self._source_address = source.ctypes.data

    def prepare(self, case: Case, *, buffers: int = 2) -> Callable[[], object]:
        """Return a call that copies one batch of ``case``; every call copies other chunks, drawn here."""
        chunk_bytes = case.chunk_length * self._shape.frame_bytes
        targets = [np.ones(case.batch_size * chunk_bytes, np.uint8) for _ in range(buffers)]
        rng = np.random.default_rng(11)
        rows = rng.integers(0, self._shape.rows, size=(PREPARED_DRAWS, case.batch_size))
        starts = rng.integers(0, np.maximum(1, self._lengths[rows] - case.chunk_length + 1))
        draws = (rows * self._shape.steps + starts) * self._shape.frame_bytes
        calls = 0

        def copy_batch() -> object:
            nonlocal calls
            calls += 1
            target = targets[calls % buffers]
            self._copy_chunks(self._source_address, target.ctypes.data, draws[calls % PREPARED_DRAWS], chunk_bytes)
            return target

        return copy_batch

    def close(self) -> None:
        """Free the memory."""
        self._memory.close()

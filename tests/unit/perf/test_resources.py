from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest

from odstream.perf import resources
from odstream.perf.resources import device_memory_bytes, memory_bytes, tree_memory_bytes

WITH_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "data = bytearray(60_000_000); print(1, flush=True); input()"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(1, flush=True)
input()
child.communicate(b"end")
"""


def test_memory_is_that_of_the_process_and_grows_with_it() -> None:
    before = memory_bytes()
    with mmap.mmap(-1, 50_000_000) as held:  # fresh pages, where a bytearray may reuse freed ones
        held.write(bytes(50_000_000))
        after = memory_bytes(os.getpid())
    assert before is not None and after is not None
    assert after - before > 40_000_000


@pytest.mark.spec("APP-03")
def test_the_memory_of_a_producer_is_that_of_all_it_started() -> None:
    parent = subprocess.Popen([sys.executable, "-c", WITH_A_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    alone, together = memory_bytes(parent.pid), tree_memory_bytes(parent.pid)
    parent.communicate(b"end\n")
    assert alone is not None and together is not None
    assert together - alone > 60_000_000


def test_a_process_that_is_gone_has_none() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert memory_bytes(ended.pid) is None and tree_memory_bytes(ended.pid) is None


def test_a_device_that_torch_does_not_use_is_not_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_memory_bytes() is None
    monkeypatch.delitem(resources.sys.modules, "torch", raising=False)
    assert device_memory_bytes() is None

"""The guard that watches every other test."""

import os
import subprocess
import sys
from multiprocessing import shared_memory

from tests.leaks import Holdings, wait_until_released


def test_a_running_child_process_is_found() -> None:
    before = Holdings.now()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        left = wait_until_released(before, deadline_s=0.0)
    assert len(left) == 1
    assert f"child process {child.pid}" in left[0]
    assert wait_until_released(before) == []


def test_an_entry_of_dev_shm_that_nobody_else_holds_is_found() -> None:
    before = Holdings.now()
    segment = shared_memory.SharedMemory(create=True, size=16)
    try:
        assert wait_until_released(before, deadline_s=0.0) == [f"/dev/shm/{segment.name}"]
    finally:
        segment.close()
        segment.unlink()
    assert wait_until_released(before) == []


def test_an_open_memory_file_is_found() -> None:
    before = Holdings.now()
    descriptor = os.memfd_create("forgotten")
    try:
        (left,) = wait_until_released(before, deadline_s=0.0)
        assert left.startswith("memory file forgotten#")
    finally:
        os.close(descriptor)
    assert wait_until_released(before) == []


HOLDER = """
import sys
from multiprocessing import get_context
lock = get_context("spawn").Lock()
print("held", flush=True)
sys.stdin.read()
"""
STARTER = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"


def test_what_another_program_holds_is_not_counted() -> None:
    before = Holdings.now()
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "held\n"
        starter.wait()  # so that the holder is no descendant of this process any more
        assert Holdings.now().shared_memory - before.shared_memory
        assert wait_until_released(before, deadline_s=0.0) == []

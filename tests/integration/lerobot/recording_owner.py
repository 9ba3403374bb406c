"""A process that records, and is killed. Importable by spawned ones; run as a module."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from odstream.recording import EpisodeRecorder
from tests.fakes.producers import Script
from tests.process.consumers import running

LENGTHS = (5, 7, 9)


def record_and_die(root: Path, episodes: int) -> None:
    """Record ``episodes``, say so, and be killed without a goodbye."""
    with running(Script(lengths=LENGTHS), buffer_size=4, include_provenance=True) as engine:
        recorder = EpisodeRecorder(engine, root, episodes_per_file=4)
        while recorder.recorded < episodes:
            recorder.record_new(limit=episodes - recorder.recorded)
            engine.wait_for_generation(engine.request_refill(), timeout=60)
        print(recorder._converter.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    record_and_die(Path(sys.argv[1]), int(sys.argv[2]))

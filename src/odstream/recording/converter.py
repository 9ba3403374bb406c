"""Takes episodes out of a spool and writes them into the dataset, in a process of its own."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from odstream.recording.spool import Spool, spool_folder
from odstream.recording.writer import LeRobotWriter

__all__ = ["convert", "run_converter"]

_IDLE_S = 0.05
_NICENESS = 19
"""The converter works with what producer and learner leave of the processors."""


def run_converter(root: Path, owner_pid: int) -> None:
    """Convert until the spool has ended or its owner is gone, and nothing is left. Entry point of the process.

    If the owner dies, what it had put into the spool still becomes part of the dataset.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides when a recording ends
    os.nice(_NICENESS)
    spool = Spool(spool_folder(root))
    try:
        import datasets

        datasets.disable_progress_bars()
        convert(root, until=lambda: spool.ended or os.getppid() != owner_pid)
    except BaseException:
        spool.fail(traceback.format_exc())
        raise SystemExit(1) from None
    if not spool.ended:
        spool.remove()  # nobody else will


def convert(root: Path, until: Callable[[], bool] | None = None) -> int:
    """Write all episodes of the dataset's spool, in order; return how many the dataset then has.

    Args:
        root: The dataset's folder.
        until: Called when the spool is empty; once it returns true and the spool is still empty, this ends. None: what
            is there is all.
    """
    spool = Spool(spool_folder(root))
    plan = spool.plan()
    writer = LeRobotWriter(root, spool.folder, plan)
    while True:
        finish = until is None or until()
        done = writer.episodes
        for number in spool.pending():
            if number < done:
                spool.drop(number)
        pending = spool.pending()[: plan.episodes_per_file]
        if pending and (finish or len(pending) == plan.episodes_per_file):
            writer.append([spool.get(number) for number in pending])
        elif not pending and finish:
            return done
        else:
            time.sleep(_IDLE_S)

"""``odstream demo``."""

from __future__ import annotations

from collections.abc import Sequence

import tyro

from odstream.envs.franka.demo import DemoCfg, run

TARGET_MISSED = 1
_SUMMARY = "Train a small policy on a live stream of Franka pick-and-place demonstrations, and evaluate it."


def main(arguments: Sequence[str]) -> int:
    """Train a small policy on a live stream of Franka pick-and-place demonstrations and evaluate it.

    Returns:
        0 if the target was met, 1 if not.
    """
    cfg = tyro.cli(DemoCfg, args=arguments, prog="odstream demo", description=_SUMMARY)
    return 0 if run(cfg).target_met else TARGET_MISSED

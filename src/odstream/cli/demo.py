"""``odstream demo``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tyro

from odstream.cli.main import USAGE_ERROR
from odstream.envs.franka.demo import DemoCfg, run

TARGET_MISSED = 1
_SUMMARY = "Train a small policy on a live stream of Franka pick-and-place demonstrations, and evaluate it."


def main(arguments: Sequence[str]) -> int:
    """Train a small policy on a live stream of Franka pick-and-place demonstrations and evaluate it.

    Returns:
        0 if the target was met, 1 if not, 2 for a setting that is out of range.
    """
    try:
        cfg = tyro.cli(DemoCfg, args=arguments, prog="odstream demo", description=_SUMMARY)
    except ValueError as error:  # from a nested setting; of the others tyro tells by itself
        print(f"odstream demo: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0 if run(cfg).target_met else TARGET_MISSED

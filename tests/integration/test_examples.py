"""The examples run as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.spec("APP-01")
def test_the_online_dataset_demo_shows_items_batches_and_changing_lengths() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "examples/data_pipeline/online_dataset_demo.py"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    for mode in ("item mode", "batch mode"):
        assert len(re.findall(rf"^{mode} +\[16, 32\]: obs \[16, 32, 3\], actions \[16, 32, 1\]", run.stdout, re.M)) == 2
    lengths = re.findall(r"^(?:uniform|mixed) lengths? +\[16, (\d+)\]", run.stdout, re.M)
    assert len(lengths) == 6
    assert len(set(lengths)) > 1


@pytest.mark.spec("FLOW-05", "PLAN-02")
@pytest.mark.timeout(150)
def test_the_planning_example_measures_plans_applies_and_compares() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "examples/apply_plan.py"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert re.search(r"^measured: [\d.]+ episodes/s, [\d,]+ chunks/s$", run.stdout, re.M)
    assert re.search(r"^plan: 32 episodes, \d+ uses each", run.stdout, re.M)
    for quantity in ("training, active", "production", "usage_throttle", "first publication, p95", "cache"):
        assert re.search(rf"^{quantity} +[\d.,]+ +[\d.,e-]+", run.stdout, re.M), quantity
    granted, episodes, delivered, remaining, retired = (
        int(number.replace(",", ""))
        for number in re.search(  # type: ignore[union-attr]
            r"([\d,]+) granted to ([\d,]+) episodes = ([\d,]+) delivered \+ ([\d,]+) remaining \+ ([\d,]+) retired",
            " ".join(run.stdout.split()),
        ).groups()
    )
    assert granted == delivered + remaining + retired
    assert episodes == 8 * 32

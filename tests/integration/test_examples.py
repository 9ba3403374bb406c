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

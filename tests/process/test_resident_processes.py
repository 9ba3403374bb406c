"""Resident sources in other processes: resumed, forked, spawned, refused."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.process.resident_consumers import ask, draws, make_source

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).resolve().parents[2]
METHODS = pytest.mark.parametrize("method", ["fork", "spawn"])


@pytest.mark.spec("QUOTA-08")
def test_a_protected_run_goes_on_in_a_new_process_where_it_stopped(tmp_path: Path) -> None:
    source = make_source(budget=50)
    draws(source, 5)
    torch.save(source.state_dict(), tmp_path / "state.pt")
    subprocess.run(
        [sys.executable, "-m", "tests.process.resident_consumers", tmp_path / "state.pt", tmp_path / "result.pt"],
        cwd=ROOT,
        check=True,
        timeout=100,
    )
    resumed = torch.load(tmp_path / "result.pt", weights_only=True)
    assert resumed["draws"] == draws(source, 10)
    assert resumed["ledger"] == source.get_sampling_budget_snapshot()
    assert resumed["ledger"]["total_delivered_chunks"] == 60


def asked(source: Any, method: str) -> Any:
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=ask, args=(source, sender))
    process.start()
    try:
        assert receiver.poll(90)
        return receiver.recv()
    finally:
        process.join(30)
        sender.close()
        receiver.close()


@METHODS
@pytest.mark.spec("DATA-04")
def test_copies_without_budgets_share_the_frames_and_draw_differently(method: str) -> None:
    """Field case S02."""
    source = make_source(seed=1)
    right, theirs = asked(source, method)
    assert right is True
    right_again, others = asked(source, method)
    assert right_again is True
    assert theirs != others
    assert draws(source, 21)[1:] not in (theirs, others)


@pytest.mark.spec("DATA-04")
def test_a_forked_copy_with_budgets_is_refused() -> None:
    source = make_source(budget=5)
    kind, message = asked(source, "fork")
    assert kind == "SourceOwnershipError" and "Iterate with num_workers=0" in message
    assert source.get_sampling_budget_snapshot()["total_delivered_chunks"] == 0


@pytest.mark.spec("DATA-04")
def test_a_source_with_budgets_is_not_handed_to_a_spawned_process() -> None:
    with pytest.raises(RuntimeError, match="its ledger would be doubled; iterate with num_workers=0"):
        asked(make_source(budget=5), "spawn")

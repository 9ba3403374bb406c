"""Episodes on their way: complete or not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from odstream.recording.spool import RecordingPlan, Spool, SpooledEpisode, spool_folder

PLAN = RecordingPlan(
    features={"action": {"dtype": "float32", "shape": (2,), "names": None}},
    fps=20,
    mapping={"observation": "observation.state", "action": "action", "fields": {}, "scalars": []},
    recording={"run_id": 2**62 - 1},
    episodes_per_file=4,
)


def episode(number: int) -> SpooledEpisode:
    columns = {"action": np.full((3, 2), number, np.float32), "ods.provenance": np.full((3, 6), 2**62 - 1 - number)}
    return SpooledEpisode(
        columns=columns, task="Würfel greifen", language={"task": {0: "Würfel greifen"}, "subtask": {}}
    )


def test_episodes_come_out_as_they_went_in_and_in_order(tmp_path: Path) -> None:
    spool = Spool.create(tmp_path / "spool", PLAN)
    for number in (2, 0, 10):
        spool.put(number, episode(number))
    assert spool.pending() == [0, 2, 10]
    found = spool.get(2)
    for name, values in episode(2).columns.items():
        assert np.array_equal(found.columns[name], values) and found.columns[name].dtype == values.dtype
    assert (found.task, found.language) == ("Würfel greifen", {"task": {0: "Würfel greifen"}, "subtask": {}})
    spool.drop(2)
    spool.drop(2)
    assert spool.pending() == [0, 10]
    assert Spool(tmp_path / "spool").plan() == PLAN


def test_a_file_that_was_not_finished_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool.create(tmp_path / "spool", PLAN)

    def dying(*_arguments: object, **_content: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", dying)
    with pytest.raises(OSError, match="disk full"):
        spool.put(0, episode(0))
    assert spool.pending() == []


def test_end_and_failure_are_seen_by_the_other_side(tmp_path: Path) -> None:
    mine = Spool.create(tmp_path / "spool", PLAN)
    theirs = Spool(tmp_path / "spool")
    assert not theirs.ended and mine.failure() is None
    mine.end()
    theirs.fail("boom-42")
    assert theirs.ended and mine.failure() == "boom-42"
    mine.forget_failure()
    assert theirs.failure() is None
    mine.remove()
    assert not (tmp_path / "spool").exists()


def test_one_dataset_has_one_recording_at_a_time(tmp_path: Path) -> None:
    folder = spool_folder(tmp_path / "run")
    assert folder == tmp_path / ".run.recording"
    Spool.create(folder, PLAN)
    with pytest.raises(FileExistsError):
        Spool.create(folder, PLAN)


def test_a_plan_of_another_version_is_refused(tmp_path: Path) -> None:
    spool = Spool.create(tmp_path / "spool", PLAN)
    path = tmp_path / "spool/plan.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(ValueError, match="was written by another version"):
        spool.plan()

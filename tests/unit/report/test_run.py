"""A run directory is read as it was written, and what is not right is said in one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odstream.calibration import comparison_to_json
from odstream.perf import RunDirectory
from odstream.report.run import comparison_from_json, read_run
from tests.fakes.run import PARTS, FakeRun, write_run


def test_everything_is_read(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "mine"))
    assert len(run.records) == 120
    assert run.torn == ""
    assert run.name == "franka: mine"
    assert run.selections_per_episode == 100
    assert run.plan is not None and run.plan.plan().episode_sample_budget == 100
    assert run.trajectories is not None and len(run.trajectories.episodes) == FakeRun().episodes
    assert run.comparison is not None and run.comparison.reuse.unaccounted_chunks == 0
    assert run.task_text is not None and "instruction" in run.task_text


def test_what_the_run_directory_writes_is_enough(tmp_path: Path) -> None:
    run = read_run(RunDirectory(tmp_path / "new", {"task": "reach"}).path)
    assert run.name == "reach: new"
    assert (run.metrics, run.task_text, run.plan, run.comparison, run.trajectories, run.outcome) == (None,) * 6
    assert run.selections_per_episode is None


def test_a_comparison_comes_back_as_it_was_written(tmp_path: Path) -> None:
    comparison = read_run(write_run(tmp_path)).comparison
    assert comparison is not None
    assert comparison_from_json(comparison_to_json(comparison)) == comparison


@pytest.mark.parametrize("cut", [1, 30, 400])
def test_a_torn_file_is_read_up_to_its_last_whole_record(tmp_path: Path, cut: int) -> None:
    """Field case Q02."""
    path = write_run(tmp_path) / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[: -1 - cut])
    run = read_run(tmp_path)
    assert len(run.records) == 119
    assert "line 120 is torn" in run.torn


def test_a_run_that_ended_before_its_first_record_is_read(tmp_path: Path) -> None:
    write_run(tmp_path, parts=())
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    run = read_run(tmp_path)
    assert run.metrics is not None
    assert run.records == ()


@pytest.mark.parametrize("part", [name for name in PARTS if name.endswith(".json")])
@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"format": "odstream.other", "version": 1}', "null"],
)
def test_a_file_of_another_format_is_left_out_and_named(tmp_path: Path, part: str, content: str) -> None:
    """Field case Q02."""
    write_run(tmp_path)
    (tmp_path / part).write_text(content, encoding="utf-8")
    run = read_run(tmp_path)
    (said,) = run.damaged
    assert part in said and "\n" not in said
    assert getattr(run, part.partition(".")[0]) is None
    assert len(run.records) == 120


@pytest.mark.parametrize("part", [name for name in PARTS if name.endswith(".json")])
def test_another_version_is_left_out_and_named(tmp_path: Path, part: str) -> None:
    path = write_run(tmp_path) / part
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}), encoding="utf-8")
    (said,) = read_run(tmp_path).damaged
    assert "version" in said


@pytest.mark.parametrize("part", ["comparison.json", "trajectories.json"])
def test_a_document_without_its_fields_is_left_out_and_named(tmp_path: Path, part: str) -> None:
    path = write_run(tmp_path) / part
    found = json.loads(path.read_text())
    for name in ("reuse", "episodes"):
        found.pop(name, None)
    path.write_text(json.dumps(found), encoding="utf-8")
    (said,) = read_run(tmp_path).damaged
    assert part in said and "is missing" in said


@pytest.mark.parametrize("end", [b"\0" * 300, b"\0" * 300 + b"\n", b'{"train/step": 5, "elap\n'])
def test_a_last_line_that_a_power_cut_left_is_torn(tmp_path: Path, end: bytes) -> None:
    """Field case Q02."""
    path = write_run(tmp_path) / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + end)
    run = read_run(tmp_path)
    assert len(run.records) == 120
    assert "line 121 is torn" in run.torn


@pytest.mark.parametrize("line", ["{}", "1", '{"train/step": 1, "values": []}', '{"train/step": "x", "values": {}}'])
def test_a_broken_record_before_the_last_one_is_refused(tmp_path: Path, line: str) -> None:
    path = write_run(tmp_path) / "metrics.jsonl"
    path.write_text(line + "\n" + path.read_text(), encoding="utf-8")
    with pytest.raises(ValueError, match="metrics.jsonl.*no record"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("{", "run.json"), ("[]", "a JSON object is needed"), ("{}", "started_unix_ns must be int, got None")],
)
def test_a_broken_head_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "run.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=complaint):
        read_run(tmp_path)


def test_another_folder_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"is no run directory: it has no run\.json"):
        read_run(tmp_path)
    with pytest.raises(FileNotFoundError, match="is no folder"):
        read_run(tmp_path / "absent")

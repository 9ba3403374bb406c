from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from odstream.perf.records import JsonLinesSink, Record, read_records
from odstream.perf.run_directory import RunDirectory


def record(step: int, **values: float) -> Record:
    return Record(
        step=step,
        unix_ns=17,
        elapsed_s=0.5 * step,
        values=values,
        stale=frozenset({"old"} & values.keys()),
        verdict="balanced",
    )


def test_what_was_written_is_read_and_each_line_is_there_at_once(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "metrics.jsonl")
    written = []
    for step in range(3):
        written.append(record(step, new=1.5 * step, old=2.0))
        sink.write(written[-1])
        assert read_records(tmp_path / "metrics.jsonl").records == tuple(written)
    sink.close()
    assert read_records(tmp_path / "metrics.jsonl").torn == ""


def test_a_torn_last_line_is_said_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = [record(step, new=1.0).to_json() + "\n" for step in range(3)]
    text = "".join(whole)
    for cut in range(len(text) - len(whole[-1]) + 1, len(text) - 1):
        path.write_text(text[:cut])
        found = read_records(path)
        assert [one.step for one in found.records] == [0, 1]
        assert found.torn.startswith("line 3 is torn")
    path.write_text(text[:-1])
    assert read_records(path).torn == "", "only the line's end is missing"


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(record(0).to_json() + "\n" + '{"other": 1}\n' + record(2).to_json() + "\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: no record"):
        read_records(path)


def test_a_run_that_has_written_nothing_yet_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    assert read_records(tmp_path / "metrics.jsonl").records == ()


def test_lines_are_strict_json_also_for_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    line = record(1, loss=math.nan, high=math.inf, low=-math.inf).to_json()
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    values = Record.from_json(line).values
    assert math.isnan(values["loss"])
    assert (values["high"], values["low"]) == (math.inf, -math.inf)


def test_a_run_directory_that_is_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run", {"batch_size": 8})
    found = json.loads((run.path / "run.json").read_text())
    assert found["settings"] == {"batch_size": 8}
    assert {"python", "platform", "packages", "command"} <= found["environment"].keys()
    before = (run.path / "run.json").read_bytes()
    with pytest.raises(FileExistsError, match="must be new or empty"):
        RunDirectory(run.path)
    assert (run.path / "run.json").read_bytes() == before


def test_settings_that_cannot_be_written_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        RunDirectory(tmp_path / "run", {"callable": print})
    assert not (tmp_path / "run").exists()

"""`odstream train` with performance metrics on real engines, and that nothing of them runs when they are off."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from odstream.cli import report, train
from odstream.cli.main import main as odstream
from odstream.errors import MissingExtraError
from odstream.perf import facts, sinks
from odstream.perf.exposure import Trajectories, read_trajectories
from odstream.perf.facts import PoolReading
from odstream.perf.records import Record, read_records
from tests.process.test_train_command import TASK as SLEEPING
from tests.process.test_train_command import make_plan

TASK = SLEEPING.replace("tests.fakes.calibration:trainer", "tests.fakes.metered:trainer")
ON = ["debug.enable_perf_metrics=true", "debug.window_s=0.4", "debug.every_s=0.05"]
BATCH = 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "task.yaml").write_text(TASK)
    (tmp_path / "profile.yaml").write_text(
        "{profile_id: sleeping, scope: test, qualified: false, min_chunks_per_episode: 10, "
        "max_chunks_per_episode: 20, hard_max_chunks_per_episode: 30}"
    )
    return tmp_path


def run(folder: Path, *arguments: str) -> int:
    return train.main(["--config", str(folder / "task.yaml"), "--output", str(folder / "run"), *arguments])


def left(folder: Path) -> tuple[list[Record], Trajectories, dict[str, Any]]:
    found = read_records(folder / "run/metrics.jsonl")
    assert not found.torn
    trajectories = read_trajectories((folder / "run/trajectories.json").read_text())
    return list(found.records), trajectories, json.loads((folder / "run/run.json").read_text())["settings"]


def balance(record: Record, budget: int | None) -> list[str]:
    counts = {name.removeprefix("perf/"): int(value) for name, value in record.values.items() if value == value}
    pool = PoolReading(
        delivered=counts["delivered"] + counts["prefetched"],
        remaining=counts.get("remaining"),
        retired=counts.get("retired"),
    )
    return facts.imbalances(counts, pool, budget or 1)


@pytest.mark.spec("PERF-01", "PERF-02", "PERF-05", "PERF-06", "APP-03")
def test_one_line_of_the_yaml_file_gives_metrics_a_verdict_and_what_a_report_is_made_of(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "task.yaml").write_text(
        TASK + "debug: {enable_perf_metrics: true, window_s: 0.4, every_s: 0.05, selections_per_episode: 2}\n"
    )
    assert run(folder, "training.updates=100") == 0
    printed = capsys.readouterr().out
    records, trajectories, settings = left(folder)
    values = records[-1].values
    assert records[-1].step == 100
    assert values["perf/compute_time"] == pytest.approx(0.02, rel=0.2)
    assert values["perf/step_time"] == pytest.approx(values["perf/data_time"] + values["perf/compute_time"])
    assert values["perf/train_capacity"] == pytest.approx(BATCH / values["perf/step_time"], rel=0.01)
    assert values["perf/infer_capacity"] > 0
    assert values["perf/producer/busy"] > 0.8, "a refill is asked for all the time"
    assert values["perf/delivered"] == values["perf/completed"] == 100 * BATCH
    assert values["perf/pool"] == 8
    assert 0 < values["perf/age_p50"] <= values["perf/age_p95"]
    assert values["perf/producer_memory"] > 1e6 and values["perf/learner_memory"] > 1e6
    assert sum(values[f"perf/learner/{name}"] for name in ("fetch", "compute", "other", "wait")) == pytest.approx(1)
    assert balance(records[-1], None) == []
    assert trajectories.totals == {"delivered": 1600, "completed": 1600, "failed": 0, "in_flight": 0}
    assert all(one.length == 10 and one.published_s is not None for one in trajectories.episodes)
    assert trajectories.episodes[0].generation == 1 < trajectories.episodes[-1].generation
    assert settings["shape"] == {
        "batch_size": BATCH,
        "selections_per_episode": 2,
        "reuse_known": True,
        "producer_batch": 1,
        "pool_capacity": None,
    }
    assert records[-1].details["verdict"] == "balanced", records[-1].verdict
    assert f"verdict    {records[-1].verdict}" in printed
    assert f"odstream report {folder / 'run'}" in printed


@pytest.mark.spec("PERF-01", "APP-03")
def test_a_planned_run_is_metered_by_an_override_and_its_counts_are_those_of_the_plan(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_plan(folder)
    budget = json.loads(path.read_text())["plan"]["episode_sample_budget"]
    assert run(folder, "--plan", str(path), *ON, "training.updates=80") == 0
    records, trajectories, settings = left(folder)
    values = records[-1].values
    assert settings["planned"] and settings["shape"]["selections_per_episode"] == budget
    assert balance(records[-1], budget) == []
    assert {"perf/remaining", "perf/retired"} <= values.keys()
    comparison = json.loads((folder / "run/comparison.json").read_text())
    assert comparison["reuse"]["delivered_chunks"] == trajectories.totals["completed"] == 80 * BATCH
    assert trajectories.assigned_chunks == budget >= max(one.delivered for one in trajectories.episodes)
    held_back = values["perf/learner/pace"] + values["perf/learner/wait"] + values["perf/producer/blocked"]
    assert held_back > 0.05, "the plan spaces batches, or one side waits for the other"
    assert report.main([str(folder / "run"), "--no-png"]) == 0
    assert (folder / "run/report.html").stat().st_size > 10_000


@pytest.mark.spec("PERF-01")
@pytest.mark.parametrize("setting", [[], ["debug.enable_perf_metrics=false"]])
def test_off_the_training_makes_no_call_into_the_metrics(
    folder: Path, monkeypatch: pytest.MonkeyPatch, setting: list[str]
) -> None:
    called: set[str] = set()

    def note(frame: Any, event: str, _argument: object) -> None:
        if event == "call" and "/odstream/perf/" in frame.f_code.co_filename and frame.f_code.co_name != "<module>":
            called.add(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")

    prepared = train._prepared

    def observed(*arguments: Any) -> Any:
        job = prepared(*arguments)

        def training() -> bool:
            sys.setprofile(note)
            try:
                return job.run()
            finally:
                sys.setprofile(None)

        return type(job)(task=job.task, planned=job.planned, metrics=job.metrics, engine=job.engine, run=training)

    monkeypatch.setattr(train, "_prepared", observed)
    assert run(folder, *setting, "training.updates=5") == 0
    assert called == set()
    assert sorted(file.name for file in (folder / "run").iterdir()) == ["run.json", "task.yaml"]


def test_the_test_above_would_see_a_call(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    with pytest.raises(AssertionError):
        test_off_the_training_makes_no_call_into_the_metrics(folder, monkeypatch, ON)


@pytest.mark.spec("PERF-02")
def test_after_a_failed_update_the_counts_balance_and_everything_is_written(folder: Path) -> None:
    with pytest.raises(FloatingPointError):
        run(folder, *ON, "training.updates=60", "training.failing=50")
    records, trajectories, _ = left(folder)
    values = records[-1].values
    assert records[-1].step == 50
    assert (values["perf/completed"], values["perf/delivered"]) == (50 * BATCH, 51 * BATCH)
    assert (values["perf/failed_updates"], values["perf/in_flight"]) == (BATCH, 0)
    assert balance(records[-1], None) == []
    assert trajectories.totals == {"delivered": 51 * BATCH, "completed": 50 * BATCH, "failed": BATCH, "in_flight": 0}


@pytest.mark.spec("PERF-01")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["debug.enable_perf_metric=true"], "debug has an unknown field 'enable_perf_metric' (close to 'enable_perf"),
        (["debug.enable_perf_metrics=1"], "debug.enable_perf_metrics must be true or false, got 1"),
        (["debug.sinks=jsonl"], "debug.sinks must be a list of names, got 'jsonl'"),
        (["debug.every_s=0"], "debug.every_s must be finite and greater than 0, got 0"),
        (["debug.selections_per_episode=0"], "debug.selections_per_episode must be"),
        ([*ON, "debug.sinks=[jsnl]"], "there is no sink named 'jsnl'; did you mean 'jsonl'?"),
        ([*ON, "debug.sinks=[jsonl,jsonl]"], "each sink must be named once"),
        ([*ON, "debug.sink_settings={wandb: {}}"], "settings for sinks that are not named: wandb"),
        ([*ON, "debug.sinks=[prometheus]", "debug.sink_settings={prometheus: {prt: 1}}"], "did you mean 'port'?"),
        ([*ON, "trainer=tests.fakes.metered:without_metrics"], "the trainer has no parameter named metrics"),
        (["debug=3"], "debug must be a mapping of settings, got int"),
    ],
)
def test_a_debug_section_that_is_not_acceptable_is_refused_and_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], message: str
) -> None:
    assert run(folder, *overrides) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_a_sink_that_is_not_installed_is_named_before_anything_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"odstream\[wandb\]"):
        run(folder, *ON, "debug.sinks=[jsonl,wandb]")
    line = ["train", "--config", str(folder / "task.yaml"), "--output", str(folder / "run")]
    assert odstream([*line, *ON, "debug.sinks=[wandb]"]) == 2
    assert "pip install 'odstream[wandb]'" in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_a_sink_that_cannot_start_is_an_error_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> sinks.MetricSink:
        raise RuntimeError("the sink 'prometheus' could not start: OSError: address in use")

    monkeypatch.setitem(sinks.SINKS, "prometheus", refuse)
    monkeypatch.setattr(sinks, "_imported", lambda *_: None)
    assert run(folder, *ON, "debug.sinks=[jsonl,prometheus]") == 2
    assert "the sink 'prometheus' could not start" in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_a_port_that_is_taken_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = f"debug.sink_settings={{prometheus: {{port: {port}}}}}"
        assert run(folder, *ON, "debug.sinks=[jsonl,prometheus]", settings) == 2
    assert "the sink 'prometheus' could not start" in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_with_overwrite_nothing_of_an_earlier_run_stays(folder: Path) -> None:
    assert run(folder, *ON, "training.updates=30") == 0
    (folder / "run/report.html").write_text("of the earlier run")
    assert run(folder, *ON) == 2
    assert run(folder, "--overwrite", "training.updates=3") == 0
    assert sorted(file.name for file in (folder / "run").iterdir()) == ["run.json", "task.yaml"]

"""What an ordinary loop is promised, however it is left and however often it is entered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from odstream.perf.exposure import read_trajectories
from odstream.perf.records import Record, read_records
from odstream.perf.run_directory import RunDirectory
from odstream.perf.shape import PipelineShape
from odstream.perf.training import TrainingMetrics, TrainingMetricsCfg
from tests.fakes.clock import FakeClock

BATCH = 4


class Engine:
    """Publishes an episode per second of the clock, each worth four selections."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.began_ns, self.stopped, self.drawn = clock, clock(), False, 0

    def get_stats(self) -> dict[str, Any]:
        age_s = (self.clock() - self.began_ns) / 1e9
        return {
            "completed_generation": 1,
            "successful_episodes": int(age_s),
            "failed_episodes": 0,
            "production_seconds": age_s,
            "busy_seconds": age_s,
            "producer_state": "down" if self.stopped else "busy",
            "producer_pid": 0,
            "sampled_chunks": self.drawn,
            "remaining_chunks": 0 if self.stopped else 4 * int(age_s) - self.drawn,
            "retired_chunks": 0,
            "readable_episodes": 8,
        }

    def drain_lifecycle_events(self) -> list[dict[str, Any]]:
        return []


class Bench:
    def __init__(self, folder: Path, **cfg: Any) -> None:
        self.clock = FakeClock()
        self.engine = Engine(self.clock)
        shape = PipelineShape(batch_size=BATCH, selections_per_episode=4)
        self.run = RunDirectory(folder / "run")
        self.metrics = TrainingMetrics(shape, TrainingMetricsCfg(progress=False, **cfg), clock_ns=self.clock)
        self.metrics.open(self.run)

    def loader(self, count: int) -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(count):
            self.engine.drawn += BATCH
            ids = torch.tensor([[[7, 3, frame]] for frame in range(BATCH)])
            yield {"frame_ids": ids, "loss_mask": torch.ones(BATCH, 1, dtype=torch.bool)}

    def batches(self, count: int, **more: Any) -> Any:
        from odstream.perf.meter import LearnerMeter

        meter = LearnerMeter(warmup_steps=0, clock_ns=self.clock) if self.metrics._meter is None else None
        return self.metrics.batches(self.loader(count), self.engine, current=0, meter=meter, **more)

    @property
    def records(self) -> tuple[Record, ...]:
        return read_records(self.run.records_path).records


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.spec("PERF-02")
def test_every_epoch_is_metered_and_steps_count_on(bench: Bench) -> None:
    with bench.metrics:
        for _ in range(3):
            for _ in bench.batches(10):
                bench.clock.advance(1.0)
            bench.clock.advance(5.0)  # validation
    assert bench.records[-1].step == 30
    assert bench.records[-1].values["perf/completed"] == 30 * BATCH
    assert bench.records[-1].values["perf/learner/other"] > 0.1
    assert max(later.step - one.step for one, later in zip(bench.records, bench.records[1:], strict=False)) <= 2


@pytest.mark.parametrize("how", ["break", "steps", "end"])
def test_what_comes_after_the_loop_is_in_no_record(bench: Bench, how: str) -> None:
    taken = 0
    with bench.metrics:
        batches = bench.batches(30 if how == "end" else 99, steps=30 if how == "steps" else None)
        for _ in batches:
            bench.clock.advance(0.1)
            taken += 1
            if how == "break" and taken == 30:
                break
        bench.clock.advance(60.0)
        bench.engine.stopped = True
    last = bench.records[-1]
    assert taken == 30
    assert (last.step, last.values["perf/in_flight"]) == ((29, BATCH) if how == "break" else (30, 0))
    assert last.values["perf/step_time"] == pytest.approx(0.1, rel=0.05)
    assert last.values["perf/thru"] == pytest.approx(BATCH / 0.1, rel=0.05)
    assert last.values["perf/producer/down"] == 0.0
    assert last.elapsed_s < 4.0


def test_steps_end_the_iteration_without_asking_for_more(bench: Bench) -> None:
    with bench.metrics:
        for _ in bench.batches(9, steps=2, accumulate=3):
            bench.clock.advance(0.1)
    assert bench.engine.drawn == 6 * BATCH
    assert bench.records[-1].step == 2


@pytest.mark.parametrize("step_s", [0.1, 3.0])
def test_an_update_that_fails_is_in_the_last_record(bench: Bench, step_s: float) -> None:
    """However long ago the record before it was."""
    with pytest.raises(FloatingPointError), bench.metrics:
        for number, _ in enumerate(bench.batches(99)):
            bench.clock.advance(step_s)
            if number == 20:
                raise FloatingPointError
    values = bench.records[-1].values
    assert (values["perf/failed_updates"], values["perf/in_flight"]) == (BATCH, 0)
    assert values["perf/delivered"] == 21 * BATCH
    totals = read_trajectories(bench.run.trajectories_path.read_text()).totals
    assert totals == {"delivered": 21 * BATCH, "completed": 20 * BATCH, "failed": BATCH, "in_flight": 0}


def test_counts_of_producer_and_pool_are_of_one_moment(bench: Bench) -> None:
    with bench.metrics:
        for _ in bench.batches(60):
            bench.clock.advance(1.0)
    for record in bench.records:
        values = record.values
        drawn = values["perf/delivered"] + values["perf/prefetched"]
        assert 4 * values["perf/published"] == drawn + values["perf/remaining"] + values["perf/retired"]


def test_another_engine_or_meter_is_refused(bench: Bench) -> None:
    with bench.metrics:
        for _ in bench.batches(2):
            with pytest.raises(RuntimeError, match="open and not attached"):
                bench.metrics.attach(bench.engine)
        with pytest.raises(RuntimeError, match="the engine and the meter that were attached before"):
            bench.metrics.attach(Engine(bench.clock))
    with pytest.raises(RuntimeError, match="open and not attached"):
        bench.metrics.attach(bench.engine)


@pytest.mark.spec("PERF-03")
def test_ids_on_a_device_are_refused_in_words_or_left_alone(tmp_path: Path) -> None:
    def on_device(bench: Bench) -> Any:
        for batch in bench.loader(3):
            yield {
                **{name: value.to("meta") for name, value in batch.items()},
                "ods_published_at_monotonic_ns": torch.zeros(BATCH, 1, dtype=torch.int64, device="meta"),
            }

    counting, bench = Bench(tmp_path / "a"), Bench(tmp_path / "b", trajectories=False)
    with pytest.raises(TypeError, match=r"ids or mask are on meta: move to the device only .*trajectories=False"):
        next(iter(counting.metrics.batches(on_device(counting), counting.engine, current=0)))
    counting.metrics.close()
    with bench.metrics:
        for _ in bench.metrics.batches(on_device(bench), bench.engine, current=0):
            bench.clock.advance(1.0)
    assert "perf/age_p50" not in bench.records[-1].values

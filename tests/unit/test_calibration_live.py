"""A calibration run measures what producer and learner are known to take."""

from __future__ import annotations

from typing import Any

import pytest

from odstream.calibration import CalibrationCfg, run_calibration
from odstream.errors import OnlineDataWorkerError
from tests.fakes.engine import FakeClock, FakeEngine, FakeEngineCfg


def unbudgeted(**changes: Any) -> FakeEngineCfg:
    fields: dict[str, Any] = {
        "episode_sample_budget": None,
        "episode_sample_hard_limit": None,
        "lifecycle_event_capacity": 24,
    }
    return FakeEngineCfg(**{**fields, **changes})


class Bench:
    """A producer that takes ``group_s`` for 4 episodes, and a learner that takes ``step_s`` for 64 chunks."""

    def __init__(self, *, group_s: float = 4.0, step_s: float = 0.08, cfg: FakeEngineCfg | None = None) -> None:
        self.clock, self.step_s, self.steps = FakeClock(), step_s, 0
        self.engine = FakeEngine(self.clock, cfg or unbudgeted(), group_s=group_s)

    def train_batch(self) -> None:
        self.steps += 1
        self.clock.sleep(self.step_s)

    def run(self, **changes: Any) -> Any:
        options = {k: changes.pop(k) for k in ("progress",) if k in changes}
        cfg = CalibrationCfg(**{"batch_size": 64, "measurement_scope": "simulated", **changes})
        return run_calibration(self.engine, self.train_batch, cfg, bytes_per_episode=1000, clock=self.clock, **options)


@pytest.mark.spec("PLAN-13")
@pytest.mark.parametrize(("group_s", "step_s"), [(4.0, 0.08), (0.5, 0.001), (40.0, 0.9), (2.0, 1.9)])
def test_known_times_are_measured_within_five_percent(group_s: float, step_s: float) -> None:
    measured = Bench(group_s=group_s, step_s=step_s).run()
    assert measured.accepted_episodes_per_second == pytest.approx(4 / group_s, rel=0.05)
    assert measured.training_chunks_per_second == pytest.approx(64 / step_s, rel=0.05)
    assert measured.first_publication_p50_seconds == pytest.approx(group_s, rel=0.05)
    assert measured.first_publication_p95_seconds == pytest.approx(group_s, rel=0.05)
    assert (measured.accepted_episodes, measured.production_intervals) == (240, 20)
    assert (measured.batch_size, measured.producer_envs, measured.bytes_per_episode) == (64, 4, 1000)


def test_a_calibration_that_measured_enough_has_nothing_to_warn_about() -> None:
    assert Bench().run().warnings == ()
    (refills, latencies) = Bench().run(refills=3).warnings
    assert "Only 3 complete refills" in refills
    assert "95th percentile of 3" in latencies


def test_warming_up_is_not_measured() -> None:
    bench = Bench()
    slow_start = [1.0] * 10
    step = bench.train_batch
    bench.train_batch = lambda: bench.clock.sleep(slow_start.pop()) if slow_start else step()  # type: ignore[method-assign]
    measured = bench.run(refills=2)
    assert measured.training_chunks_per_second == pytest.approx(64 / 0.08)
    assert measured.window_start_monotonic_seconds >= 1012.0


def test_a_refill_that_was_pending_is_not_measured() -> None:
    bench = Bench()
    bench.engine.request_refill()
    bench.clock.now += 3.0
    measured = bench.run(refills=2)
    assert measured.production_intervals == 2
    assert measured.first_publication_p95_seconds == pytest.approx(4.0)


def test_progress_is_told_and_may_cancel() -> None:
    seen: list[tuple[int, int]] = []
    Bench().run(refills=2, progress=lambda done, wanted: seen.append((done, wanted)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    with pytest.raises(ZeroDivisionError):
        Bench().run(progress=lambda done, wanted: 1 / 0)


def test_a_refill_that_does_not_end_is_a_timeout() -> None:
    with pytest.raises(TimeoutError, match="refill 1 of 21 took longer than refill_timeout_s=5.0"):
        Bench().run(refill_timeout_s=5.0)


def test_a_failure_ends_the_run() -> None:
    bench = Bench()
    step = bench.train_batch

    def fail_later() -> None:
        step()
        if bench.steps == 50:
            bench.engine.failure = OnlineDataWorkerError("gone")

    bench.train_batch = fail_later  # type: ignore[method-assign]
    with pytest.raises(OnlineDataWorkerError):
        bench.run()
    assert bench.steps == 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"episode_sample_budget": 5}, "episode_sample_budget must be None while calibrating, got 5"),
        ({"lifecycle_event_capacity": 23}, r"at least 2 \* buffer_size = 24, got 23"),
        ({"gym_config": {}}, r'gym_config\["num_envs"\] must be an integer'),
        ({"refill_policy": "sample_threshold"}, 'refill_policy="manual"'),
    ],
)
def test_an_engine_that_cannot_be_measured_is_refused_before_anything_runs(
    changes: dict[str, Any], message: str
) -> None:
    bench = Bench(cfg=unbudgeted(**changes))
    with pytest.raises(ValueError, match=message):
        bench.run()
    assert (bench.steps, bench.engine.requests) == (0, [])


@pytest.mark.parametrize("field", ["batch_size", "refills", "warmup_refills", "refill_timeout_s"])
def test_a_setting_out_of_range_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        CalibrationCfg(**{"batch_size": 64, "measurement_scope": "s", field: 0})

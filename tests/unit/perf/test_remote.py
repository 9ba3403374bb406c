from __future__ import annotations

import pickle

import pytest

from odstream.perf.facts import FactFinder
from odstream.perf.meter import LearnerMeter, ProducerMeter, Snapshot
from odstream.perf.remote import RemoteMeter
from odstream.perf.shape import PipelineShape
from odstream.perf.window import Windows
from tests.fakes.clock import FakeClock

S = 1_000_000_000


def sent(meter: ProducerMeter) -> Snapshot:
    """A snapshot as it arrives on the other side."""
    found: Snapshot = pickle.loads(pickle.dumps(meter.snapshot()))
    return found


def test_what_arrives_is_what_the_other_process_measured_by_its_own_clock() -> None:
    here, there = FakeClock(start_s=5.0), FakeClock(start_s=90_000.0)
    remote, producer = RemoteMeter("engine0", clock_ns=here), ProducerMeter("engine0", clock_ns=there)
    producer.enter("busy")
    there.advance(2.0)
    producer.finish(accepted=8)
    remote.update(sent(producer))
    found = remote.snapshot()
    assert (found.counts, found.state) == (producer.snapshot().counts, "starved")
    assert found.states_ns == {"busy": 2 * S, "publish": 0, "blocked": 0, "starved": 0, "down": 0}


@pytest.mark.spec("PERF-04")
def test_time_before_the_first_report_and_after_the_end_is_down() -> None:
    here, there = FakeClock(), FakeClock()
    remote, producer = RemoteMeter("engine0", clock_ns=here), ProducerMeter("engine0", clock_ns=there)
    here.advance(3.0)
    assert remote.snapshot().state == "down"
    remote.update(sent(producer))
    for clock in (here, there):
        clock.advance(10.0)
    remote.update(sent(producer))
    assert remote.snapshot().states_ns == {"busy": 0, "publish": 0, "blocked": 0, "starved": 10 * S, "down": 3 * S}
    remote.end()
    here.advance(4.0)
    found = remote.snapshot()
    assert (found.state, found.states_ns["down"]) == ("down", 7 * S)
    assert found.wall_ns == 17 * S, "states sum to the wall time"


def test_a_window_takes_differences_of_what_has_arrived() -> None:
    clock = FakeClock()
    learner = LearnerMeter(warmup_steps=0, clock_ns=clock)
    producers = [ProducerMeter(f"engine{number}", clock_ns=clock) for number in range(2)]
    remotes = [RemoteMeter(one.name, clock_ns=clock) for one in producers]
    windows = Windows(clock_ns=clock)
    windows.restart([learner.snapshot(), *(remote.snapshot() for remote in remotes)])
    for producer, remote in zip(producers, remotes, strict=True):
        with producer.during("busy"):
            clock.advance(2.0)
        producer.finish(accepted=8)
        remote.update(sent(producer))
    remotes[1].end()
    clock.advance(2.0)
    window = windows.add([learner.snapshot(), *(remote.snapshot() for remote in remotes)])
    assert window is not None
    facts = FactFinder(PipelineShape(batch_size=8)).facts(window)
    assert (facts.infer_per_s, facts.slots_down, facts.accepted) == (4.0, 1, 16)
    assert facts.producer["down"] > 0


def test_a_restarted_process_begins_from_zero() -> None:
    clock = FakeClock()
    remote = RemoteMeter("engine0", clock_ns=clock)
    remote.update(sent(ProducerMeter("engine0", clock_ns=clock)))
    remote.end()
    clock.advance(5.0)
    remote.update(sent(ProducerMeter("engine0", incarnation=1, clock_ns=clock)))
    found = remote.snapshot()
    assert (found.incarnation, found.wall_ns, found.state) == (1, 0, "starved")


def test_reports_of_another_process_are_refused() -> None:
    remote = RemoteMeter("engine0")
    with pytest.raises(ValueError, match="of the producer 'engine0', got one of the producer 'engine1'"):
        remote.update(ProducerMeter("engine1").snapshot())
    with pytest.raises(ValueError, match="got one of the learner 'engine0'"):
        remote.update(LearnerMeter("engine0").snapshot())

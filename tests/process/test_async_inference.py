"""The engines of the asynchronous example: real processes, shared memory, deaths."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from examples.async_inference.engine import EngineCfg
from examples.async_inference.fleet import Fleet, NoEngineError
from examples.async_inference.models import Target, TargetCfg

pytestmark = [pytest.mark.spec("PERF-07"), pytest.mark.timeout(120)]

TARGET = TargetCfg(vocabulary=12, width=16, max_tokens=10, min_tokens=4)
ENGINE = EngineCfg(count=1, sequences=4, slots=3, seed=11)


@contextmanager
def fleet(
    cfg: EngineCfg = ENGINE, target: TargetCfg = TARGET, metrics: bool = True
) -> Iterator[tuple[Fleet, list[str]]]:
    said: list[str] = []
    with Fleet(cfg, target, metrics=metrics, tell=said.append) as started:
        yield started, said


def test_batches_hold_what_was_generated_in_its_order_whatever_their_size() -> None:
    target, generator = Target(TARGET), torch.Generator().manual_seed(ENGINE.seed)
    calls = [target.generate(ENGINE.sequences, generator) for _ in range(6)]
    tokens, hidden, lengths = (torch.cat(parts) for parts in zip(*calls, strict=True))
    taken = 0
    with fleet() as (engines, _):
        for size in (3, 5, 1, 4, 7):
            engines.wait_for(size, 60.0)
            batch, ages_s = engines.take(size, pin=False)
            place = slice(taken, taken + size)
            longest = int(lengths[place].max())
            assert torch.equal(batch.lengths, lengths[place])
            assert torch.equal(batch.tokens, tokens[place, :longest])
            assert torch.equal(batch.hidden, hidden[place, :longest])
            assert len(ages_s) == size and min(ages_s) >= 0
            taken += size
        assert engines.taken == taken


def test_an_engine_is_held_back_when_its_slots_are_full_and_says_so() -> None:
    with fleet() as (engines, _):
        engines.wait_for(12, 60.0)
        (meter,) = engines.meters
        while meter.snapshot().state != "blocked":
            with pytest.raises(TimeoutError, match="12 of 13 sequences were there after data_timeout_s=0.3"):
                engines.wait_for(13, 0.3)
        assert engines.received == 12, "the queue is bounded"
        engines.take(12, pin=False)
        engines.wait_for(12, 60.0)
        counts = meter.snapshot().counts
        assert counts["published"] == engines.received == engines.taken + engines.level
        assert meter.snapshot().states_ns["blocked"] > 0


def test_one_engine_dies_and_the_others_go_on() -> None:
    with fleet(EngineCfg(count=2, sequences=4, slots=3)) as (engines, said):
        engines.wait_for(24, 60.0)
        os.kill(engines.pids[0], signal.SIGKILL)
        for _ in range(8):
            engines.wait_for(12, 60.0)
            engines.take(12, pin=False)
        assert said == ["producers down: 1 of 2; engine0 was killed by signal 9"]
        assert [meter.snapshot().state == "down" for meter in engines.meters] == [True, False]
        assert sum(meter.snapshot().counts["published"] for meter in engines.meters) == engines.taken + engines.level


def test_what_dead_engines_have_left_is_used_before_it_is_an_error() -> None:
    with fleet() as (engines, said):
        engines.wait_for(12, 60.0)
        os.kill(engines.pids[0], signal.SIGKILL)
        engines.take(5, pin=False)
        engines.wait_for(7, 60.0)
        engines.take(7, pin=False)
        with pytest.raises(
            NoEngineError, match="no engine is left; 0 of 1 sequences.*\nengine0 was killed by signal 9"
        ):
            engines.wait_for(1, 60.0)
        assert len(said) == 1


def test_an_engine_that_fails_tells_its_traceback() -> None:
    broken = TargetCfg(vocabulary=12, width=16, max_tokens=10, min_tokens=4)
    object.__setattr__(broken, "sharpness", float("nan"))
    with fleet(target=broken) as (engines, said):
        with pytest.raises(NoEngineError, match="(?s)engine0 ended with code 1\nTraceback.*in generate.*RuntimeError"):
            engines.wait_for(1, 60.0)
        assert said == ["producers down: 1 of 1; engine0 ended with code 1"]


def test_a_wait_without_news_is_an_error_that_counts() -> None:
    with fleet() as (engines, _):
        engines.wait_for(1, 60.0)
        os.kill(engines.pids[0], signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError, match="arrived so far, engines down: 0 of 1"):
                engines.wait_for(1000, 0.2)
        finally:
            os.kill(engines.pids[0], signal.SIGCONT)


def test_without_metrics_nothing_is_reported() -> None:
    with fleet(metrics=False) as (engines, _):
        engines.wait_for(12, 60.0)
        assert engines.meters == []


def test_ending_twice_is_ending_once() -> None:
    with fleet() as (engines, said):
        engines.close()
        engines.close()
    assert said == []

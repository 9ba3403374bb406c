"""The training loop, with metrics or without."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import torch

import examples.async_inference as package
from examples.async_inference.fleet import Batch, Fleet, NoEngineError
from examples.async_inference.learner import Learner
from examples.async_inference.metrics import Metrics
from examples.async_inference.settings import Settings, read_settings


def main() -> None:
    """Read settings and run. The exit code is 1 if the run failed, 2 if it was refused."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.async_inference",
        description=package.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML with the settings that differ from defaults")
    parser.add_argument("--smoke", action="store_true", help="a run of seconds")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as engine.count=3 learner.width=512")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        cfg = read_settings(arguments.config, arguments.overrides, smoke=arguments.smoke)
        device = cfg.torch_device()
        metrics = Metrics(cfg, device) if cfg.debug.enable_perf_metrics else None
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        parser.error(str(error))
    try:
        with nullcontext() if metrics is None else metrics:
            run(cfg, device, metrics)
    except (ArithmeticError, NoEngineError, TimeoutError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted")


def run(cfg: Settings, device: torch.device, metrics: Metrics | None) -> None:
    """Train, and print how it went."""
    learner = Learner(cfg.learner, cfg.target, device)
    tell = print if metrics is None else metrics.tell
    with Fleet(cfg.engine, cfg.target, metrics=metrics is not None, tell=tell) as fleet:
        print(f"engines: processes {' '.join(map(str, fleet.pids))}; learner: {device}", flush=True)
        if metrics is not None:
            metrics.attach(fleet)
        began_s = time.monotonic()
        losses = train(cfg, fetched(cfg, fleet, device, metrics), learner, metrics)
        seconds = time.monotonic() - began_s
        last_words = "" if metrics is None else metrics.finish()
    print(
        f"{len(losses)} steps on {fleet.taken} sequences in {seconds:.1f} s, start-up included; "
        f"loss {losses[0]:.3f} -> {losses[-1]:.3f}"
    )
    if last_words:
        print(last_words)


def train(cfg: Settings, batches: Iterator[Batch], learner: Learner, metrics: Metrics | None) -> list[float]:
    """Complete one optimizer step per batch; return all losses.

    Raises:
        ArithmeticError: If a loss is not finite.
    """
    losses: list[float] = []
    for batch in batches if metrics is None else metrics.batches(batches):
        loss, agreement = learner.update(batch)
        if not math.isfinite(loss):
            raise ArithmeticError(f"the loss of step {len(losses) + 1} is {loss}")
        losses.append(loss)
        epoch = f"{-(-len(losses) // cfg.steps_per_epoch)}/{cfg.epochs}"
        if metrics is not None:
            metrics.monitor.note(loss=loss, acc=agreement, epoch=epoch)
        elif len(losses) % cfg.steps_per_epoch == 0:
            print(f"epoch {epoch}: loss={loss:.3f}, acc={agreement:.3f}", flush=True)
    return losses


def fetched(cfg: Settings, fleet: Fleet, device: torch.device, metrics: Metrics | None) -> Iterator[Batch]:
    """Yield batches on the device: wait for enough sequences, collate, copy."""
    for _ in range(cfg.epochs * cfg.steps_per_epoch):
        with nullcontext() if metrics is None else metrics.learner.during("wait"):
            fleet.wait_for(cfg.batch_size, cfg.data_timeout_s)
        batch, ages_s = fleet.take(cfg.batch_size, pin=device.type == "cuda")
        if metrics is not None:
            metrics.ages(ages_s)
        yield batch.to(device)

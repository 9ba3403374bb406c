"""``odstream record``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from odstream.cli.task import read_engine
from odstream.datasets.lerobot_import import import_lerobot
from odstream.engine import OnlineDataEngine
from odstream.recording import EpisodeRecorder, recover_recording
from odstream.validation import check_finite, check_int

INVALID_INPUT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordCfg:
    """What to record, and where."""

    output: Path
    """Folder of the new dataset."""
    config: str | None = None
    """Task file, or the name of a shipped task: franka. Only its section `engine` is used."""
    episodes: int = 64
    """Accepted episodes to record."""
    step_dt: float | None = None
    """Control period in seconds, where the environment does not report it."""
    episodes_per_file: int = 16
    """Episodes that are written, and become readable, together."""
    refill_timeout_s: float = 1800.0
    """Seconds to wait for one fill of the cache."""
    recover: bool = False
    """Finish a recording of this dataset that was interrupted, instead of starting one."""
    overrides: tyro.conf.Positional[tuple[str, ...]] = ()
    """Settings of the task to change: key=value, dotted, such as engine.buffer_size=16."""


def main(arguments: Sequence[str]) -> int:
    """Run a producer and write the episodes it accepts as a LeRobot dataset (version 3).

    Returns:
        0, or 2 if the input is not acceptable. Nothing was started or written then.
    """
    cfg = tyro.cli(
        RecordCfg, args=arguments, prog="odstream record", description=(main.__doc__ or "").partition("\n")[0]
    )
    try:
        if cfg.recover:
            episodes = recover_recording(cfg.output)
            print(f"{cfg.output}: {episodes} episodes")
            return 0
        engine = _engine(cfg)
    except (OSError, ValueError, TypeError) as error:
        print(f"odstream record: {error}", file=sys.stderr)
        return INVALID_INPUT
    with (
        engine,
        EpisodeRecorder(engine, cfg.output, step_dt=cfg.step_dt, episodes_per_file=cfg.episodes_per_file) as recorder,
    ):
        record(engine, recorder, cfg.episodes, refill_timeout_s=cfg.refill_timeout_s, progress=_show)
        print("writing the rest of the dataset", file=sys.stderr)
    print(f"{cfg.output}: {recorder.recorded} episodes")
    return 0


def _engine(cfg: RecordCfg) -> OnlineDataEngine:
    if cfg.config is None:
        raise ValueError("--config must name the task to record")
    check_int("episodes", cfg.episodes, 1)
    check_int("episodes_per_file", cfg.episodes_per_file, 1)
    check_finite("refill_timeout_s", cfg.refill_timeout_s)
    if cfg.output.exists() and (not cfg.output.is_dir() or any(cfg.output.iterdir())):
        raise ValueError(f"{cfg.output} is there and not empty; record into a new folder")
    settings = read_engine(cfg.config, cfg.overrides)
    import_lerobot()
    return OnlineDataEngine(dataclasses.replace(settings, include_provenance=True))


def record(
    engine: OnlineDataEngine,
    recorder: EpisodeRecorder,
    episodes: int,
    *,
    refill_timeout_s: float,
    progress: Callable[[int, int], object],
) -> None:
    """Record until ``episodes`` are recorded. The producer works on the next fill while one is written.

    Raises:
        TimeoutError: If one fill takes longer than ``refill_timeout_s``.
        RecordingError, Exception: As `EpisodeRecorder.record_new`.
    """
    while True:
        taken = recorder.take_new(limit=episodes - recorder.recorded)
        wanted = recorder.recorded + len(taken) < episodes
        generation = engine.request_refill() if wanted else 0
        recorder.put(taken)
        progress(recorder.recorded, episodes)
        if not wanted:
            return
        engine.wait_for_generation(generation, timeout=refill_timeout_s)


def _show(done: int, wanted: int) -> None:
    print(f"{done} of {wanted} episodes", file=sys.stderr)

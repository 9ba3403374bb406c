"""The arms on a dataset: demonstrations are collected, written with LeRobot's SDK, read back, and then fixed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from examples.ods.simple_bc_demo.arms import UNLIMITED, FixedArm, Run, engine_cfg
from examples.ods.simple_bc_demo.journal import Journal
from examples.ods.simple_bc_demo.resources import PRODUCER, ProcessUse, use_of_child
from examples.ods.simple_bc_demo.settings import RunCfg
from odstream.datasets import LeRobotDataSource
from odstream.datasets.lerobot_sidecar import read_sidecar
from odstream.engine import OnlineDataEngine
from odstream.envs.franka.schema import SCHEMA
from odstream.recording import EpisodeRecorder

DATASET = "dataset"
"""Folder of the demonstrations, within the run's."""
_MEMORY_LIMIT_BYTES = 2**31
_REFILL_TIMEOUT_S = 600.0


@contextmanager
def offline(run: Run) -> Iterator[FixedArm]:
    """Collect demonstrations unless a dataset is given, load them, and sample them from memory."""
    cfg = run.cfg
    root = run.folder / DATASET if cfg.dataset is None else cfg.dataset
    keep_sdk_within(run.folder)
    producer = collect(cfg, root, run.journal) if cfg.dataset is None else None
    with run.journal.phase("load"):
        source = load(root)
    arm = FixedArm(run, source, source.get_sampling_budget_snapshot, producer)
    arm.exposure.add_episodes(source.describe_episodes())
    yield arm


def collect(cfg: RunCfg, root: Path, journal: Journal) -> ProcessUse | None:
    """Produce demonstrations and write them. The producer works on the next fill while one is written.

    Returns:
        What the producer has used.
    """
    wanted = cfg.offline_episodes
    envs = cfg.stream.num_envs
    cache = min(cfg.stream.cache_episodes, -(-wanted // envs) * envs)
    with ExitStack() as stack:
        with journal.phase("collect"):
            engine = stack.enter_context(OnlineDataEngine(engine_cfg(cfg, buffer_size=cache)))
            recorder = stack.enter_context(EpisodeRecorder(engine, root, schema=SCHEMA, episodes_per_file=64))
            while True:
                taken = recorder.take_new(limit=wanted - recorder.recorded)
                more = recorder.recorded + len(taken) < wanted
                generation = engine.request_refill() if more else 0
                recorder.put(taken)
                if not more:
                    break
                engine.wait_for_generation(generation, timeout=_REFILL_TIMEOUT_S)
            producer = use_of_child(PRODUCER)
        with journal.phase("write"):
            stack.close()
    return producer


def load(root: Path) -> LeRobotDataSource:
    """Read a dataset of this task into memory. Its identity is that of the recording.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it holds something else.
    """
    sidecar = read_sidecar(root)
    return LeRobotDataSource(
        root,
        schema=SCHEMA,
        source_id=f"lerobot:{root.name if sidecar is None else sidecar.recording['run_id']}",
        memory_limit_bytes=_MEMORY_LIMIT_BYTES,
        episode_sample_budget=UNLIMITED,
        episode_sample_hard_limit=UNLIMITED,
    )


def keep_sdk_within(folder: Path) -> None:
    """Let LeRobot's SDK keep its copies in the run's folder, and reach for no network. Before it is imported."""
    os.environ.setdefault("HF_DATASETS_CACHE", str(folder.resolve() / "sdk-cache"))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

"""Live runs become datasets that LeRobot opens, and that yield the same contexts as the run itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from odstream.datasets import OnlineDataSource, SequenceSpecCfg, TensorDataSource
from odstream.datasets.lerobot import LeRobotDataSource
from odstream.datasets.lerobot_import import import_lerobot
from odstream.engine.episodes import copy_episodes
from odstream.errors import EngineStateError, RecordingError
from odstream.recording import EpisodeRecorder, recover_recording
from odstream.recording.spool import spool_folder
from odstream.recording.writer import LeRobotWriter
from tests.fakes.cache import seeded
from tests.fakes.producers import Script
from tests.integration.lerobot.recording_owner import LENGTHS
from tests.integration.lerobot.sdk import contents, lerobot
from tests.process.consumers import running

pytestmark = [*lerobot]

ROOT = Path(__file__).resolve().parents[3]
SCHEMA: dict[str, Any] = {
    "observation": {"names": ["a", "b", "c"], "dtype": "float32"},
    "action": {"names": ["x", "y", "z"], "dtype": "float32", "semantics": "expert_controller_command", "step_dt": 0.05},
}
RICH = Script(
    lengths=(12, 9, 14, 10),
    segments=((0, 4), (4, 20)),
    subtasks=("reach", "grasp"),
    gaps=(6,),
    continuity=(0,) * 8 + (1,) * 12,
    instructions=("pick the cube", "place the cube"),
    extra_fields=(
        (("extra", "scalar"), (), "float64"),
        (("extra", "matrix"), (2, 3), "int32"),
        (("extra", "flags"), (4,), "bool"),
        (("extra", "byte"), (), "uint8"),
        (("camera",), (4, 4, 3), "uint8"),
    ),
)


def opened(root: Path) -> Any:
    """The dataset as LeRobot's own class opens it."""
    dataset_class, _ = import_lerobot()
    return dataset_class(f"local/{root.name}", root=root, download_videos=False)


def load(root: Path, **more: Any) -> LeRobotDataSource:
    return LeRobotDataSource(root, **({"schema": SCHEMA, "source_id": "recorded", "memory_limit_bytes": 2**26} | more))


def resident(engine: Any) -> TensorDataSource:
    """What the engine holds, as tensors."""
    episodes = []
    for episode in copy_episodes(engine):
        frames = {key if len(key) > 1 else key[0]: torch.from_numpy(values) for key, values in episode.frames.items()}
        episodes.append(TensorDict(frames, batch_size=(episode.length,)).exclude("camera"))
    return TensorDataSource(episodes, schema=SCHEMA, source_id="tensors")


@pytest.mark.spec("SRC-08", "SRC-07", "SRC-06")
def test_a_live_run_its_tensors_and_its_recording_yield_the_same_contexts(tmp_path: Path, caplog: Any) -> None:
    root = tmp_path / "run"
    with running(RICH, buffer_size=6, include_provenance=True) as engine:
        with EpisodeRecorder(engine, root, schema=SCHEMA, episodes_per_file=4) as recorder:
            assert recorder.record_new() == 6 and recorder.record_new() == 0
        sources = (OnlineDataSource(engine, schema=SCHEMA), resident(engine), load(root))
        for mode in ("episode", "segment"):
            generators = [seeded(11) for _ in sources]
            for spec in (SequenceSpecCfg(3, 5, mode), SequenceSpecCfg(1, 1, mode), SequenceSpecCfg(2, 4, mode, (1,))):
                live, tensors, recorded = (
                    source.sample_context(48, spec, generator=generator)
                    for source, generator in zip(sources, generators, strict=True)
                )
                keys = set(recorded.keys(include_nested=True, leaves_only=True))
                assert keys == set(live.keys(include_nested=True, leaves_only=True)) - {"camera"}
                for key in keys:
                    assert torch.equal(live[key], tensors[key]), key
                    assert torch.equal(live[key], recorded[key]), key
                    assert live[key].dtype == recorded[key].dtype
        real = live[live["valid"]]
        texts = engine.resolve_language(real)
        assert sources[2].resolve_language(recorded[recorded["valid"]]) == texts
        assert set(texts["subtask"]) == {"reach", "grasp"}
    assert "not recorded: camera (an image; only numbers are recorded)" in caplog.text


def test_a_recording_opens_with_lerobots_own_tools(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with running(RICH, buffer_size=6, include_provenance=True) as engine:
        with EpisodeRecorder(engine, root, schema=SCHEMA, episodes_per_file=4) as recorder:
            recorder.record_new()
            engine.wait_for_generation(engine.request_refill(), timeout=60)
            recorder.record_new(limit=3)
        run = engine.run_id
    assert not spool_folder(root).exists()
    dataset = opened(root)
    lengths = [RICH.lengths[number % 4] for number in range(9)]
    assert (dataset.meta.total_episodes, len(dataset), dataset.fps) == (9, sum(lengths), 20)
    assert list(dataset.meta.episodes["length"]) == lengths
    assert dataset.meta.features["action"]["names"] == ["x", "y", "z"]
    item = dataset[lengths[0] + 2]
    assert (int(item["episode_index"]), int(item["frame_index"]), item["task"]) == (1, 2, "place the cube")
    assert torch.equal(item["observation.state"], torch.full((3,), 1002.0))
    origin = dict(zip(dataset.meta.features["ods.provenance"]["names"], item["ods.provenance"].tolist(), strict=True))
    assert [origin[f"ods_{name}"] for name in ("run_id", "episode_id", "generation", "frame_index")] == [run, 1, 1, 2]
    assert len(list(root.glob("data/*/*.parquet"))) == 3
    sidecar = json.loads((root / "meta/odstream.json").read_text())
    assert sidecar["recording"]["run_id"] == run and sidecar["recording"]["schema"] == SCHEMA
    plain = {"semantics": "expert_controller_command", "terms": [], "expert_action_spec": None}
    assert sidecar["recording"]["action"] == plain
    ids = load(root, episodes=[8]).sample_context(4, SequenceSpecCfg(1, 1))["frame_ids"][:, 0]
    assert (ids[:, 0] == run).all() and (ids[:, 1] == 8).all()


def test_nested_observations_are_recorded_under_their_names(tmp_path: Path) -> None:
    nested = Script(
        lengths=(6,), extra_fields=((("obs", "arm", "q"), (2,), "float32"), (("obs", "time"), (), "float64"))
    )
    declared = {
        "fields": {"arm": {"fields": {"q": {"names": ["q1", "q2"]}}}, "time": {"shape": [], "dtype": "float64"}}
    }
    schema = {**SCHEMA, "observation": declared}
    with running(nested, include_provenance=True) as engine:
        with EpisodeRecorder(engine, tmp_path / "run", schema=schema) as recorder:
            recorder.record_new()
        live = OnlineDataSource(engine, schema=schema).sample_context(9, SequenceSpecCfg(2, 2), generator=seeded(0))
    stored = load(tmp_path / "run", schema=schema).sample_context(9, SequenceSpecCfg(2, 2), generator=seeded(0))
    for key in (("obs", "arm", "q"), ("obs", "time"), "actions", "rewards", "frame_ids"):
        assert torch.equal(live[key], stored[key])


def test_what_was_replaced_before_it_was_recorded_is_counted(tmp_path: Path) -> None:
    with running(Script(), buffer_size=2, include_provenance=True) as engine:
        with EpisodeRecorder(engine, tmp_path / "run") as recorder:
            recorder.record_new(limit=1)
            engine.wait_for_generation(engine.request_refill(), timeout=60)
            assert recorder.record_new() == 2
            assert (recorder.recorded, recorder.missed) == (3, 1)
        with pytest.raises(EngineStateError, match="the recorder is closed"):
            recorder.record_new()
        recorder.close()
    assert load(tmp_path / "run").num_episodes == 3


# ---------------------------------------------------------------- interrupted


def waited_for(condition: Any, seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_what_a_killed_owner_had_recorded_still_becomes_a_dataset(tmp_path: Path) -> None:
    root = tmp_path / "run"
    command = [sys.executable, "-m", "tests.integration.lerobot.recording_owner", str(root), "10"]
    owner = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert owner.returncode == -9, owner.stderr
    assert waited_for(lambda: not os.path.exists(f"/proc/{int(owner.stdout)}"))
    assert not spool_folder(root).exists()
    assert list(opened(root).meta.episodes["length"]) == [LENGTHS[number % 3] for number in range(10)]
    assert load(root).num_episodes == 10


def test_a_killed_converter_loses_nothing(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with running(Script(lengths=LENGTHS), buffer_size=6, include_provenance=True) as engine:
        recorder = EpisodeRecorder(engine, root, episodes_per_file=4)
        recorder.record_new()
        assert waited_for((root / "meta/info.json").exists)
        recorder._converter.kill()
        recorder._converter.join()
        assert load(root).num_episodes == 4
        with pytest.raises(RecordingError, match=r"exit code -9\. 2 episodes wait in .*recover_recording"):
            recorder.record_new()
        with pytest.raises(RecordingError):
            recorder.close()
        with pytest.raises(FileExistsError, match="was interrupted; finish it with recover_recording"):
            EpisodeRecorder(engine, root)
    assert recover_recording(root) == 6
    assert not spool_folder(root).exists()
    assert list(opened(root).meta.episodes["length"]) == [5, 7, 9, 5, 7, 9]
    with pytest.raises(FileNotFoundError, match="there is no interrupted recording"):
        recover_recording(root)


@pytest.mark.parametrize("torn_at", ["stats.json", "odstream.json", "info.json"])
def test_a_writer_that_dies_while_it_publishes_leaves_the_earlier_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn_at: str
) -> None:
    root = tmp_path / "run"
    with running(Script(lengths=LENGTHS), buffer_size=6, include_provenance=True) as engine:
        recorder = EpisodeRecorder(engine, root, episodes_per_file=3)
        recorder._converter.kill()
        recorder._converter.join()
        with pytest.raises(RecordingError):
            recorder.record_new()
        for episode in copy_episodes(engine):
            assert recorder._spool is not None
            recorder._spool.put(recorder.recorded, recorder._spooled(episode))
            recorder.recorded += 1
        with pytest.raises(RecordingError):
            recorder.close()
    published: list[str] = []
    replace, append = os.replace, LeRobotWriter.append

    def dying(source: Any, target: Any) -> None:
        if published and Path(target).name == torn_at and Path(target).is_relative_to(root):
            raise OSError("torn-42")
        replace(source, target)

    def counting(writer: LeRobotWriter, episodes: Any) -> None:
        append(writer, episodes)
        published.append("once")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", dying)
        patched.setattr(LeRobotWriter, "append", counting)
        with pytest.raises(OSError, match="torn-42"):
            recover_recording(root)
    assert len(list(root.glob("data/*/*.parquet"))) == 2  # linked, but not counted
    assert load(root).num_episodes == 3
    assert opened(root).meta.total_episodes == 3
    assert opened(root)[20]["episode_index"] == 2
    assert recover_recording(root) == 6
    assert list(opened(root).meta.episodes["length"]) == [5, 7, 9, 5, 7, 9]


def test_a_failure_of_the_sdk_reaches_the_recorder(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with running(Script(lengths=LENGTHS), include_provenance=True) as engine:
        recorder = EpisodeRecorder(engine, root, episodes_per_file=1)
        plan = spool_folder(root) / "plan.json"
        plan.write_text(plan.read_text().replace('"shape": [3]', '"shape": [4]'))
        recorder.record_new()
        with pytest.raises(RecordingError, match=r"run could not be written: .*4 episodes wait"):
            recorder.close()
    assert not root.exists()


# ---------------------------------------------------------------- refused


def test_what_cannot_be_recorded_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with running(Script(), include_provenance=False) as engine:
        with pytest.raises(ValueError, match="needs include_provenance=True; it is False"):
            EpisodeRecorder(engine, tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with running(Script(), include_provenance=True) as engine:
        for more, message in (
            ({"step_dt": 0.03}, "step_dt=0.03 s is 33.3333 frames per second; LeRobot needs a whole number"),
            ({"step_dt": -1.0}, "step_dt must be finite and greater than 0"),
            ({"episodes_per_file": 0}, "episodes_per_file must be at least 1"),
            ({"schema": {**SCHEMA, "action": {**SCHEMA["action"], "step_dt": 0.1}}}, "the recording has 0.05 s"),
            ({"schema": {**SCHEMA, "observation": {"shape": [2]}}}, r"obs has the shape \(3,\)"),
        ):
            with pytest.raises(ValueError, match=message):
                EpisodeRecorder(engine, tmp_path / "run", **more)
        with pytest.raises(FileExistsError, match="full is there and not empty"):
            EpisodeRecorder(engine, tmp_path / "full")
    assert contents(tmp_path) == {"full/file": b""} and not (tmp_path / ".run.recording").exists()
    stopped = engine
    with pytest.raises(EngineStateError):
        EpisodeRecorder(stopped, tmp_path / "run")

"""Datasets that LeRobot wrote, as sources of contexts."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from odstream.datasets import BatchSource, SequenceSpecCfg, TensorDataSource
from odstream.datasets.lerobot import LeRobotDataSource, LeRobotFieldMappingCfg
from odstream.datasets.resident_source import source_run_id
from tests.fakes.cache import seeded
from tests.integration.lerobot.sdk import FEATURES, SCHEMA, change_metadata, contents, frame, lerobot, write_dataset

pytestmark = [*lerobot, pytest.mark.spec("SRC-06")]

ANCHOR = SequenceSpecCfg(1, 1)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of 3, 4, 5 and 6 frames at 10 frames per second."""
    return write_dataset(tmp_path_factory.mktemp("datasets") / "numbers", (3, 4, 5, 6))


def load(root: Path, **more: Any) -> LeRobotDataSource:
    return LeRobotDataSource(root, **({"schema": SCHEMA, "source_id": "tests", "memory_limit_bytes": 2**24} | more))


@pytest.mark.spec("SRC-01", "SRC-07", "SRC-08")
def test_the_same_frames_through_tensors_yield_the_same_contexts(stored: Path) -> None:
    from_disk = load(stored)
    assert isinstance(from_disk, BatchSource) and from_disk.num_frames == 18
    episodes = []
    for episode, length in enumerate((3, 4, 5, 6)):
        frames = [frame(episode, step) for step in range(length)]
        episodes.append(
            TensorDict(
                {
                    "obs": torch.from_numpy(np.stack([one["observation.state"] for one in frames])),
                    "actions": torch.from_numpy(np.stack([one["action"] for one in frames])),
                    "task_index": torch.full((length,), episode % 2),
                },
                batch_size=(length,),
            )
        )
    resident = TensorDataSource(episodes, schema=SCHEMA, source_id="tests")
    generators = seeded(4), seeded(4)
    for spec in (SequenceSpecCfg(2, 3), SequenceSpecCfg(5, 9), ANCHOR):
        left, right = (
            source.sample_context(64, spec, generator=generator)
            for source, generator in zip((from_disk, resident), generators, strict=True)
        )
        assert set(left.keys()) == set(right.keys())
        assert all(torch.equal(left[key], right[key]) for key in left.keys())
    run = source_run_id("tests")
    assert (left["frame_ids"][..., 0] == run).all()


def test_a_selection_keeps_the_numbers_of_the_dataset(stored: Path) -> None:
    """Field case L01."""
    source = load(stored, episodes=[1, 3])
    assert (source.episodes, source.num_episodes, source.num_frames) == ((1, 3), 2, 10)
    batch = source.sample_context(400, ANCHOR, generator=seeded(0))
    found = {
        (int(ids[1]), int(ids[2]), float(value))
        for ids, value in zip(batch["frame_ids"][:, 0], batch["obs"][:, 0, 0], strict=True)
    }
    assert found == {(1, step, 100.0 + step) for step in range(4)} | {(3, step, 300.0 + step) for step in range(6)}
    assert load(stored, episodes=[3, 1]).episodes == (3, 1)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"length": 0}, "episode 1 says 0 frames, and that they are frames 3 to 7: 4 of them"),
        ({"length": -2}, "episode 1 says -2 frames"),
        ({"length": 50, "dataset_to_index": 53}, "says that episode 1 has 50 frames, the files hold 4 of it"),
        ({"length": 3, "dataset_to_index": 6}, "says that episode 1 has 3 frames, the files hold 4 of it"),
        ({"episode_index": 7}, "counts 3 episodes, but lists 3, from"),
    ],
)
def test_metadata_that_disagrees_with_the_frames_is_refused(
    tmp_path: Path, metadata: dict[str, int], message: str
) -> None:
    """Field case L04."""
    root = write_dataset(tmp_path / "wrong", (3, 4, 5))
    change_metadata(root, 1, **metadata)
    with pytest.raises(ValueError, match=message):
        load(root)


def timed(offsets: dict[tuple[int, int], float]) -> Any:
    """Frames whose timestamps are off the grid of 10 frames per second by some seconds."""

    def make(episode: int, step: int) -> dict[str, Any]:
        return {**frame(episode, step), "timestamp": np.float32(step / 10 + offsets.get((episode, step), 0.0))}

    return make


def test_timestamps_may_jitter_but_not_leave_the_grid(tmp_path: Path) -> None:
    """Field case L06."""
    jitter = {(episode, step): 1e-5 * (-1) ** step for episode in range(2) for step in range(8)}
    assert load(rewritten(tmp_path / "jitter", jitter)).num_frames == 16
    late = rewritten(tmp_path / "late", {(1, 5): 0.05})
    with pytest.raises(
        ValueError, match=r"episode 1, frame 5 has the timestamp 0\.55.* 0\.50.* is expected, within 0\.001"
    ):
        load(late)
    assert load(late, episodes=[0]).num_frames == 8
    slow = {**SCHEMA, "action": {**SCHEMA["action"], "step_dt": 0.2}}
    with pytest.raises(ValueError, match=r"step_dt is 0\.2 s, the dataset's frame rate has 0\.1 s"):
        load(late, schema=slow)


def rewritten(root: Path, offsets: dict[tuple[int, int], float]) -> Path:
    """A dataset of two episodes of 8 frames whose timestamps were shifted in the file."""
    import pyarrow
    import pyarrow.parquet

    write_dataset(root, (8, 8))
    (path,) = root.glob("data/*/*.parquet")
    table = pyarrow.parquet.read_table(path)
    keys = zip(table.column("episode_index").to_pylist(), table.column("frame_index").to_pylist(), strict=True)
    times = np.array([step / 10 + offsets.get((episode, step), 0.0) for episode, step in keys], np.float32)
    table = table.set_column(
        table.schema.get_field_index("timestamp"), table.schema.field("timestamp"), pyarrow.array(times)
    )
    pyarrow.parquet.write_table(table, path)
    return root


def test_a_vector_of_width_one_keeps_its_axis_and_a_scalar_has_none(tmp_path: Path) -> None:
    """Field case L07."""
    features = {
        "observation.state": {"dtype": "float32", "shape": (1,), "names": ["o"]},
        "action": {"dtype": "float32", "shape": (1,), "names": ["x"]},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "phase": {"dtype": "float32", "shape": (1,), "names": None},
    }

    def make(_episode: int, step: int) -> dict[str, Any]:
        return {name: np.array([step], np.float32) for name in features}

    root = write_dataset(tmp_path / "narrow", (5,), features=features, make=make)
    mapping = LeRobotFieldMappingCfg(fields={"rewards": "next.reward", "phase": "phase"})
    vector = {"names": ["x"], "semantics": "x", "step_dt": 0.1}
    for _ in range(2):
        schema = {"observation": {"shape": []}, "action": vector}
        batch = load(root, schema=schema, mapping=mapping).sample_context(3, SequenceSpecCfg(2, 2))
        shapes = {name: tuple(batch[name].shape) for name in ("obs", "actions", "rewards", "phase")}
        assert shapes == {"obs": (3, 3), "actions": (3, 3, 1), "rewards": (3, 3), "phase": (3, 3, 1)}
    batch = load(root, schema={"observation": {"names": ["o"]}, "action": vector}).sample_context(3, ANCHOR)
    assert tuple(batch["obs"].shape) == (3, 1, 1)


def test_the_limit_is_compared_before_anything_is_allocated(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case L08."""
    need = load(stored).resident_bytes
    assert load(stored, memory_limit_bytes=need).resident_bytes == need
    with monkeypatch.context() as patched:
        patched.setattr("odstream.datasets.lerobot.ResidentStore", None)  # calling it would be another error
        with pytest.raises(
            MemoryError, match=rf"need {need} bytes in memory, memory_limit_bytes={need - 1} allows less"
        ):
            load(stored, memory_limit_bytes=need - 1)
    assert load(stored, memory_limit_bytes=need - 1, episodes=[1, 3]).num_frames == 10


def test_a_feature_that_does_not_exist_is_named_with_those_that_do(stored: Path) -> None:
    """Field case L10."""
    mapping = LeRobotFieldMappingCfg(action="actions_abs")
    with pytest.raises(
        ValueError,
        match=r"actions is mapped to the feature 'actions_abs', which .* has \['observation.state', 'action'\]",
    ):
        load(stored, mapping=mapping)
    with pytest.raises(
        ValueError, match=r"obs\.q is mapped to 'd' of the feature 'observation.state', whose names are"
    ):
        load(stored, mapping=LeRobotFieldMappingCfg(observation={"q": "observation.state:d"}))


@pytest.mark.parametrize("episodes", [[14], [-1], [1, 1], [], [4]])
def test_episodes_are_checked_before_anything_is_read_or_written(stored: Path, episodes: list[int]) -> None:
    """Field case L12."""
    before = contents(stored)
    with pytest.raises(ValueError, match="episodes"):
        load(stored, episodes=episodes)
    assert contents(stored) == before


def test_loading_changes_nothing_in_the_folder(stored: Path) -> None:
    before = contents(stored)
    load(stored, episodes=[2])
    assert contents(stored) == before


@pytest.mark.spec("SRC-02")
def test_a_schema_that_does_not_fit_is_refused(stored: Path) -> None:
    narrow = {**SCHEMA, "action": {**SCHEMA["action"], "names": ["x"]}}
    with pytest.raises(ValueError, match=r"actions has the shape \(2,\) per frame, its names .* declare \(1,\)"):
        load(stored, schema=narrow)
    double = {**SCHEMA, "observation": {"names": ["a", "b", "c"], "dtype": "float64"}}
    with pytest.raises(ValueError, match="obs has the dtype torch.float32, .* declares 'float64'"):
        load(stored, schema=double)


def test_named_numbers_of_a_vector_become_fields(stored: Path) -> None:
    mapping = LeRobotFieldMappingCfg(observation={"arm.a": "observation.state:a", "whole": "observation.state"})
    fields = {"arm": {"fields": {"a": {"shape": []}}}, "whole": {"names": ["a", "b", "c"]}}
    source = load(stored, mapping=mapping, schema={**SCHEMA, "observation": {"fields": fields}})
    batch = source.sample_context(8, SequenceSpecCfg(2, 2))
    assert torch.equal(batch["obs", "arm", "a"], batch["obs", "whole"][..., 0])


def test_texts_of_tasks_are_resolved_and_blank_ones_are_none(tmp_path: Path) -> None:
    source = load(write_dataset(tmp_path / "texts", (2, 2, 2), tasks=("pick", "", "place")))
    batch = source.sample_context(60, ANCHOR, generator=seeded(0))
    by_episode = {
        int(ids[1]): int(task) for ids, task in zip(batch["frame_ids"][:, 0], batch["task_index"][:, 0], strict=True)
    }
    assert by_episode[1] == -1
    with_text = batch[batch["frame_ids"][:, 0, 1] != 1]
    texts = source.resolve_language(with_text)["task"]
    expected = [["pick"] if episode == 0 else ["place"] for episode in with_text["frame_ids"][:, 0, 1].tolist()]
    assert texts == expected


def test_images_are_left_out_with_a_notice_and_refused_if_asked_for(tmp_path: Path, caplog: Any) -> None:
    features = {**FEATURES, "observation.image": {"dtype": "image", "shape": (8, 8, 3), "names": ["h", "w", "c"]}}

    def make(episode: int, step: int) -> dict[str, Any]:
        return {**frame(episode, step), "observation.image": np.full((8, 8, 3), step, np.uint8)}

    root = write_dataset(tmp_path / "images", (3,), features=features, make=make)
    with caplog.at_level(logging.WARNING, logger="odstream"):
        assert load(root).num_frames == 3
    assert "these features are left out: observation.image" in caplog.text
    mapping = LeRobotFieldMappingCfg(observation={"state": "observation.state", "image": "observation.image"})
    with pytest.raises(ValueError, match=r"obs\.image is mapped to 'observation.image', which is of dtype 'image'"):
        load(root, mapping=mapping)


def test_integers_and_declared_jumps_of_time_survive(tmp_path: Path) -> None:
    """Field case N03."""
    stamp = 1_700_000_000_000_000_001
    names = ["valid", "continuity_id", "ods_accepted_at_ns"]
    features = {**FEATURES, "extra": {"dtype": "int64", "shape": (3,), "names": names}}

    def make(episode: int, step: int) -> dict[str, Any]:
        return {**frame(episode, step), "extra": np.array([step != 2, step // 4, stamp + episode])}

    root = write_dataset(tmp_path / "annotated", (6, 6), features=features, make=make)
    mapping = LeRobotFieldMappingCfg(fields={name: f"extra:{name}" for name in names})
    batch = load(root, mapping=mapping).sample_context(200, SequenceSpecCfg(2, 1), generator=seeded(1))
    assert batch["valid"].dtype == torch.bool and batch["continuity_id"].dtype == torch.int64
    times = torch.stack(list(batch["ods_accepted_at_ns"]))
    assert set(times[batch["valid"]].tolist()) == {stamp, stamp + 1} and set(times[~batch["valid"]].tolist()) == {-1}
    pairs = {tuple(pair) for pair in batch["frame_ids"][..., 2].tolist()}
    assert pairs == {(-1, 0), (0, 1), (-1, 3), (-1, 4), (4, 5)}


@pytest.mark.parametrize("missing", ["meta/info.json", "meta/tasks.parquet", "meta/episodes", "data"])
def test_a_folder_that_is_no_dataset_is_refused_without_looking_elsewhere(tmp_path: Path, missing: str) -> None:
    root = write_dataset(tmp_path / "part", (3,))
    path = root / missing
    for each in [path] if path.is_file() else list(path.rglob("*.parquet")):
        each.unlink()
    with pytest.raises(FileNotFoundError, match=f"is no LeRobot dataset of version 3: it has no {missing}"):
        load(root)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load(tmp_path / "nowhere")


def test_an_interrupted_file_is_named(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "torn", (3, 4))
    (path,) = root.glob("data/*/*.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"file-000\.parquet cannot be read; was its recording interrupted"):
        load(root)


def test_a_task_that_the_metadata_does_not_know_is_refused(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "tasks", (3, 4))
    info = json.loads((root / "meta/info.json").read_text())
    assert info["total_tasks"] == 2
    import pandas

    tasks = pandas.read_parquet(root / "meta/tasks.parquet")
    tasks[tasks["task_index"] == 0].to_parquet(root / "meta/tasks.parquet")
    with pytest.raises(ValueError, match="episode 1 has the task_index 1, the metadata knows the tasks"):
        load(root)


@pytest.mark.spec("QUOTA-08", "DATA-01")
def test_a_stored_dataset_has_a_ledger_and_a_position_too(stored: Path) -> None:
    budget = {"episode_sample_budget": 6, "episode_sample_hard_limit": 6}
    first = load(stored, **budget)
    first.sample_context(5, SequenceSpecCfg(2, 2))
    second = load(stored, **budget)
    second.load_state_dict(first.state_dict())
    left, right = (source.sample_context(5, SequenceSpecCfg(2, 2)) for source in (first, second))
    assert torch.equal(left["frame_ids"], right["frame_ids"])
    with pytest.raises(ValueError, match="its data is"):
        load(stored, **budget, episodes=[0, 1, 2]).load_state_dict(first.state_dict())

"""Which features of a LeRobot dataset become which fields, decided without the SDK."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from odstream.datasets import LeRobotDataSource, LeRobotFieldMappingCfg
from odstream.datasets.lerobot_fields import columns_of
from odstream.datasets.lerobot_sidecar import SIDECAR_PATH, Sidecar, read_sidecar, write_sidecar
from odstream.errors import MissingExtraError
from tests.fakes.sources import SCHEMA

pytestmark = pytest.mark.spec("SRC-06")

FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]},
    "action": {"dtype": "float32", "shape": (1,), "names": ["x"]},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "camera": {"dtype": "video", "shape": (8, 8, 3), "names": None},
    "note": {"dtype": "string", "shape": (1,), "names": None},
    "marks": {"dtype": "int64", "shape": (2,), "names": ["valid", "phase"]},
    "task_index": {"dtype": "int64", "shape": (1,), "names": None},
}


def columns(
    scalars: frozenset[tuple[str, ...]] = frozenset(), **mapping: Any
) -> dict[tuple[str, ...], tuple[Any, ...]]:
    found = columns_of(LeRobotFieldMappingCfg(**mapping), FEATURES, scalars)
    return {column.key: (column.feature, column.component, column.shape, column.dtype) for column in found}


def test_without_a_mapping_the_usual_names_are_read() -> None:
    assert columns() == {
        ("obs",): ("observation.state", None, (3,), np.dtype("float32")),
        ("actions",): ("action", None, (1,), np.dtype("float32")),
        ("task_index",): ("task_index", None, (), np.dtype("int64")),
    }


def test_what_is_a_scalar_and_what_a_vector_of_width_one() -> None:
    """Field case L07."""
    found = columns(
        frozenset({("actions",)}), fields={"rewards": "next.reward", "terminated": "next.done", "p": "next.done"}
    )
    shapes = {".".join(key): shape for key, (_, _, shape, _) in found.items()}
    assert shapes == {"obs": (3,), "actions": (), "task_index": (), "rewards": (), "terminated": (), "p": (1,)}


def test_one_number_of_a_vector_can_be_a_field_of_its_own() -> None:
    found = columns(
        observation={"arm.b": "observation.state:b"}, fields={"valid": "marks:valid", "phase": "marks:phase"}
    )
    assert found["obs", "arm", "b"] == ("observation.state", 1, (), np.dtype("float32"))
    assert found["valid",] == ("marks", 0, (), np.dtype("bool"))
    assert found["phase",] == ("marks", 1, (), np.dtype("int64"))


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (
            {"action": "acts"},
            r"actions is mapped to the feature 'acts', which .* it has \['observation.state', 'action',",
        ),
        ({"observation": "camera"}, "obs is mapped to 'camera', which is of dtype 'video'; only numbers"),
        ({"fields": {"note": "note"}}, "note is mapped to 'note', whose dtype 'string' is no number"),
        (
            {"fields": {"z": "marks:z"}},
            r"z is mapped to 'z' of the feature 'marks', whose names are \['valid', 'phase'\]",
        ),
        ({"fields": {"z": "next.reward:r"}}, "whose names are None"),
    ],
)
def test_features_that_cannot_be_read_are_named(mapping: dict[str, Any], message: str) -> None:
    """Field case L10."""
    with pytest.raises(ValueError, match=message):
        columns(**mapping)


@pytest.mark.parametrize(
    ("mapping", "error", "message"),
    [
        ({"action": ""}, TypeError, "action must be the name of a feature, got ''"),
        ({"observation": {}}, ValueError, "observation must name at least one feature"),
        ({"observation": {"q": 3}}, TypeError, r"observation\['q'\] must be the name of a feature, got 3"),
        ({"fields": {"rewards": None}}, TypeError, r"fields\['rewards'\] must be the name of a feature, got None"),
        ({"fields": {"frame_ids": "x"}}, ValueError, "fields must not name 'frame_ids'"),
    ],
)
def test_mappings_out_of_range_are_refused(mapping: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        LeRobotFieldMappingCfg(**mapping)


def dataset_folder(root: Path) -> Path:
    for name in (
        "meta/info.json",
        "meta/tasks.parquet",
        "meta/episodes/chunk-000/a.parquet",
        "data/chunk-000/a.parquet",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_without_the_sdk_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lerobot", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'odstream\[lerobot\]'"):
        LeRobotDataSource(dataset_folder(tmp_path), schema=SCHEMA, source_id="x", memory_limit_bytes=1)


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"memory_limit_bytes": 0}, ValueError, "memory_limit_bytes must be at least 1, got 0"),
        ({"memory_limit_bytes": 1e9}, TypeError, "memory_limit_bytes must be an int"),
        ({"source_id": ""}, ValueError, "source_id must be a non-blank string"),
        ({"mapping": {}}, TypeError, "mapping must be a LeRobotFieldMappingCfg or None, got dict"),
        ({"schema": {}}, ValueError, "schema.observation is missing"),
        ({}, FileNotFoundError, "there is no folder"),
    ],
)
def test_arguments_are_checked_before_the_sdk_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], error: Any, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "lerobot", None)
    settings = {"schema": SCHEMA, "source_id": "x", "memory_limit_bytes": 2**20} | more
    with pytest.raises(error, match=message):
        LeRobotDataSource(tmp_path / "nowhere", **settings)


def test_a_recording_keeps_its_mapping_and_its_texts(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    assert read_sidecar(tmp_path) is None
    sidecar = Sidecar(
        mapping=LeRobotFieldMappingCfg(observation={"a.q": "observation.a.q"}, fields={"valid": "ods:valid"}),
        language={"task": {0: "Würfel greifen"}, "subtask": {}},
        recording={"run_id": 2**62 - 1},
    )
    write_sidecar(tmp_path, sidecar)
    assert read_sidecar(tmp_path) == sidecar


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"format": 2}', '{"format": 1, "mapping": {"acton": "x"}}'])
def test_a_damaged_sidecar_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "meta").mkdir()
    (tmp_path / SIDECAR_PATH).write_text(content)
    with pytest.raises((ValueError, json.JSONDecodeError)):
        read_sidecar(tmp_path)

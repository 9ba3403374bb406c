from __future__ import annotations

import socket
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from odstream.errors import MissingExtraError
from odstream.perf import sinks as sinks_module
from odstream.perf.records import Record, read_records
from odstream.perf.run_directory import RunDirectory
from odstream.perf.sinks import SINKS, PrometheusSink, open_sinks

RECORD = Record(
    step=7,
    unix_ns=1,
    elapsed_s=1.5,
    values={"perf/thru": 12.5, "perf/infer_capacity": 3.0, "train/loss": 0.5},
    stale=frozenset({"perf/infer_capacity"}),
    verdict="balanced",
)
FRESH = {"perf/thru": 12.5, "train/loss": 0.5}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


@pytest.mark.parametrize("name", [name for name in SINKS if name != "jsonl"])
def test_a_sink_that_is_not_installed_names_its_extra(
    name: str, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("tensorboard", "wandb", "trackio", "prometheus_client"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'odstream\[{name}\]'"):
        open_sinks([name], run)


class FakeSdk(types.ModuleType):
    """W&B or trackio, as far as they are used."""

    def __init__(self, name: str, refuses: bool = False) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, Any, Any]] = []
        self.refuses = refuses
        self.run: FakeSdk | None = None

    def init(self, **settings: Any) -> FakeSdk:
        if self.refuses:
            raise ConnectionError("no login")
        self.calls.append(("init", (), settings))
        return self

    def __getattr__(self, name: str) -> Any:
        if name not in ("log", "define_metric", "finish"):
            raise AttributeError(name)
        return lambda *args, **settings: self.calls.append((name, args, settings))


@pytest.mark.spec("PERF-02")
def test_wandb_gets_fresh_values_on_the_axis_of_steps(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = FakeSdk("wandb")
    monkeypatch.setitem(sys.modules, "wandb", sdk)
    (sink,) = open_sinks(["wandb"], run, {"wandb": {"project": "p", "mode": "offline"}})
    sink.write(RECORD)
    sink.close()
    assert sdk.calls == [
        ("init", (), {"dir": str(run.path / "wandb"), "project": "p", "mode": "offline"}),
        ("define_metric", ("train/step",), {}),
        ("define_metric", ("perf/*",), {"step_metric": "train/step"}),
        ("define_metric", ("train/*",), {"step_metric": "train/step"}),
        ("log", ({**FRESH, "perf/verdict": "balanced", "train/step": 7},), {}),
        ("finish", (), {}),
    ]


def test_a_wandb_run_of_the_users_own_is_logged_into_and_goes_on(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk = FakeSdk("wandb")
    sdk.run = FakeSdk("run")
    monkeypatch.setitem(sys.modules, "wandb", sdk)
    (sink,) = open_sinks(["wandb"], run)
    sink.write(RECORD)
    sink.close()
    assert sdk.calls == []
    assert [name for name, *_ in sdk.run.calls] == ["define_metric"] * 3 + ["log"]


@pytest.mark.spec("PERF-02")
def test_trackio_gets_fresh_values_on_the_axis_of_steps(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = FakeSdk("trackio")
    monkeypatch.setitem(sys.modules, "trackio", sdk)
    (sink,) = open_sinks(["trackio"], run, {"trackio": {"name": "grasp"}})
    sink.write(RECORD)
    sink.close()
    assert sdk.calls == [
        ("init", (), {"project": "odstream", "name": "grasp"}),
        ("log", ({**FRESH, "train/step": 7},), {"step": 7}),
        ("finish", (), {}),
    ]


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_sink_that_cannot_start_is_an_error_and_ends_the_others(
    name: str, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    monkeypatch.setattr(sinks_module.JsonLinesSink, "close", lambda self: closed.append(self._file.close()))
    monkeypatch.setitem(sys.modules, name, FakeSdk(name, refuses=True))
    with pytest.raises(RuntimeError, match=f"the sink '{name}' could not start: ConnectionError: no login"):
        open_sinks(["jsonl", name], run)
    assert len(closed) == 1


def test_names_are_checked_before_anything_starts(run: RunDirectory) -> None:
    with pytest.raises(ValueError, match="no sink named 'tensorbord'; did you mean 'tensorboard'"):
        open_sinks(["jsonl", "tensorbord"], run)
    with pytest.raises(ValueError, match="named once"):
        open_sinks(["jsonl", "jsonl"], run)
    with pytest.raises(ValueError, match="not named: wandb"):
        open_sinks(["jsonl"], run, {"wandb": {}})
    with pytest.raises(TypeError, match="a list of sinks"):
        open_sinks("jsonl", run)
    assert not run.records_path.exists()


def test_json_lines_keep_stale_values_and_mark_them(run: RunDirectory) -> None:
    (sink,) = open_sinks(["jsonl"], run)
    sink.write(RECORD)
    sink.close()
    assert read_records(run.records_path).records == (RECORD,)


def test_a_port_that_is_taken_is_an_error_and_no_silent_loss() -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(RuntimeError, match="the sink 'prometheus' could not start: OSError"):
            PrometheusSink(port=taken.getsockname()[1])
    with pytest.raises(ValueError, match="port must be at least 0 and at most 65535, got 70000"):
        PrometheusSink(port=70000)

"""Where records go. Each sink but the JSON lines is a leaf that needs an extra of its own.

A sink that is not installed or cannot start is an error when it is made; one that fails later fails the run, too:
nothing is lost in silence. Stale values reach the JSON lines and Prometheus, marked; charts get fresh ones only.
"""

from __future__ import annotations

import difflib
import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from odstream.errors import MissingExtraError
from odstream.perf.metrics import METRICS
from odstream.perf.records import JsonLinesSink, Record
from odstream.perf.run_directory import RunDirectory
from odstream.validation import check_int

__all__ = [
    "SINKS",
    "MetricSink",
    "PrometheusSink",
    "TensorBoardSink",
    "TrackioSink",
    "WandbSink",
    "check_sinks",
    "open_sinks",
]


class MetricSink(Protocol):
    """Takes records, in the order of their steps."""

    def write(self, record: Record) -> None:
        """Write one record; ``record.step`` is the axis."""

    def close(self) -> None:
        """Write what is left and let go. Called once."""


def _imported(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"the sink {extra!r} is not installed: pip install 'odstream[{extra}]'") from error


def _started(extra: str, start: Callable[[], Any]) -> Any:
    try:
        return start()
    except Exception as error:
        raise RuntimeError(f"the sink {extra!r} could not start: {type(error).__name__}: {error}") from error


class TensorBoardSink:
    """Writes event files for TensorBoard.

    Args:
        folder: Where to.

    Raises:
        MissingExtraError: Without the extra ``tensorboard``.
        RuntimeError: If it cannot start.
    """

    def __init__(self, folder: Path) -> None:
        _imported("tensorboard", "tensorboard")
        module = _imported("torch.utils.tensorboard", "tensorboard")
        self._writer = _started("tensorboard", lambda: module.SummaryWriter(log_dir=str(folder)))

    def write(self, record: Record) -> None:
        """Add a point per metric, and the verdict as text."""
        for name, value in record.fresh().items():
            self._writer.add_scalar(name, value, global_step=record.step)
        if record.verdict:
            self._writer.add_text("perf/verdict", record.verdict, global_step=record.step)

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


class WandbSink:
    """Logs to W&B with ``train/step`` as the axis.

    If this process has an active W&B run, that one is logged into and is not finished here; its other metrics keep
    their axes.

    Args:
        folder: Where W&B keeps its files.
        settings: Passed to ``wandb.init``: project, mode, ...

    Raises:
        MissingExtraError: Without the extra ``wandb``.
        RuntimeError: If it cannot start.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any] | None = None) -> None:
        wandb = _imported("wandb", "wandb")
        folder.mkdir(parents=True, exist_ok=True)
        self._is_ours = wandb.run is None
        self._run = wandb.run or _started("wandb", lambda: wandb.init(dir=str(folder), **(settings or {})))
        self._run.define_metric("train/step")
        for names in ("perf/*", "train/*"):
            self._run.define_metric(names, step_metric="train/step")

    def write(self, record: Record) -> None:
        """Log a point per metric."""
        verdict = {"perf/verdict": record.verdict} if record.verdict else {}
        self._run.log({**record.fresh(), **verdict, "train/step": record.step})

    def close(self) -> None:
        """Finish the run if it was begun here."""
        if self._is_ours:
            self._run.finish()


class TrackioSink:
    """Logs to trackio, step by step, into its own store.

    Args:
        settings: Passed to ``trackio.init``: project (by default ``odstream``), name, ...

    Raises:
        MissingExtraError: Without the extra ``trackio``.
        RuntimeError: If it cannot start.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        trackio = _imported("trackio", "trackio")
        self._run = _started("trackio", lambda: trackio.init(**{"project": "odstream", **(settings or {})}))

    def write(self, record: Record) -> None:
        """Log a point per metric."""
        self._run.log({**record.fresh(), "train/step": record.step}, step=record.step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class PrometheusSink:
    """Serves gauges on ``/metrics``, named ``odstream_`` and the metric's name; one gauge per metric marks staleness.

    ``odstream_record_unix_seconds`` is the time of the last record: a run that hangs writes none.

    Args:
        port: To listen on; 0 chooses a free one, see `port`.
        address: To listen at.

    Raises:
        MissingExtraError: Without the extra ``prometheus``.
        RuntimeError: If it cannot start, for instance because the port is taken.
        TypeError, ValueError: If ``port`` is out of range.
    """

    def __init__(self, port: int = 9108, address: str = "127.0.0.1") -> None:
        check_int("port", port, 0, 65535)
        self._client = _imported("prometheus_client", "prometheus")
        self._registry = self._client.CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        self._taken = {"odstream_train_step", "odstream_record_unix_seconds", "odstream_stale"}
        self._help = {metric.name: f"{metric.help} Unit: {metric.unit}." for metric in METRICS}
        self._step = self._client.Gauge("odstream_train_step", "Optimizer steps.", registry=self._registry)
        self._at = self._client.Gauge(
            "odstream_record_unix_seconds", "Unix time of the last record.", registry=self._registry
        )
        self._stale = self._client.Gauge(
            "odstream_stale", "1 if the metric's value is an earlier window's.", ["metric"], registry=self._registry
        )
        self._server, self._thread = _started(
            "prometheus", lambda: self._client.start_http_server(port, addr=address, registry=self._registry)
        )
        self.port: int = self._server.server_port
        """That it listens on."""

    def write(self, record: Record) -> None:
        """Set every gauge. Of names that Prometheus cannot tell apart, ``a.b`` and ``a_b``, the later gets a number."""
        self._step.set(record.step)
        self._at.set(record.unix_ns / 1e9)
        for name, value in record.values.items():
            if name not in self._gauges:
                self._gauges[name] = self._client.Gauge(
                    self._free_name(name), self._help.get(name, name), registry=self._registry
                )
            self._gauges[name].set(value)
            self._stale.labels(metric=name).set(name in record.stale)

    def _free_name(self, name: str) -> str:
        wanted = "odstream_" + "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
        candidates = itertools.chain([wanted], (f"{wanted}_{number}" for number in itertools.count(2)))
        found = next(one for one in candidates if one not in self._taken)
        self._taken.add(found)
        return found

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


SINKS: dict[str, Callable[[RunDirectory, Mapping[str, Any]], MetricSink]] = {
    "jsonl": lambda run, settings: JsonLinesSink(run.records_path, **settings),
    "tensorboard": lambda run, settings: TensorBoardSink(run.path / "tensorboard", **settings),
    "wandb": lambda run, settings: WandbSink(run.path / "wandb", settings),
    "trackio": lambda run, settings: TrackioSink(settings),
    "prometheus": lambda run, settings: PrometheusSink(**settings),
}
"""What can be named in `open_sinks`."""


_MODULES = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
    "prometheus": "prometheus_client",
}
"""What the extra of this name installs."""
_SETTINGS: dict[str, tuple[str, ...]] = {"jsonl": (), "tensorboard": (), "prometheus": ("port", "address")}
"""Settings of sinks by name. What is passed on to another package is not listed: it knows its own."""


def check_sinks(names: Sequence[str], settings: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Check what `open_sinks` would be given, and that it is installed. Starts nothing.

    Raises:
        ValueError, TypeError: If a name is unknown or given twice, or a setting is unknown or for none of them.
        MissingExtraError: If one is not installed.
    """
    if isinstance(names, str):
        raise TypeError(f"names must be a list of sinks, got the text {names!r}")
    settings = settings or {}
    for name in [*names, *settings]:
        _check_known("sink", name, tuple(SINKS))
    if len(set(names)) < len(names):
        raise ValueError(f"each sink must be named once, got {list(names)}")
    if unused := [name for name in settings if name not in names]:
        raise ValueError(f"there are settings for sinks that are not named: {', '.join(unused)}")
    for name, values in settings.items():
        _check_settings(name, values)
    for name in names:
        if name in _MODULES:
            _imported(_MODULES[name], name)


def _check_settings(sink: str, values: object) -> None:
    if not isinstance(values, Mapping):
        raise TypeError(f"the settings of the sink {sink!r} must be a mapping, got {values!r}")
    for key in values:
        if sink in _SETTINGS:
            _check_known(f"setting of the sink {sink!r}", str(key), _SETTINGS[sink])


def _check_known(what: str, name: str, known: tuple[str, ...]) -> None:
    if name in known:
        return
    if not known:
        raise ValueError(f"there is no {what} at all, got {name!r}")
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    raise ValueError(f"there is no {what} named {name!r}; did you mean {close[0]!r}? Known: {', '.join(known)}")


def open_sinks(
    names: Sequence[str], run: RunDirectory, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> list[MetricSink]:
    """Start sinks by name. If one cannot start, those before it are closed.

    Args:
        names: Of `SINKS`, each once.
        run: Where they write.
        settings: Further arguments, by name.

    Raises:
        ValueError: If a name is unknown or given twice, or settings are for none of them.
        MissingExtraError: If one is not installed.
        RuntimeError: If one cannot start.
    """
    settings = settings or {}
    check_sinks(names, settings)
    with ExitStack() as stack:
        sinks = []
        for name in names:
            sink = SINKS[name](run, settings.get(name, {}))
            stack.callback(sink.close)
            sinks.append(sink)
        stack.pop_all()
    return sinks

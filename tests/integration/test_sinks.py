"""Every sink against the real package: what it holds afterwards, read back by that package's own means.

W&B and trackio run in a process of their own, since both keep helpers until it ends. Neither reaches the network.
"""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from odstream.perf import (
    LearnerMeter,
    MetricSink,
    PerfMonitor,
    PipelineShape,
    ProducerMeter,
    Record,
    RunDirectory,
    WindowCfg,
    open_sinks,
)
from odstream.perf.metrics import METRICS
from odstream.perf.records import read_records
from odstream.perf.sinks import PrometheusSink
from tests.fakes.clock import FakeClock

pytestmark = [pytest.mark.spec("PERF-02"), pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[2]


def meter_a_loop(run: RunDirectory, sink: MetricSink | None = None, **settings: dict[str, Any]) -> tuple[Record, ...]:
    """Record a loop of 40 steps with JSON lines and other sinks, by name or made; return what the JSON lines hold."""
    clock = FakeClock()
    producer = ProducerMeter(clock_ns=clock)
    sinks = open_sinks(["jsonl", *settings], run, settings)
    with PerfMonitor(
        LearnerMeter(clock_ns=clock),
        PipelineShape(batch_size=8),
        producers=[producer],
        sinks=[*sinks, *([] if sink is None else [sink])],
        window=WindowCfg(min_s=1.0, min_steps=1, min_intervals=0),
        clock_ns=clock,
    ) as monitor:
        for number in monitor.batches(range(40)):
            if number < 20:  # later values are stale
                producer.enter("busy")
                clock.advance(0.25)
                producer.finish(accepted=8)
            clock.advance(0.5)
            monitor.note(loss=1.0 / (number + 1))
    records = read_records(run.records_path).records
    assert len(records) > 10 and records[-1].step == 40
    assert records[-1].stale and not records[0].stale
    return records


def in_another_process(sink: str, tmp_path: Path, settings: str, **environment: str) -> tuple[Record, ...]:
    code = (
        "from pathlib import Path; from odstream.perf import RunDirectory\n"
        "from tests.integration.test_sinks import meter_a_loop\n"
        f"meter_a_loop(RunDirectory({str(tmp_path / 'run')!r}), {sink}={settings})\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return read_records(tmp_path / "run/metrics.jsonl").records


def test_tensorboard_reads_every_fresh_value_at_its_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra `tensorboard`")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = RunDirectory(tmp_path / "run")
    records = meter_a_loop(run, tensorboard={})
    events = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    written = {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}
    names = set().union(*(record.fresh() for record in records))
    assert written.keys() == names
    for name in names:
        expected = [(record.step, record.fresh()[name]) for record in records if name in record.fresh()]
        assert written[name] == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected], name
    verdicts = [
        (one.step, one.tensor_proto.string_val[0].decode()) for one in events.Tensors("perf/verdict/text_summary")
    ]
    assert verdicts == [(record.step, record.verdict) for record in records]


def test_prometheus_is_scraped_while_the_loop_runs_and_lets_go_of_its_port(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="needs the extra `prometheus`")
    from prometheus_client.parser import text_string_to_metric_families

    sink = PrometheusSink(port=0)
    address = f"http://127.0.0.1:{sink.port}/metrics"
    scrapes = []

    class Scraped:
        def write(self, record: Record) -> None:
            sink.write(record)
            text = urllib.request.urlopen(address, timeout=10).read().decode()
            scrapes.append({family.name: family for family in text_string_to_metric_families(text)})

        def close(self) -> None:
            sink.close()

    for record, families in zip(meter_a_loop(RunDirectory(tmp_path / "run"), Scraped()), scrapes, strict=True):
        assert families["odstream_train_step"].samples[0].value == record.step
        for name, value in record.values.items():
            assert families[f"odstream_{name.replace('/', '_')}"].samples[0].value == value
        marked = {one.labels["metric"] for one in families["odstream_stale"].samples if one.value}
        assert marked == record.stale
    help_of = {metric.name: metric.help for metric in METRICS}
    assert families["odstream_perf_thru"].documentation.startswith(help_of["perf/thru"])
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=10)


def test_names_that_prometheus_cannot_tell_apart_are_gauges_of_their_own() -> None:
    pytest.importorskip("prometheus_client", reason="needs the extra `prometheus`")
    sink = PrometheusSink(port=0)
    try:
        for step in (1, 2):
            sink.write(
                Record(step=step, unix_ns=5_000_000_000, elapsed_s=1.0, values={"a.b": 3.0, "a_b": 4.0, "é": 5.0})
            )
        text = urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics", timeout=10).read().decode()
    finally:
        sink.close()
    lines = text.splitlines()
    assert {"odstream_a_b 3.0", "odstream_a_b_2 4.0", "odstream__ 5.0"} <= set(lines)
    assert "odstream_record_unix_seconds 5.0" in lines


def test_wandb_holds_every_fresh_value_with_the_step_as_the_axis_of_all(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs the extra `wandb`")
    from wandb.proto.wandb_internal_pb2 import Record as Stored

    records = in_another_process("wandb", tmp_path, "{'project': 'p', 'mode': 'offline'}")
    (file,) = (tmp_path / "run/wandb").glob("wandb/offline-run-*/run-*.wandb")
    axes, history = {}, []
    for data in leveldb_log(file.read_bytes()):
        stored = Stored()
        stored.ParseFromString(data)
        if stored.WhichOneof("record_type") == "metric":
            axes[stored.metric.name or stored.metric.glob_name] = stored.metric.step_metric
        elif stored.WhichOneof("record_type") == "history":
            items = stored.history.item
            history.append({"/".join(one.nested_key) or one.key: json.loads(one.value_json) for one in items})
    assert axes == {"train/step": "", "perf/*": "train/step", "train/*": "train/step"}
    assert [{name: value for name, value in row.items() if not name.startswith("_")} for row in history] == [
        {**record.fresh(), "perf/verdict": record.verdict, "train/step": record.step} for record in records
    ]


def leveldb_log(content: bytes) -> list[bytes]:
    """Return the records of W&B's file: a header, then chunks in blocks of 32 KiB (checksum, length, kind, data)."""
    assert content[:4] == b":W&B"
    found, place, part, block = [], 7, b"", 32768
    while place < len(content):
        if block - place % block < 7:  # too short for a chunk
            place += block - place % block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        part += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last chunk
            found.append(part)
            part = b""
    return found


def test_trackio_holds_every_fresh_value_at_its_step(tmp_path: Path) -> None:
    if importlib.util.find_spec("trackio") is None:
        pytest.skip("needs the extra `trackio`, which asks for an older pillow than the extra `plot` is tested with")
    records = in_another_process(
        "trackio", tmp_path, "{'project': 'p', 'name': 'first'}", TRACKIO_DIR=str(tmp_path / "store")
    )
    code = (
        "import json; from trackio.sqlite_storage import SQLiteStorage as store\n"
        "print(json.dumps([store.get_logs('p', run) for run in store.get_runs('p') if run == 'first']))"
    )
    read = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HOME": str(tmp_path), "TRACKIO_DIR": str(tmp_path / "store")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (rows,) = json.loads(read.stdout)
    assert [row.pop("step") for row in rows] == [record.step for record in records]
    assert [{name: value for name, value in row.items() if name != "timestamp"} for row in rows] == [
        {**record.fresh(), "train/step": record.step} for record in records
    ]


def test_what_cannot_start_is_an_error_that_says_why(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra `tensorboard`")
    run = RunDirectory(tmp_path / "run")
    (run.path / "tensorboard").write_text("a file where a folder should be", encoding="utf-8")
    with pytest.raises(RuntimeError, match="the sink 'tensorboard' could not start: (FileExists|NotADirectory)Error"):
        open_sinks(["tensorboard"], run)


def test_wandb_that_may_not_log_in_is_an_error_and_no_silent_loss(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs the extra `wandb`")
    code = (
        "from odstream.perf import RunDirectory, open_sinks\n"
        f"open_sinks(['wandb'], RunDirectory({str(tmp_path / 'run')!r}), {{'wandb': {{'mode': 'online'}}}})\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**environment, "HOME": str(tmp_path), "WANDB_BASE_URL": "http://127.0.0.1:9"},  # nobody answers there
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode != 0
    assert "RuntimeError: the sink 'wandb' could not start: " in ran.stderr

"""Performance metrics: where the time goes, which side holds the pipeline back, and where that is written down.

Meters add up time per state; windows take differences of their snapshots; facts, metrics and the diagnosis are pure
functions of a window; a monitor binds all of it to a loop. Imports no torch unless device events or TensorBoard are
asked for.
"""

from odstream.perf.diagnosis import Diagnosis, Thresholds, diagnose
from odstream.perf.engine_meter import EngineMeter
from odstream.perf.exposure import ExposureRecorder, Trajectories, Trajectory, read_trajectories
from odstream.perf.facts import Facts, PoolReading
from odstream.perf.meter import LearnerMeter, ProducerMeter, Snapshot, metered
from odstream.perf.metrics import METRICS, Metric
from odstream.perf.monitor import PerfMonitor
from odstream.perf.progress import ProgressBar
from odstream.perf.records import JsonLinesSink, Record, read_records
from odstream.perf.remote import RemoteMeter
from odstream.perf.run_directory import RunDirectory
from odstream.perf.shape import PipelineShape
from odstream.perf.sinks import MetricSink, open_sinks
from odstream.perf.training import TrainingMetrics, TrainingMetricsCfg
from odstream.perf.window import Window, WindowCfg, Windows

__all__ = [
    "METRICS",
    "Diagnosis",
    "EngineMeter",
    "ExposureRecorder",
    "Facts",
    "JsonLinesSink",
    "LearnerMeter",
    "Metric",
    "MetricSink",
    "PerfMonitor",
    "PipelineShape",
    "PoolReading",
    "ProducerMeter",
    "ProgressBar",
    "Record",
    "RemoteMeter",
    "RunDirectory",
    "Snapshot",
    "Thresholds",
    "TrainingMetrics",
    "TrainingMetricsCfg",
    "Trajectories",
    "Trajectory",
    "Window",
    "WindowCfg",
    "Windows",
    "diagnose",
    "metered",
    "open_sinks",
    "read_records",
    "read_trajectories",
]

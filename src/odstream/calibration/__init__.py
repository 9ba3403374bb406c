"""Measure the planner's inputs, write them down, and read a plan. Imports no torch.

`run_calibration` runs both sides together and records their work, `measure_throughput` sums records up, documents keep
the result and the plan made from it, `render_plan` explains the plan, and `compare_run` puts a run beside it.
"""

from odstream.calibration.comparison import (
    Comparison,
    ComparisonLine,
    LearnerWork,
    RefillRequest,
    Reuse,
    RunRecords,
    Wait,
    account_for_chunks,
    compare_run,
    comparison_to_json,
    render_comparison,
)
from odstream.calibration.documents import (
    PlanInputs,
    plan_from_json,
    plan_to_json,
    record_from_mapping,
    throughput_from_json,
    throughput_to_json,
)
from odstream.calibration.explain import PlanLine, explain_plan, render_plan, what_would_change
from odstream.calibration.live import CalibrationCfg, run_calibration
from odstream.calibration.recorder import PlannedRun, RunRecorder
from odstream.calibration.throughput import (
    CalibrationRecords,
    Throughput,
    WorkInterval,
    measure_throughput,
    production_records,
)

__all__ = [
    "CalibrationCfg",
    "CalibrationRecords",
    "Comparison",
    "ComparisonLine",
    "LearnerWork",
    "PlanInputs",
    "PlanLine",
    "PlannedRun",
    "RefillRequest",
    "Reuse",
    "RunRecorder",
    "RunRecords",
    "Throughput",
    "Wait",
    "WorkInterval",
    "account_for_chunks",
    "compare_run",
    "comparison_to_json",
    "explain_plan",
    "measure_throughput",
    "plan_from_json",
    "plan_to_json",
    "production_records",
    "record_from_mapping",
    "render_comparison",
    "render_plan",
    "run_calibration",
    "throughput_from_json",
    "throughput_to_json",
    "what_would_change",
]

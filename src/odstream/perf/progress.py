"""The progress bar: loss, accuracy, throughput, both capacities, the wait, the pool and the epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TextIO

from tqdm import tqdm

from odstream.perf.records import Record
from odstream.validation import check_int

__all__ = ["ProgressBar", "progress_fields"]

_STALE = "*"


def progress_fields(
    record: Record | None, *, loss: float | None = None, acc: float | None = None, epoch: str = ""
) -> dict[str, str]:
    """Return what the bar shows.

    Args:
        record: The newest one. Values that are not known are shown as ``-``, stale ones with a star; ``I`` is in
            multiples of K where that is not known.
        loss: Of the newest step.
        acc: Accuracy of the newest step; None where there is no such thing.
        epoch: Such as ``1/10``; empty where there are none.
    """

    def shown(name: str, form: Callable[[float], str]) -> str:
        value = None if record is None else record.values.get(name)
        if record is None or value is None or not math.isfinite(value):
            return "-"
        return form(value) + (_STALE if name in record.stale else "")

    fields = {name: f"{value:.3f}" for name, value in (("loss", loss), ("acc", acc)) if value is not None}
    fields["thru"] = shown("perf/thru", "{:.1f}".format)
    multiple = "" if record is None or record.details.get("reuse_known", True) else "xK"
    fields["I"] = shown("perf/infer_capacity", f"{{:.1f}}{multiple}".format)
    fields["T"] = shown("perf/train_capacity", "{:.1f}".format)
    fields["wait"] = shown("perf/dispatch_wait", "{:.3g}s".format)
    fields["pool"] = shown("perf/pool", "{:.0f}".format)
    return {**fields, "epoch": epoch} if epoch else fields


class ProgressBar:
    """A bar on a terminal. Redraws as tqdm sees fit, ten times a second at most.

    Args:
        total: Optimizer steps. None: not known.
        file: Where to. None: standard error.
    """

    def __init__(self, total: int | None, *, file: TextIO | None = None) -> None:
        if total is not None:
            check_int("total", total, 0)
        self._bar: Any = tqdm(total=total, desc="Training", file=file, dynamic_ncols=file is None)
        self._record: Record | None = None

    def step(
        self,
        record: Record | None = None,
        *,
        loss: float | None = None,
        acc: float | None = None,
        epoch: str = "",
    ) -> None:
        """Advance by one step.

        Args:
            record: A new record, if there is one; else the last one stays.
            loss: Of this step.
            acc: Accuracy of this step.
            epoch: Such as ``1/10``.
        """
        self._record = record or self._record
        if self._bar.n + 1 - self._bar.last_print_n >= self._bar.miniters or record is not None:
            self._bar.set_postfix(progress_fields(self._record, loss=loss, acc=acc, epoch=epoch), refresh=False)
        self._bar.update()

    def write(self, text: str) -> None:
        """Print a text above the bar."""
        self._bar.write(text)

    def close(self) -> None:
        """Draw it a last time and let go of the terminal."""
        self._bar.close()

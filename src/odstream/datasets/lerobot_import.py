"""Imports LeRobot's SDK, which is optional and heavy, at the moment it is needed."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from odstream.errors import MissingExtraError

__all__ = ["import_lerobot"]

_operators: list[Any] = []


def import_lerobot() -> tuple[Any, Any]:
    """Return the SDK's classes ``LeRobotDataset`` and ``LeRobotDatasetMetadata``.

    Raises:
        MissingExtraError: If the SDK is not installed, or cannot be imported.
    """
    try:
        import lerobot  # noqa: F401

        _tolerate_torchvision()
        from lerobot.datasets.lerobot_dataset import LeRobotDataset, LeRobotDatasetMetadata
    except ImportError as error:
        raise MissingExtraError(
            f"LeRobot datasets need LeRobot's SDK, which cannot be imported ({error}): pip install 'odstream[lerobot]'"
        ) from error
    return LeRobotDataset, LeRobotDatasetMetadata


def _tolerate_torchvision() -> None:
    """Let the SDK import a torchvision whose compiled part was built for another torch.

    Beside a CPU build of torch that is what a plain installation gives. The compiled part then does not load, and
    torchvision fails to import for one operator that it declares. Reading and writing numbers uses none of them.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torchvision  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except RuntimeError:
        import torch

        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _operators.append(library)  # it ends with the object

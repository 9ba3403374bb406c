"""The online engine. Its public names are loaded on first use, so that the producer process can do without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odstream.engine.config import OnlineDataEngineCfg
    from odstream.engine.data import OnlineDataEngine, OnlineDataEngineState
    from odstream.errors import DataBudgetExhaustedError as OnlineDataBudgetExhaustedError
    from odstream.errors import OnlineDataWorkerError

__all__ = [
    "OnlineDataBudgetExhaustedError",
    "OnlineDataEngine",
    "OnlineDataEngineCfg",
    "OnlineDataEngineState",
    "OnlineDataWorkerError",
]

_HOMES = {
    "OnlineDataBudgetExhaustedError": ("odstream.errors", "DataBudgetExhaustedError"),
    "OnlineDataEngine": ("odstream.engine.data", "OnlineDataEngine"),
    "OnlineDataEngineCfg": ("odstream.engine.config", "OnlineDataEngineCfg"),
    "OnlineDataEngineState": ("odstream.engine.data", "OnlineDataEngineState"),
    "OnlineDataWorkerError": ("odstream.errors", "OnlineDataWorkerError"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)

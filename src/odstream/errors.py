"""Every public error. Each docstring says when it is raised and what to do: wait, fix, or stop."""

from __future__ import annotations

__all__ = [
    "DataBudgetExhaustedError",
    "DataUnavailableError",
    "DemonstrationError",
    "EngineOwnershipError",
    "EngineStateError",
    "EnvironmentContractError",
    "LockTimeoutError",
    "MissingExtraError",
    "OnlineDataWorkerError",
    "RecordingError",
    "SharedMemoryError",
    "SourceOwnershipError",
]


class DataUnavailableError(RuntimeError):
    """Raised when no eligible, unlocked window or anchor exists for a request.

    Wait, with a deadline, if production can change that (a live engine that is being refilled).
    Fix the request if it cannot: fixed data never grows a longer window.
    """


class DataBudgetExhaustedError(RuntimeError):
    """Raised when eligible data exists but its remaining budget cannot fund the whole batch.

    Nothing was debited. Wait for a refill that the owner has scheduled, or stop: the data has been
    used as often as it may be.
    """


class OnlineDataWorkerError(RuntimeError):
    """Raised when the producer process failed, was killed, or could not be shut down cleanly.

    Stop: the engine is FAILED and serves nothing any more. ``remote_type`` and
    ``remote_traceback`` hold what the producer process reported, as text.
    """

    def __init__(self, message: str, remote_type: str = "", remote_traceback: str = "") -> None:
        super().__init__(message, remote_type, remote_traceback)
        self.message = message
        self.remote_type = remote_type
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        return self.message


class DemonstrationError(RuntimeError):
    """Raised when a scene produced no accepted episode within ``max_generation_attempts``.

    Fix the expert, the success rule or the task, or allow more attempts.
    """


class EnvironmentContractError(ValueError):
    """Raised when an environment does not offer what was configured: widths, dtypes, an expert, ...

    Fix the configuration or the environment. Raised before any transition is recorded.
    """


class EngineStateError(RuntimeError):
    """Raised when a call is not allowed in the engine's state (before start, after stop, twice).

    Fix the order of the calls. A stopped or failed engine cannot be restarted: create a new one.
    """


class EngineOwnershipError(RuntimeError):
    """Raised when a process that did not create the engine tries to start, stop or refill it.

    Fix: call it in the creating process. Forked and spawned copies may only sample and read. Flow control
    is stricter: it works only in the thread, too, that created its controller.
    """


class SharedMemoryError(MemoryError):
    """Raised when the cache would not fit into the memory that is available. Nothing was allocated.

    Fix: a smaller ``buffer_size`` or ``max_episode_steps``, or more memory.
    """


class LockTimeoutError(TimeoutError):
    """Raised when the cache's lock was not free within its deadline although its holder lives.

    Stop, or look for a process that is suspended while it holds the lock. Nothing was changed.
    """


class MissingExtraError(ImportError):
    """Raised when an optional dependency is not installed; the message names the extra to install.

    Fix: install it.
    """


class SourceOwnershipError(RuntimeError):
    """Raised when a copy of a source whose ledger belongs to one process would sample in another.

    Fix: iterate in the process that created the source (``num_workers=0``), or leave budgets and explicit
    generators out.
    """


class RecordingError(RuntimeError):
    """Raised when recorded episodes could not be written into their dataset.

    Fix what the message names (a full disk, most often), then finish with `recover_recording`: the episodes
    that were recorded are kept. Production and sampling are not affected.
    """

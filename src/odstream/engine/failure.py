"""Carries an exception from one process to every other: as itself where possible, always as text."""

from __future__ import annotations

import pickle
import traceback

from odstream.errors import OnlineDataWorkerError

__all__ = ["decode", "encode"]

_TEXT = 8_000
_EXCEPTION_BYTES = 32_000


def encode(error: BaseException, *, origin: str = "", limit_bytes: int = 60_000) -> bytes:
    """Return type, text and traceback of ``error``, and the pickled exception if it pickles to something small.

    Args:
        error: What was raised.
        origin: Where, if a reader needs the traceback: it becomes a note.
        limit_bytes: Size of the result at most.
    """
    trace = "".join(traceback.format_exception(error))
    try:
        exception = pickle.dumps(error)
        pickle.loads(exception)
    except Exception:  # anything can go wrong in somebody else's exception
        exception = b""
    try:
        text = str(error)
    except Exception:  # the same
        text, exception = "(its text cannot be had)", b""
    if len(exception) > _EXCEPTION_BYTES or not isinstance(error, Exception) or isinstance(error, StopIteration):
        exception = b""
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    for carried, room in ((exception, _TEXT), (b"", _TEXT), (b"", _TEXT // 4), (b"", 200)):
        payload = pickle.dumps((origin, kind, _cut(text, room), _cut(trace, room), carried))
        if len(payload) <= limit_bytes:
            break
    return payload


def decode(payload: bytes) -> Exception:
    """Return a new exception: the original type where it could be carried, else `OnlineDataWorkerError`.

    Where an origin was given, the traceback is attached as a note.
    """
    origin, kind, text, trace, exception = pickle.loads(payload)
    error: Exception | None = None
    if exception:
        try:
            error = pickle.loads(exception)
        except Exception:  # the type may not be importable here
            error = None
    if not isinstance(error, Exception):
        error = OnlineDataWorkerError(f"the producer process failed with {kind}: {text}", kind, trace)
    if origin:
        error.add_note(f"Raised in {origin}:\n{trace}")
    return error


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room // 2] + "\n[...]\n" + text[-room // 2 :]

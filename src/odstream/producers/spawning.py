"""Starting a Python process without the main script, where nothing needs it."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["main_script_left_out"]


@contextmanager
def main_script_left_out(pickled: bytes) -> Iterator[None]:
    """Let a process that is spawned meanwhile not import the main script, unless ``pickled`` refers to it.

    Such an import is how functions defined in the script are found. It costs the time and the memory of everything
    else the script imports, such as torch, and it is why such a script needs a main guard.
    """
    if b"__main__" in pickled or b"__mp_main__" in pickled:
        yield
        return
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")  # `multiprocessing` finds no file to import here
    try:
        yield
    finally:
        sys.modules["__main__"] = script

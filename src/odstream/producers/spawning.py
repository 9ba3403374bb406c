"""Starting a Python process without the main script, where nothing needs it."""

from __future__ import annotations

import os
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

    Raises:
        TypeError: If ``pickled`` refers to a main script that no other process can import: an interactive session, or
            one that was read from standard input.
    """
    if b"__main__" in pickled or b"__mp_main__" in pickled:
        _check_importable(sys.modules["__main__"])
        yield
        return
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")  # `multiprocessing` finds no file to import here
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _check_importable(script: types.ModuleType) -> None:
    path = getattr(script, "__file__", None)
    if getattr(script, "__spec__", None) is None and not (path and os.path.exists(path)):
        raise TypeError(
            "the expert, factory or validator is defined in an interactive session or a script without a file "
            f"(__main__, {path or 'no file'}), which the producer's process cannot import; put it into a module and "
            "name it, e.g. gym_config['expert'] = 'my_module:expert'"
        )

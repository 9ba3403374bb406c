"""``odstream COMMAND``: finds the command and hands it the rest of the line.

Commands are imported when called: ``odstream --help`` stays quick, and a producer process, which imports the main
module of its parent again, does not import a learner.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from odstream import __version__
from odstream.errors import MissingExtraError


class Command(NamedTuple):
    """A command: the module that has ``main(arguments) -> exit code``, and what it does."""

    module: str
    summary: str


COMMANDS = {
    "demo": Command("odstream.cli.demo", "train a robot policy on a live stream of demonstrations, in two minutes"),
    "calibrate": Command("odstream.cli.calibrate", "run producer and learner together and measure both"),
    "plan": Command("odstream.cli.plan", "turn measured throughput into cache size, reuse and pacing"),
    "record": Command("odstream.cli.record", "write accepted episodes as a LeRobot dataset"),
    "report": Command("odstream.cli.report", "turn what a run left into one page and pictures"),
    "train": Command("odstream.cli.train", "train a task on a live stream, by a plan if there is one"),
}
USAGE_ERROR = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Without the program's name; None: those of this process.

    Returns:
        The exit code: 0 for success, 2 for a command that does not exist or cannot run here, 130 when interrupted.
    """
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(_usage())
        return 0
    if name == "--version":
        print(__version__)
        return 0
    if name not in COMMANDS:
        print(f"odstream has no command {name!r}.\n\n{_usage()}", file=sys.stderr)
        return USAGE_ERROR
    try:
        return _entry(COMMANDS[name])(rest)
    except MissingExtraError as error:
        print(f"odstream {name}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print(f"odstream {name}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _entry(command: Command) -> Callable[[Sequence[str]], int]:
    return cast("Callable[[Sequence[str]], int]", importlib.import_module(command.module).main)


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: odstream COMMAND [--help]", "", *lines])

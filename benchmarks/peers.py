"""Peers: each runs in an interpreter of its own, in an environment of its own, and reports times as JSON lines.

An environment lies in ``.venv-bench/<peer>`` and is made on first use. It sees the packages of the environment that
runs the benchmark behind its own ones, so that every contestant uses the same torch build and NumPy, while the peer
and what it pins (another tensordict, say) stay out of the project's environment.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import traceback
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timing import seconds_per_call
from workload import Case

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parent / ".venv-bench"
ANSWER = "answer: "


@dataclass(frozen=True, kw_only=True)
class PeerPackage:
    """What to install and which script drives it."""

    name: str
    script: str
    """File beside this one; it calls `serve`."""
    install: tuple[str, ...]
    """Arguments of ``pip install``."""


EMBODICHAIN = PeerPackage(
    name="EmbodiChain 0.3.2", script="peer_embodichain.py", install=("--no-deps", "embodichain==0.3.2")
)
TORCHRL = PeerPackage(name="torchrl 0.14.1", script="peer_torchrl.py", install=("torchrl==0.14.1",))


def peer_python(package: PeerPackage) -> Path:
    """Where the interpreter of a peer's environment is, or would be."""
    folder = ENVIRONMENTS / Path(package.script).stem.removeprefix("peer_")
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def make_environment(package: PeerPackage) -> None:
    """Create the environment of a peer and install it there; nothing stays behind if that fails.

    Raises:
        subprocess.CalledProcessError: If pip failed; its output went to the terminal.
    """
    folder = peer_python(package).parent.parent
    try:
        venv.create(folder, with_pip=True, clear=True)
        _share_packages(peer_python(package))
        subprocess.run([peer_python(package), "-m", "pip", "install", "--quiet", *package.install], check=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _share_packages(python: Path) -> None:
    """Let an environment see this interpreter's packages behind its own."""
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    shared = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    Path(printed.strip(), "shared_with_benchmark.pth").write_text("\n".join(shared) + "\n", encoding="utf-8")


class Peer:
    """A running peer. Measures one case at a time, on request."""

    def __init__(self, package: PeerPackage) -> None:
        self.name = package.name
        self._process = subprocess.Popen(
            [peer_python(package), "-W", "ignore", str(HERE / package.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        while line and not line.startswith(ANSWER):
            line = self._process.stdout.readline()  # whatever else the peer prints
        if not line:
            raise RuntimeError(f"{self.name} ended with exit code {self._process.wait()}")
        answer = json.loads(line.removeprefix(ANSWER))
        if "error" in answer:
            raise RuntimeError(f"{self.name} failed:\n{answer['error']}")
        return answer["result"]

    def prepare(self, case: Case) -> None:
        """Let the peer build its cache for ``case``, in place of the one it holds."""
        self._ask(command="prepare", case=case.to_json())

    def measure(self, calls: int) -> list[float]:
        """Seconds of each of ``calls`` calls of the prepared case."""
        times_s: list[float] = self._ask(command="measure", calls=calls)
        return times_s

    def special(self, name: str, **arguments: Any) -> Any:
        """Run one of the peer's further measurements by its name."""
        return self._ask(command="special", name=name, arguments=arguments)

    def close(self, timeout_s: float = 30.0) -> None:
        """End the peer's process: ask it to, and kill it if it has not ended in time."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def serve(prepare: Callable[[Case], Callable[[], object]], specials: Mapping[str, Callable[..., Any]]) -> None:
    """Answer requests on standard input, one line each, until it closes."""
    prepared: Callable[[], object] | None = None
    for line in sys.stdin:
        request = json.loads(line)
        result: Any = None
        try:
            if request["command"] == "prepare":
                prepared = None
                prepared = prepare(Case.from_json(request["case"]))
            elif request["command"] == "measure":
                assert prepared is not None
                result = seconds_per_call(prepared, request["calls"])
            elif request["name"] != "ready":
                result = specials[request["name"]](**request["arguments"])
            answer = {"result": result}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(f"\n{ANSWER}{json.dumps(answer)}", flush=True)

"""All arms over several seeds: the same learner, the same number of updates, the same held-out scenes.

    python -m examples.ods.simple_bc_demo.compare --seeds 5 --output runs/bc-compare
    python -m examples.ods.simple_bc_demo.compare --seeds 1 --output runs/small -- --loop.updates 800

What follows a lone ``--`` is handed to every run. Runs follow one another, each in a process of its own. A run that is
finished is not repeated: the same command goes on where it was interrupted. Offline-full collects as many
demonstrations as the live run of the same seed published.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from examples.ods.simple_bc_demo.compare_numbers import compare, to_markdown
from examples.ods.simple_bc_demo.records import RECORDS
from examples.ods.simple_bc_demo.settings import MODES, Mode
from odstream.datasets.lerobot_import import import_lerobot
from odstream.errors import MissingExtraError

RESULTS, TABLE, COMMAND = "results.json", "results.md", "command.json"
RUN_FAILED, INVALID_INPUT, INTERRUPTED = 1, 2, 130
_OURS = ("--mode", "--seed", "--output", "--episodes", "--resume", "--dataset", "--smoke")
"""Arguments of a run that are chosen here."""

_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareCfg:
    """What to compare."""

    output: Path
    """Folder of the runs and of the results. One that holds runs of the same command is continued."""
    seeds: int = 5
    """Runs per arm: seeds 0, 1, ..."""
    arms: tuple[Mode, ...] = MODES
    """In this order within each seed."""
    smoke: bool = False
    """Every run in tiny."""
    plots: bool = True
    """Whether to draw; needs matplotlib."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")
        if not self.arms or len(set(self.arms)) < len(self.arms):
            raise ValueError(f"arms must be named once each, got {self.arms}")
        if {"live", "offline-full"} <= set(self.arms) and self.arms.index("offline-full") < self.arms.index("live"):
            raise ValueError(
                f"arms must have live before offline-full, which collects as many demonstrations, got {self.arms}"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, and compare.

    Returns:
        0; 1 if a run failed, which can be repeated by the same command; 2 if the input is not acceptable or something
        is not installed; 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    ours, extra = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    try:
        cfg = tyro.cli(CompareCfg, args=ours, prog="compare", description=(__doc__ or "").partition("\n")[0])
        check(cfg, extra)
    except (OSError, ValueError, MissingExtraError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return INVALID_INPUT
    try:
        runs = run_all(cfg, extra)
    except KeyboardInterrupt:
        print("\ncompare: interrupted; the same command goes on with the runs that are missing", file=sys.stderr)
        return INTERRUPTED
    if runs is None:
        return RUN_FAILED
    write_results(cfg, runs)
    return 0


def run_all(cfg: CompareCfg, extra: Sequence[str]) -> list[dict[str, Any]] | None:
    """Return the records of all runs, those that are missing run first; None if one failed."""
    runs: list[dict[str, Any]] = []
    for seed in range(cfg.seeds):
        for mode in cfg.arms:
            records = run_once(cfg, mode, seed, extra, runs)
            if records is None:
                print(f"compare: {mode}, seed {seed} failed; the same command tries it again", file=sys.stderr)
                return None
            runs.append(records)
    return runs


def check(cfg: CompareCfg, extra: Sequence[str]) -> None:
    """Refuse what cannot end well, and note the command in the folder.

    Raises:
        ValueError: If the folder holds runs of other settings.
        MissingExtraError: If an arm or a plot needs what is not installed.
    """
    if taken := [argument for argument in extra if argument.partition("=")[0] in _OURS]:
        raise ValueError(f"the comparison chooses {', '.join(taken)} by itself; leave them out behind --")
    if any(mode.startswith("offline-") for mode in cfg.arms):
        import_lerobot()
    if cfg.plots:
        from examples.ods.simple_bc_demo.compare_plots import require_plots

        require_plots()
    command = {"smoke": cfg.smoke, "arguments": list(extra)}
    path = cfg.output / COMMAND
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        if before != command:
            raise ValueError(f"{cfg.output} holds runs of other settings, {before}; these are {command}")
    elif cfg.output.exists() and any(cfg.output.iterdir()):
        raise ValueError(f"{cfg.output} is not empty and holds no comparison; choose a new folder")
    cfg.output.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(command) + "\n", encoding="utf-8")


def run_once(
    cfg: CompareCfg, mode: Mode, seed: int, extra: Sequence[str], runs: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the records of a run, from its folder if it is finished; None if it failed."""
    folder = cfg.output.resolve() / mode / f"seed-{seed}"
    records = folder / RECORDS
    if not _is_finished(records):
        if folder.exists():
            shutil.rmtree(folder)  # interrupted: nothing in it counts
        command = [sys.executable, "-m", "examples.ods.simple_bc_demo.train"]
        command += ["--mode", mode, "--seed", str(seed), "--output", str(folder), "--no-video", "--no-viewer"]
        command += ["--smoke"] if cfg.smoke else []
        command += _as_many_as_live(mode, seed, runs)
        print(f"\n=== {mode}, seed {seed}", flush=True)
        if subprocess.run([*command, *extra], cwd=_ROOT, check=False).returncode:
            return None
    found: dict[str, Any] = json.loads(records.read_text(encoding="utf-8"))
    found["trajectories"] = json.loads((folder / "trajectories.json").read_text(encoding="utf-8"))
    return found


def _is_finished(records: Path) -> bool:
    """Whether a run went on to its end, which is its evaluation."""
    return records.exists() and "evaluation" in json.loads(records.read_text(encoding="utf-8"))


def _as_many_as_live(mode: Mode, seed: int, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    if mode != "offline-full":
        return []
    published = [run["data"]["published_episodes"] for run in runs if (run["mode"], run["seed"]) == ("live", seed)]
    return ["--episodes", str(published[0])] if published else []


def write_results(cfg: CompareCfg, runs: Sequence[Mapping[str, Any]]) -> None:
    """Write the table, the numbers and the plots, and print the table."""
    results = compare(runs)
    (cfg.output / RESULTS).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    text = to_markdown(results)
    (cfg.output / TABLE).write_text(text, encoding="utf-8")
    print(f"\n{text}")
    written = [cfg.output / name for name in (RESULTS, TABLE)]
    if cfg.plots:
        from examples.ods.simple_bc_demo.compare_plots import draw

        written += draw(runs, results, cfg.output)
    print("\n".join(str(path) for path in written))


if __name__ == "__main__":
    raise SystemExit(main())

"""The comparison: what is run, what is not run again, and what the table says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.ods.simple_bc_demo import compare
from examples.ods.simple_bc_demo.compare_numbers import NUMBERS, to_markdown
from examples.ods.simple_bc_demo.compare_numbers import compare as numbers_of
from examples.ods.simple_bc_demo.compare_plots import draw
from examples.ods.simple_bc_demo.intervals import paired_t, wilson

pytestmark = pytest.mark.franka


def records(mode: str, seed: int, solved: int = 90, success_80_s: float | None = 12.0) -> dict[str, Any]:
    def entry(count: int) -> dict[str, Any]:
        return {"solved": count, "scenes": 100, "rate": count / 100, "interval_95": wilson(count, 100)}

    success = {f"{cm}_cm": entry(solved - 10 * (3 - cm)) for cm in (3, 2, 1)}
    return {
        "mode": mode,
        "seed": seed,
        "evaluation": {"success": success},
        "curve": [
            {"updates": n, "at_s_without_evaluations": n / 10 + seed, "success": {"3_cm": entry(min(n, 90))}}
            for n in (50, 100)
        ],
        "phases_s": {"start": 2.0, "train": 20.0},
        "resources": {"learner": {"peak_bytes": 5 * 10**8, "cpu_s": 9.0}, "producer": None},
        "learner_states_s": {"wait": 1.0, "pace": 0.5},
        "generation_shares": {"1": 0.75, "2": 0.25},
        "latencies": {"first_update_s": 6.0 + seed, "success_80_s": success_80_s},
        "total_s": 40.0,
        "work": {"updates": 100, "completed": 6400},
        "data": {"published_episodes": 70 + seed},
        "exposure": {
            "selections_per_trajectory": {"least": 0, "mean": 91.4, "most": 200},
            "anchors_per_frame": 0.5,
            "supervised_appearances_per_frame": 9.0,
        },
        "accounting": {"retired": 40, "unaccounted": 0, "uncounted": 0},
        "trajectories": {"columns": ["episode_id", "completed"], "episodes": [[0, 3], [1, 200]]},
    }


RUNS = [records(mode, seed, solved) for seed in (0, 1) for mode, solved in (("live", 99), ("offline-32", 80))]


def test_scenes_are_summed_over_seeds_and_compared_with_live() -> None:
    results = numbers_of(RUNS)
    live, other = (results["arms"][mode]["success"]["3_cm"] for mode in ("live", "offline-32"))
    assert (live["solved"], live["scenes"]) == (198, 200)
    assert live["interval_95"] == wilson(198, 200)
    assert [one["rate"] for one in other["per_seed"]] == [0.8, 0.8]
    assert list(results["live_minus"]) == ["offline-32"]
    difference = results["live_minus"]["offline-32"]["3_cm"]
    assert difference == {"difference": pytest.approx(0.19), "interval_95": pytest.approx((0.19, 0.19))}
    json.dumps(results, allow_nan=False)


def test_the_table_has_a_row_for_everything_and_a_column_per_arm() -> None:
    text = to_markdown(numbers_of([*RUNS[:3], records("offline-32", 1, 80, success_80_s=None)]))
    assert "| | live | offline-32 |" in text
    assert "| solved within 3 cm, all seeds | 99.0% [96.4%, 99.7%] of 200 | 80.0%" in text
    assert "| within 1 cm, seed by seed | 79%, 79% | 60%, 60% |" in text
    assert "| time to first update (s) | 6.5 (6.0 to 7.0) |" in text
    assert "| time to 80 % (s) | 12.0 | 12.0, 1 without |" in text
    assert "- live minus offline-32: +19.0% [" in text
    for name in NUMBERS:
        assert f"| {name} | " in text


def test_a_difference_is_paired_by_seed() -> None:
    runs = [
        records(mode, seed, solved[seed])
        for mode, solved in (("frozen", (80, 85)), ("live", (90, 99)))
        for seed in (1, 0)
    ]
    difference = numbers_of(runs)["live_minus"]["frozen"]["3_cm"]
    assert difference == {"difference": pytest.approx(0.12), "interval_95": pytest.approx(paired_t([0.10, 0.14]))}


@pytest.mark.parametrize("argument", ["--mode", "--seed=7", "--output", "--episodes"])
def test_what_the_comparison_chooses_cannot_be_handed_to_the_runs(
    tmp_path: Path, argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main(["--arms", "live", "--output", str(tmp_path / "c"), "--no-plots", "--", argument, "7"]) == 2
    assert argument.partition("=")[0] in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_as_many_as_live_needs_live_first(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="live before offline-full"):
        compare.CompareCfg(output=tmp_path, arms=("offline-full", "live"))


def test_numbers_that_are_not_known_are_left_out() -> None:
    results = numbers_of([records("frozen", 0, success_80_s=None)])
    assert results["live_minus"] == {}
    assert "| time to 80 % (s) | - |" in to_markdown(results)


def test_three_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = draw(RUNS, numbers_of(RUNS), tmp_path)
    assert [file.name for file in files] == ["success.png", "curves.png", "exposure.png"]
    assert all(file.stat().st_size > 10_000 for file in files)


class Trainer:
    """Runs commands by writing what a run leaves; fails where told to."""

    def __init__(self, fails: tuple[str, int] | None = None) -> None:
        self.commands: list[list[str]] = []
        self.fails = fails

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        mode, seed, folder = (command[command.index(name) + 1] for name in ("--mode", "--seed", "--output"))
        Path(folder).mkdir(parents=True)
        if self.fails == (mode, int(seed)):
            return subprocess.CompletedProcess(command, 1)
        found = records(mode, int(seed))
        (Path(folder) / "trajectories.json").write_text(json.dumps(found.pop("trajectories")))
        (Path(folder) / "records.json").write_text(json.dumps(found))
        return subprocess.CompletedProcess(command, 0)


@pytest.fixture
def no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "import_lerobot", lambda: None)


def run(folder: Path, *arguments: str) -> int:
    return compare.main(["--output", str(folder), "--no-plots", *arguments])


@pytest.mark.usefixtures("no_extras")
def test_a_comparison_that_is_interrupted_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compare.subprocess, "run", interrupted)
    assert run(tmp_path / "c", "--arms", "live") == 130
    assert "the same command goes on with the runs that are missing" in capsys.readouterr().err


@pytest.mark.usefixtures("no_extras")
def test_an_interrupted_comparison_goes_on_and_repeats_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, arms = tmp_path / "c", ("--seeds", "2", "--arms", "live", "offline-full")
    first = Trainer(fails=("live", 1))
    monkeypatch.setattr(compare.subprocess, "run", first)
    assert run(folder, *arms) == 1
    assert not (folder / "results.json").exists()
    second = Trainer()
    monkeypatch.setattr(compare.subprocess, "run", second)
    assert run(folder, *arms) == 0
    ran = [tuple(command[command.index(name) + 1] for name in ("--mode", "--seed")) for command in second.commands]
    assert ran == [("live", "1"), ("offline-full", "1")]
    assert json.loads((folder / "results.json").read_text())["seeds"] == [0, 1]
    assert (folder / "results.md").read_text().startswith("# Comparison over 2 seeds")
    assert run(folder, *arms) == 0
    assert len(second.commands) == 2


@pytest.mark.usefixtures("no_extras")
def test_offline_full_collects_what_live_of_the_same_seed_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer()
    monkeypatch.setattr(compare.subprocess, "run", trainer)
    arms = ("--seeds", "2", "--arms", "live", "offline-32", "offline-full")
    assert run(tmp_path / "c", *arms, "--smoke", "--", "--loop.updates", "40") == 0
    for command in trainer.commands:
        assert command[0] == sys.executable
        assert command[-2:] == ["--loop.updates", "40"]
        assert {"--smoke", "--no-video", "--no-viewer"} <= set(command)
        mode, seed = (command[command.index(name) + 1] for name in ("--mode", "--seed"))
        given = command[command.index("--episodes") + 1] if "--episodes" in command else None
        assert given == (str(70 + int(seed)) if mode == "offline-full" else None)


@pytest.mark.usefixtures("no_extras")
def test_runs_of_other_settings_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare.subprocess, "run", Trainer())
    assert run(tmp_path / "c", "--seeds", "1", "--arms", "live") == 0
    assert run(tmp_path / "c", "--seeds", "1", "--arms", "live", "--", "--loop.updates", "40") == 2
    assert "holds runs of other settings" in capsys.readouterr().err
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "file").write_text("of somebody")
    assert run(tmp_path / "d", "--seeds", "1", "--arms", "live") == 2
    assert "is not empty and holds no comparison" in capsys.readouterr().err

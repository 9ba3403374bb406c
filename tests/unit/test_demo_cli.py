"""The command line finds its commands and refuses what it cannot do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from odstream import __version__
from odstream.cli.main import COMMANDS, main


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    usage = capsys.readouterr().out
    assert all(name in usage for name in COMMANDS)


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_an_unknown_command_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dmeo"]) == 2
    assert "no command 'dmeo'" in capsys.readouterr().err


def test_what_a_producer_process_imports_again_is_light() -> None:
    code = "import sys, odstream.__main__; print(sorted({'torch', 'mujoco', 'tyro', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.franka
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--target", "3"], "target must be 0 to 1"),
        (["--num-envs", "200"], "num_envs must be 1 to cache_episodes=128, got 200"),
        (["--seed", "-1"], "seed must be at least 0, got -1"),
        (["--updates", "0"], "updates must be at least 1, got 0"),
        (["--reset", "easy"], "invalid choice"),
    ],
)
def test_bad_demo_settings_are_refused_before_anything_starts(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(["demo", *arguments])
    except SystemExit as exit_request:
        code = exit_request.code
    assert code == 2
    said = capsys.readouterr()
    assert complaint in " ".join((said.err + said.out).replace("│", " ").split())


def test_a_missing_extra_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith("odstream.envs.franka")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "odstream.cli.demo", raising=False)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    assert main(["demo"]) == 2
    assert "pip install 'odstream[franka]'" in capsys.readouterr().err

"""`odstream report` writes a page and pictures, replaces what is its own, and refuses the rest in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from odstream.cli.main import main
from tests.fakes.run import write_run

pytest.importorskip("matplotlib", reason="needs the extra plot")


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_a_page_and_pictures_are_written_into_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run/report.html").read_text().startswith("<!DOCTYPE html>")
    pictures = sorted((tmp_path / "run/report-plots").iterdir())
    assert len(pictures) == 12
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    assert str(tmp_path / "run/report.html") in capsys.readouterr().out


def test_the_runs_own_report_is_replaced(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "report.html").write_text("old", encoding="utf-8")
    assert main(["report", str(tmp_path), "--no-png"]) == 0
    assert "old" != (tmp_path / "report.html").read_text()
    assert not (tmp_path / "report-plots").exists()
    assert not list(tmp_path.glob(".*"))


def test_another_file_is_replaced_only_when_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run")
    output = tmp_path / "mine.html"
    output.write_text("mine", encoding="utf-8")
    arguments = ["report", str(tmp_path / "run"), "--no-png", "--output", str(output)]
    assert main(arguments) == 2
    assert "--overwrite" in complaint(capsys)
    assert output.read_text() == "mine"
    assert main([*arguments, "--overwrite"]) == 0
    assert output.read_text() != "mine"
    assert not (tmp_path / "run/report.html").exists()


def test_pictures_lie_beside_another_page(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--output", str(tmp_path / "a.html")]) == 0
    assert (tmp_path / "a-plots/rates-chart.png").exists()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: (run / "run.json").unlink(), "is no run directory"),
        (lambda run: (run / "run.json").write_text("{}"), "started_unix_ns"),
        (lambda run: (run / "metrics.jsonl").write_text("{\n{}\n"), "metrics.jsonl:1"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(
    tmp_path: Path, spoil: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path)
    spoil(tmp_path)  # type: ignore[operator]
    assert main(["report", str(tmp_path)]) == 2
    assert said in complaint(capsys)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: (run / "plan.json").write_text('{"format": "odstream.plan", "version": 2}'), "version must be 1"),
        (lambda run: (run / "comparison.json").write_text(""), "comparison.json"),
        (lambda run: (run / "trajectories.json").write_text('{"format"'), "trajectories.json"),
        (lambda run: (run / "task.yaml").write_bytes(b"\xff\xfe"), "task.yaml"),
    ],
)
def test_a_damaged_file_is_said_and_the_rest_is_shown(
    tmp_path: Path, spoil: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Field case Q02."""
    write_run(tmp_path)
    spoil(tmp_path)  # type: ignore[operator]
    assert main(["report", str(tmp_path), "--no-png"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out")]
    assert said in line
    html = (tmp_path / "report.html").read_text()
    assert html.index("A file is damaged; what it says is left out.") < html.index("<nav")


def test_a_run_that_is_not_there_and_a_folder_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path / "absent")]) == 2
    assert "is no folder" in complaint(capsys)
    write_run(tmp_path)
    assert main(["report", str(tmp_path), "--output", str(tmp_path / "no/where.html")]) == 2
    assert "does not exist" in complaint(capsys)


def test_a_torn_file_is_said_and_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Field case Q02."""
    path = write_run(tmp_path) / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    assert main(["report", str(tmp_path), "--no-png"]) == 0
    assert "119 whole records" in capsys.readouterr().out


def test_a_missing_extra_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", str(tmp_path)]) == 2
    assert "pip install 'odstream[plot]'" in complaint(capsys)


def test_the_report_imports_no_torch() -> None:
    import subprocess

    code = "import sys, odstream.cli.report; print(sorted({'torch', 'matplotlib', 'mujoco'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

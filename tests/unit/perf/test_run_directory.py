"""A run directory is begun as a whole, and its files are written as wholes."""

from __future__ import annotations

from pathlib import Path

import pytest

from odstream.perf.run_directory import RunDirectory, starting_run, write_whole


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_file_that_cannot_be_written_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "a.json", "first")

    def full(path: Path, content: bytes) -> int:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "a.json", "second")
    assert files(tmp_path) == {"a.json": "first"}


def test_a_run_that_cannot_start_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyError), starting_run(tmp_path / "run"):
        RunDirectory(tmp_path / "run")
        raise KeyError
    assert not (tmp_path / "run").exists()


def test_a_run_that_cannot_start_leaves_the_earlier_one_and_what_is_not_a_runs(tmp_path: Path) -> None:
    RunDirectory(tmp_path)
    for name in ("metrics.jsonl", "demo.json", "mine.txt", "tensorboard/events"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    before = files(tmp_path)
    with pytest.raises(KeyError), starting_run(tmp_path):
        RunDirectory(tmp_path, replace=True).records_path.write_text("new")
        raise KeyError
    assert files(tmp_path) == before
    with starting_run(tmp_path):
        RunDirectory(tmp_path, replace=True)
    assert set(files(tmp_path)) == {"run.json", "mine.txt"}

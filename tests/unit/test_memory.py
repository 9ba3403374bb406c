"""How much memory a cache may take."""

from __future__ import annotations

from pathlib import Path

import pytest

from odstream.cache.memory import available_bytes

GIB = 2**30


def system(folder: Path, *, limit: str, used: int, inactive_file: int) -> tuple[Path, Path]:
    meminfo = folder / "meminfo"
    meminfo.write_text(f"MemTotal:  1 kB\nMemAvailable:  {8 * GIB // 1024} kB\n")
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file}\n")
    return meminfo, folder


@pytest.mark.parametrize(
    ("limit", "used", "inactive_file", "expected"),
    [
        ("max", 5 * GIB, 0, 8 * GIB),
        (str(16 * GIB), 2 * GIB, 0, 8 * GIB),
        (str(6 * GIB), 2 * GIB, 0, 4 * GIB),
        (str(6 * GIB), 6 * GIB, 5 * GIB, 5 * GIB),
        (str(6 * GIB), 7 * GIB, 0, 0),
    ],
)
def test_what_is_available_is_the_smaller_of_machine_and_container(
    tmp_path: Path, limit: str, used: int, inactive_file: int, expected: int
) -> None:
    """The kind of field case M01; files that the kernel keeps in memory only while nobody wants it do not count."""
    paths = system(tmp_path, limit=limit, used=used, inactive_file=inactive_file)
    assert available_bytes(*paths)[0] == expected


def test_a_machine_without_control_groups_has_what_the_kernel_says(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemAvailable: 10 kB\n")
    assert available_bytes(meminfo, tmp_path / "none") == (10240, f"MemAvailable of {meminfo}")

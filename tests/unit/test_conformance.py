"""The generated conformance page."""

from pathlib import Path

from tools import conformance
from tools.conformance import Proof, Requirement, conformance_page, proofs, requirements, unknown_numbers

PAGE = """# Requirements

## CTX: causal contexts

| id | requirement |
| --- | --- |
| CTX-01 | a first promise |
| CTX-02 | a second one with `a | b` |
"""

TESTS = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.spec("CTX-01")]

def test_of_the_module(): ...

@pytest.mark.spec("CTX-02", "CTX-09")
def test_with_two_numbers(): ...

class TestGroup:
    @pytest.mark.spec("CTX-02")
    def test_in_a_class(self): ...
    def helper(self): ...
"""


def test_every_marker_in_the_tests_names_a_requirement() -> None:
    known = requirements((conformance.ROOT / "docs/requirements.md").read_text(encoding="utf-8"))
    found = proofs(conformance.ROOT / "tests", conformance.ROOT)
    assert unknown_numbers(known, found) == []


def test_the_requirements_are_numbered_without_gaps_or_repetition() -> None:
    known = requirements((conformance.ROOT / "docs/requirements.md").read_text(encoding="utf-8"))
    assert len(known) > 80
    for room in dict.fromkeys(requirement.room for requirement in known):
        prefix = room.split(":")[0]
        numbers = [requirement.number for requirement in known if requirement.room == room]
        assert numbers == [f"{prefix}-{index:02d}" for index in range(1, len(numbers) + 1)]


def test_requirements_are_read_with_their_room() -> None:
    assert requirements(PAGE) == [
        Requirement(number="CTX-01", text="a first promise", room="CTX: causal contexts"),
        Requirement(number="CTX-02", text="a second one with `a | b`", room="CTX: causal contexts"),
    ]


def test_markers_of_functions_classes_and_modules_are_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_some.py").write_text(TESTS)
    found = proofs(tmp_path / "tests", tmp_path)
    assert [(proof.number, proof.test) for proof in found] == [
        ("CTX-01", "test_of_the_module"),
        ("CTX-01", "test_with_two_numbers"),
        ("CTX-01", "TestGroup.test_in_a_class"),
        ("CTX-02", "test_with_two_numbers"),
        ("CTX-02", "TestGroup.test_in_a_class"),
        ("CTX-09", "test_with_two_numbers"),
    ]


def test_an_unknown_number_is_named_with_its_place() -> None:
    proof = Proof(number="CTX-09", path="tests/test_some.py", line=8, test="test_with_two_numbers")
    (problem,) = unknown_numbers(requirements(PAGE), [proof])
    assert problem == "tests/test_some.py:8 test_with_two_numbers: no requirement 'CTX-09'"


def test_the_page_says_what_is_proven_and_what_is_not() -> None:
    proof = Proof(number="CTX-01", path="tests/test_some.py", line=5, test="TestGroup.test_the_last_frame_is_reachable")
    page = conformance_page(requirements(PAGE), [proof])
    assert "1 of 2 numbers" in page
    assert "**CTX-01** a first promise\n\n- the last frame is reachable (`tests/test_some.py::TestGroup`)\n" in page
    assert "**CTX-02** a second one with `a | b`\n\n- *not proven yet*\n" in page

"""Texts by number: append-only, shared, bounded, and padding is never a text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odstream.cache.layout import Word
from odstream.cache.store import CacheStore
from odstream.engine.language import LanguageRegistry
from tests.fakes.cache import Cache, dying


def store(language_bytes: int = 4000) -> CacheStore:
    return Cache(slots=1, max_episode_steps=1, language_bytes=language_bytes).store


@pytest.mark.spec("ENG-24")
def test_numbers_count_up_per_kind_and_keep_their_meaning() -> None:
    shared = store()
    writer, reader = LanguageRegistry(shared), LanguageRegistry(shared)
    assert [writer.intern("task", text) for text in ("open", "close", "open")] == [0, 1, 0]
    assert [writer.intern("subtask", text) for text in ("close", "reach")] == [0, 1]
    assert reader.resolve("task", [[0, 1], [1, 0]]) == [["open", "close"], ["close", "open"]]
    assert writer.intern("task", "push") == 2
    assert reader.resolve("task", 2) == "push" and reader.resolve("subtask", [1]) == ["reach"]
    assert LanguageRegistry(shared).intern("task", "close") == 1  # also for one that was not there before
    assert reader.resolve("task", []) == []


@pytest.mark.spec("ENG-24")
def test_no_text_is_minus_one() -> None:
    assert LanguageRegistry(store()).intern("task", None) == -1


@pytest.mark.spec("ENG-24")
@pytest.mark.parametrize(
    ("number", "message"),
    [
        (-1, "task_index -1 is padding or a frame without text; there are 1 task texts"),
        (1, "task_index 1 is unknown"),
        (-2, "task_index -2 is unknown"),
        (2**62, "is unknown"),
        ([0, [0, -1]], "task_index -1 is padding"),
    ],
)
def test_padding_and_unknown_numbers_have_no_text(number: Any, message: str) -> None:
    registry = LanguageRegistry(store())
    registry.intern("task", "open")
    registry.intern("subtask", "a")
    registry.intern("subtask", "b")
    with pytest.raises(ValueError, match=message):
        registry.resolve("task", number)


@pytest.mark.parametrize(
    ("text", "error"),
    [("", ValueError), (" \n", ValueError), (3, TypeError), (b"open", TypeError), ("\ud800", ValueError)],
)
def test_what_is_no_text_is_refused_and_changes_nothing(text: Any, error: type[Exception]) -> None:
    shared = store()
    registry = LanguageRegistry(shared)
    with pytest.raises(error):
        registry.intern("task", text)
    assert shared.words[Word.LANGUAGE_BYTES] == 0
    assert registry.intern("task", "open") == 0


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["task", "subtask"]), st.text(min_size=1, max_size=20)), max_size=30))
def test_any_text_comes_back_as_it_was(entries: list[tuple[Any, str]]) -> None:
    """Line feeds, quotes, emoji, separators of other alphabets."""
    entries = [(kind, text) for kind, text in entries if text.strip()]
    shared = store(20_000)
    writer, reader = LanguageRegistry(shared), LanguageRegistry(shared)
    numbers = [writer.intern(kind, text) for kind, text in entries]
    assert [reader.resolve(kind, n) for (kind, _), n in zip(entries, numbers, strict=True)] == [t for _, t in entries]
    for name in ("task", "subtask"):
        distinct = list(dict.fromkeys(text for kind, text in entries if kind == name))
        assert LanguageRegistry(shared).resolve(name, list(range(len(distinct)))) == distinct


@pytest.mark.spec("ENG-24")
def test_a_full_dictionary_says_so_and_keeps_what_it_has() -> None:
    line = len('["task","open"]') + len(" ") + 1
    shared = store(2 * line)
    registry = LanguageRegistry(shared)
    assert [registry.intern("task", text) for text in ("open", "shut")] == [0, 1]
    with pytest.raises(OverflowError, match=f"language_buffer_bytes={2 * line} is full: {3 * line} bytes .* 'lift'"):
        registry.intern("task", "lift")
    assert registry.intern("task", "shut") == 1
    assert LanguageRegistry(shared).resolve("task", [0, 1]) == ["open", "shut"]


@pytest.mark.parametrize("writes", range(4))
def test_a_writer_that_dies_leaves_whole_texts(writes: int) -> None:
    shared = store()
    LanguageRegistry(shared).intern("task", "open")
    with dying(shared, writes):
        LanguageRegistry(shared).intern("task", "a much longer text")
    with shared.transaction():
        pass
    registry = LanguageRegistry(shared)
    assert registry.intern("task", "b") == (1 if writes < 3 else 2)
    assert registry.resolve("task", 0) == "open" and registry.resolve("task", registry.intern("task", "b")) == "b"


@pytest.mark.spec("ENG-24")
def test_threads_that_read_at_once_agree_on_every_text() -> None:
    shared = store()
    writer, reader = LanguageRegistry(shared), LanguageRegistry(shared)
    texts = [f"{number}" for number in range(12)]
    for text in texts:
        writer.intern("task", text)
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(reader.resolve, "task", writer.intern("task", text)) for _ in range(4)]
        assert {future.result() for future in futures} == {text}
    assert reader.resolve("task", list(range(12))) == texts
    assert reader.kinds() == ("task",)

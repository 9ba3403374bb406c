"""Task and sub-task texts, shared between processes by number.

Two append-only dictionaries, ``task`` and ``subtask``. The producer adds texts; everyone reads. A number keeps its
meaning for the engine's lifetime, so a batch that was sampled long ago can still be read. Nothing here needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from odstream.cache.layout import Word
from odstream.cache.store import CacheStore

__all__ = ["LanguageKind", "LanguageRegistry"]

LanguageKind = Literal["task", "subtask"]


class LanguageRegistry:
    """One process's view of the dictionaries.

    Records lie one behind the other as JSON lines; a control word says how many bytes are complete, and bytes in front
    of it never change. Threads may share a registry: what was read is replaced as a whole.
    """

    def __init__(self, store: CacheStore) -> None:
        self._store = store
        self._bytes = store.array("language")
        self._read = _Dictionaries(0, {"task": (), "subtask": ()})
        self._numbers: dict[tuple[LanguageKind, str], int] = {}

    def intern(self, kind: LanguageKind, text: str | None) -> int:
        """Return the number of ``text``, adding it if it is new; -1 for None. Producer only.

        Raises:
            TypeError: If it is not a string.
            ValueError: If it is blank.
            OverflowError: If it does not fit any more; what was there stays readable.
        """
        if text is None:
            return -1
        if not isinstance(text, str):
            raise TypeError(f"an instruction must be a string, got {text!r} ({type(text).__name__})")
        if not text.strip():
            raise ValueError(f"an instruction must not be blank, got {text!r}")
        known = self._numbers.get((kind, text))
        if known is None:
            texts = self._catch_up().texts[kind]
            known = texts.index(text) if text in texts else self._append(kind, text)
            self._numbers[kind, text] = known
        return known

    def _append(self, kind: LanguageKind, text: str) -> int:
        written = self._catch_up()
        record = np.frombuffer(json.dumps([kind, text], ensure_ascii=False).encode() + b"\n", np.uint8)
        end = written.nbytes + len(record)
        if end > self._store.layout.language_bytes:
            raise OverflowError(
                f"language_buffer_bytes={self._store.layout.language_bytes} is full: {end} bytes would be needed for "
                f"all distinct instructions; the next one is {text[:80]!r}"
            )
        self._bytes[written.nbytes : end] = record
        with self._store.transaction():
            self._store.commit([Word.LANGUAGE_BYTES], [end])
        return len(written.texts[kind])

    def kinds(self) -> tuple[LanguageKind, ...]:
        """Return the kinds that have any text."""
        return tuple(kind for kind, texts in self._catch_up().texts.items() if texts)

    def resolve(self, kind: LanguageKind, numbers: Any) -> Any:
        """Return the texts of ``numbers``: a string for one number, nested lists for nested lists.

        Raises:
            ValueError: If a number is padding (-1) or unknown.
        """
        texts = self._catch_up().texts[kind]

        def look_up(value: Any) -> Any:
            if isinstance(value, Sequence):
                return [look_up(item) for item in value]
            if not 0 <= value < len(texts):
                meaning = "padding or a frame without text" if value == -1 else "unknown"
                raise ValueError(
                    f"{kind}_index {value} is {meaning}; there are {len(texts)} {kind} texts. "
                    "Resolve only frames whose `valid` is true and whose episode has an instruction"
                )
            return texts[value]

        return look_up(numbers)

    def _catch_up(self) -> _Dictionaries:
        """Return all texts that are complete. The lock, where there are new ones, orders them behind their bytes."""
        read = self._read
        if int(self._store.words[Word.LANGUAGE_BYTES]) == read.nbytes:
            return read
        with self._store.transaction():
            end = int(self._store.words[Word.LANGUAGE_BYTES])
            new = bytes(self._bytes[read.nbytes : end - 1])
        texts = dict(read.texts)
        for line in new.split(b"\n"):
            kind, text = json.loads(line)
            texts[kind] = (*texts[kind], text)
        self._read = read = _Dictionaries(end, texts)
        return read


class _Dictionaries(NamedTuple):
    nbytes: int
    """Bytes of the records that were read."""
    texts: dict[LanguageKind, tuple[str, ...]]

"""Task and sub-task texts of stored data, by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["SourceLanguage"]

_KINDS = ("task", "subtask")


class SourceLanguage:
    """The texts of one source.

    Args:
        texts: ``{"task": {0: "...", ...}, "subtask": {...}}``; either may be left out.

    Raises:
        TypeError: If a number or a text has the wrong type.
        ValueError: If there is another kind, or a number is negative.
    """

    def __init__(self, texts: Mapping[str, Mapping[int, str]] | None) -> None:
        self._texts: dict[str, dict[int, str]] = {}
        for kind, of_kind in (texts or {}).items():
            if kind not in _KINDS:
                raise ValueError(f"language must have no kinds but {', '.join(_KINDS)}, got {kind!r}")
            self._texts[kind] = {_number(kind, number): _text(kind, number, of_kind[number]) for number in of_kind}

    def resolve(self, batch: Any) -> dict[str, Any]:
        """Return the texts of a batch's ids, per kind, nested like its batch dimensions.

        Raises:
            KeyError: If the batch has no ids of a kind.
            ValueError: If there are no texts, or an id is padding or unknown.
        """
        if not self._texts:
            raise ValueError("the source has no texts; give them as language={'task': {0: '...'}}")
        return {kind: self._look_up(kind, batch[f"{kind}_index"].tolist()) for kind in self._texts}

    def _look_up(self, kind: str, value: Any) -> Any:
        if isinstance(value, Sequence):
            return [self._look_up(kind, item) for item in value]
        if value not in self._texts[kind]:
            meaning = "padding or a frame without text" if value == -1 else "unknown"
            raise ValueError(
                f"{kind}_index {value} is {meaning}; there are {len(self._texts[kind])} {kind} texts. "
                "Resolve only frames whose `valid` is true"
            )
        return self._texts[kind][value]


def _number(kind: str, number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"numbers in language[{kind!r}] must be ints, got {number!r} ({type(number).__name__})")
    if number < 0:
        raise ValueError(f"numbers in language[{kind!r}] must be at least 0, got {number}")
    return number


def _text(kind: str, number: int, text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        raise TypeError(f"language[{kind!r}][{number}] must be a non-blank string, got {text!r}")
    return text

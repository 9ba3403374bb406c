"""P single environments: every environment works on its own scene until one attempt at it is accepted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from odstream.errors import EnvironmentContractError
from odstream.producers.base import Episode
from odstream.producers.player import Description, Ending, Player, Values
from odstream.producers.recording import Attempt, Recorder, Scenes


@dataclass(slots=True)
class _Seat:
    """An environment with the attempt it is busy with, and the row that this is recorded in."""

    player: Player
    attempt: Attempt
    row: int
    views: Sequence[NDArray[Any]]
    """Per field the row's frames ``[T, *shape]``."""
    length: int = 0

    def request(self) -> None:
        self.player.request(self.attempt.seed if self.length == 0 else None)

    def write(self, values: Values) -> None:
        for view, value in zip(self.views, values, strict=True):
            view[self.length] = value
        self.length += 1


class SingleEnvironments:
    """Steps P players in rounds; each round asks every busy one for a frame, then collects in order.

    The order of the episodes therefore depends on nothing but their lengths.

    Raises:
        EnvironmentContractError: If the environments do not all record the same fields.
    """

    def __init__(self, players: Sequence[Player]) -> None:
        self._players = players
        for index, player in enumerate(players):
            if player.description != players[0].description:
                raise EnvironmentContractError(
                    f"environment {index} records {player.description}; environment 0 records {players[0].description}"
                )

    @property
    def description(self) -> Description:
        """What is recorded."""
        return self._players[0].description

    def produce(self, scenes: Scenes, recorder: Recorder, should_stop: Callable[[], bool]) -> Iterator[Episode]:
        """Yield finished attempts until every open scene was accepted."""
        seats: dict[int, _Seat] = {}
        for index, player in enumerate(self._players):
            if not scenes.exhausted:
                seats[index] = _take_seat(player, scenes.begin(), recorder)
        while seats and not should_stop():
            for seat in seats.values():
                seat.request()
            for index, seat in list(seats.items()):
                advance = seat.player.collect(should_stop)
                if advance is None:
                    return
                if advance.values is not None:
                    seat.write(advance.values)
                if advance.ending is not None:
                    episode = _finish(seat, recorder, advance.ending)
                    yield episode
                    del seats[index]
                    attempt = _next_attempt(seat.attempt, episode, scenes)
                    if attempt is not None:
                        seats[index] = _take_seat(seat.player, attempt, recorder)

    def close(self) -> None:
        """Close every environment, even if some fail to, and raise what they raised. Idempotent."""
        with contextlib.ExitStack() as stack:
            for player in self._players:
                player.begin_close()
                stack.callback(player.close)


def _take_seat(player: Player, attempt: Attempt, recorder: Recorder) -> _Seat:
    row = recorder.claim()
    return _Seat(player, attempt, row, [array[row] for array in recorder.arrays])


def _finish(seat: _Seat, recorder: Recorder, ending: Ending) -> Episode:
    return recorder.finish(seat.row, seat.length, seat.attempt, seat.attempt.seed, ending)


def _next_attempt(attempt: Attempt, episode: Episode, scenes: Scenes) -> Attempt | None:
    """What an environment does next: the same scene again, the next one, or nothing."""
    if not episode.accepted:
        return scenes.again(attempt, episode.failure)
    return None if scenes.exhausted else scenes.begin()

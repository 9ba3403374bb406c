"""The action manager of an environment: ordered terms, one flat request, one controller command.

Shapes: ``P`` rows of the batch, ``n`` selected rows, ``W`` request features, ``J`` controlled joints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from odstream.producers.action_terms import ActionTerm, Robot
from odstream.producers.actions import ActionDescriptor, ControllerAction, complaint, flat_bounds, inside

__all__ = ["ActionManager"]


class ActionManager:
    """Turns policy requests into controller commands. Keeps no state: equal robots and requests, equal commands.

    Args:
        terms: By name, in the order of their columns. Each joint of the robot belongs to exactly one term.
        robot: The one that every term was built on.

    Raises:
        TypeError, ValueError: If there is no term, or a joint of the robot belongs to none or to several.
    """

    def __init__(self, terms: Mapping[str, ActionTerm], robot: Robot) -> None:
        _check(terms, robot)
        self._terms = dict(terms)
        self._robot = robot
        self._rows = np.arange(robot.num_envs)
        self.descriptors = _describe(self._terms)
        """The terms in order; their columns are contiguous."""
        self._low, self._high = flat_bounds(self.descriptors)
        self.action_space = gym.spaces.Box(self._low, self._high, dtype=np.float32)
        """Of one request ``[W]`` float32."""

    @property
    def width(self) -> int:
        """W: features of one request."""
        return len(self._low)

    @property
    def contracts(self) -> tuple[str, ...]:
        """The contract of each term, in order."""
        return tuple(descriptor.contract for descriptor in self.descriptors)

    @property
    def joint_names(self) -> tuple[str, ...]:
        """The controlled joints, in the order of a command."""
        return self._robot.joint_names

    def process(self, requests: NDArray[Any], rows: NDArray[np.int64] | None = None) -> ControllerAction:
        """Return what the joints are told for requests, from what is measured now.

        Args:
            requests: ``[P, W]``; ``[n, W]`` with ``rows``; ``[W]`` if there is one robot.
            rows: ``[n]`` indices of the robots that the requests are for; None: all.

        Returns:
            Positions of as many rows as there are requests (``[J]`` for ``[W]``). Each row depends on nothing but
            its own request and robot, to the bit.

        Raises:
            ValueError: If the shape does not fit, or a request is not finite or leaves the action space; the message
                names row, element, value and bounds.
        """
        given = np.asarray(requests, np.float64)
        single = given.ndim == 1 and rows is None and len(self._rows) == 1
        batch = given[None] if single else given
        rows = self._rows if rows is None else rows
        if batch.shape != (len(rows), self.width):
            raise ValueError(f"requests must have shape {(len(rows), self.width)}, got {given.shape}")
        self._check_bounds(batch, rows)
        positions = np.empty((len(rows), len(self.joint_names)))
        for term, descriptor in zip(self._terms.values(), self.descriptors, strict=True):
            positions[:, term.columns] = term.targets(batch[:, descriptor.start : descriptor.stop], rows)
        return ControllerAction(positions[0] if single else positions, self.joint_names)

    def _check_bounds(self, requests: NDArray[np.float64], rows: NDArray[np.int64]) -> None:
        accepted = inside(requests, self._low, self._high)
        if not accepted.all():
            index = int(np.flatnonzero(~accepted.all(axis=1))[0])
            what = complaint(requests[index], self.descriptors, self._low, self._high)
            raise ValueError(f"the request of row {rows[index]} has {what}")


def _check(terms: Mapping[str, ActionTerm], robot: Robot) -> None:
    if not terms:
        raise ValueError("an action manager needs at least one term, got none")
    owner: dict[str, str] = {}
    for name, term in terms.items():
        if not isinstance(term, ActionTerm):
            raise TypeError(f"action term {name!r} must be an ActionTerm, got {term!r}")
        if term.robot is not robot:
            raise ValueError(f"action term {name!r} was built on another robot than the manager")
        for joint in term.joint_names:
            if joint in owner:
                raise ValueError(f"joint {joint!r} belongs to action terms {owner[joint]!r} and {name!r}")
            owner[joint] = name
    missing = [joint for joint in robot.joint_names if joint not in owner]
    if missing:
        raise ValueError(f"joints {missing} of the robot belong to no action term; all of them must be commanded")


def _describe(terms: Mapping[str, ActionTerm]) -> tuple[ActionDescriptor, ...]:
    descriptors: list[ActionDescriptor] = []
    for name, term in terms.items():
        start = descriptors[-1].stop if descriptors else 0
        descriptors.append(
            ActionDescriptor(
                name=name,
                contract=term.contract,
                start=start,
                stop=start + len(term.feature_names),
                feature_names=term.feature_names,
                units=term.units,
                joint_names=term.joint_names,
                low=term.low,
                high=term.high,
                settings=term.settings,
            )
        )
    return tuple(descriptors)

"""The way of an action: from whoever chose it into the storage and into the environment.

What an environment offers decides. On ``environment.unwrapped``:

* ``action_manager``: has ``descriptors`` (`ActionDescriptor`, in order) and ``process(requests)``, which returns a
  `ControllerAction`; usually an `odstream.producers.action_manager.ActionManager`;
* ``expert_action_spec``: an `ExpertActionSpec`, the layout of a recorded controller command;
* ``joint_names``: the controlled joints in order;
* ``rollout_action_semantics``: which of both is recorded; it is assigned before the first reset, and read back.

The ``step`` of such an environment takes a request and a `ControllerAction`. An environment that offers neither a
manager nor a spec is *plain*: its actions are recorded and executed as they come.

Shapes: ``P`` rows of a batch; ``lead`` is ``()`` for a single environment and ``(P,)`` for a batch; ``W`` request
features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from odstream.errors import EnvironmentContractError
from odstream.producers.actions import (
    ActionDescriptor,
    ActionSemantics,
    ControllerAction,
    ExpertActionSpec,
    complaint,
    flat_bounds,
    inside,
)
from odstream.producers.base import FieldSpec
from odstream.producers.spaces import Leaf, action_leaf, read, require_finite

_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionReport:
    """What an environment's recorded actions are."""

    semantics: str = "expert_controller_command"
    descriptors: tuple[ActionDescriptor, ...] = ()
    """Of a recorded request; empty where none is recorded."""
    expert_action_spec: ExpertActionSpec | None = None
    """Of a recorded controller command; None where none is recorded."""
    joint_names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """An action that was taken."""

    stored: NDArray[Any]
    """``[*lead, ...]`` what to record. Rows that were refused hold nothing of meaning."""
    given: Any
    """What the environment's ``step`` gets."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """By row why its attempt fails: the request was not acceptable. The environment gets a request in the middle of
    the bounds for such a row, so that the other rows can be stepped."""


class ActionChannel(ABC):
    """Takes one action per step."""

    leaf: Leaf
    """The recorded field."""
    report: ActionReport

    @abstractmethod
    def take(self, action: Any, recorded: NDArray[np.bool_], whose: str, where: str) -> Taken:
        """Check an action and say what is stored, what is executed, and which rows are refused.

        Args:
            action: For all rows, as it was chosen.
            recorded: ``[P]`` rows that are recorded; of others, bad numbers are no offence.
            whose: Who chose it: ``"the expert"``.
            where: Which frame, for messages.

        Raises:
            EnvironmentContractError: If it is not what the environment declares.
        """


def open_channel(
    environment: Any, space: gym.Space[Any], semantics: ActionSemantics, lead: tuple[int, ...]
) -> ActionChannel:
    """Return the channel of an environment.

    Args:
        environment: Is told the semantics.
        space: Of the action of one environment.
        semantics: What shall be recorded. What is recorded stands in the channel's report; a mismatch is no error here.
        lead: Leading axes of an action.

    Raises:
        EnvironmentContractError: If the action space cannot be recorded, or what the environment offers contradicts it.
    """
    owner = getattr(environment, "unwrapped", environment)
    manager = getattr(owner, "action_manager", None)
    descriptors = _descriptors(manager)
    spec = getattr(owner, "expert_action_spec", None)
    spec = spec if isinstance(spec, ExpertActionSpec) else None
    if not descriptors and spec is None:
        return PlainActions(action_leaf(space), lead)
    selected, joints = _select(owner, semantics), _joint_names(owner)
    if selected == "policy_request" and descriptors:
        report = ActionReport(semantics=selected, descriptors=descriptors, joint_names=joints)
        return PolicyRequests(space, report, lead)
    if spec is None:
        raise EnvironmentContractError(
            f"the environment {environment} offers an action_manager and no expert_action_spec, so that nothing says "
            "how a controller command is recorded: offer one, or record action_semantics='policy_request'"
        )
    if selected == "policy_request":
        selected = "expert_controller_command"  # without a manager there are no requests
    report = ActionReport(semantics=selected, expert_action_spec=spec, joint_names=joints)
    requests = PolicyRequests(space, ActionReport(descriptors=descriptors), lead) if descriptors else None
    return ControllerCommands(manager, requests, report, lead)


def _descriptors(manager: Any) -> tuple[ActionDescriptor, ...]:
    """Those of a manager; none of an object of another make that happens to have its name."""
    found = getattr(manager, "descriptors", None)
    if not isinstance(found, (tuple, list)) or not all(isinstance(item, ActionDescriptor) for item in found):
        return ()
    return tuple(found)


def _joint_names(owner: Any) -> tuple[str, ...] | None:
    names = getattr(owner, "joint_names", None)
    return tuple(str(name) for name in names) if isinstance(names, (tuple, list)) else None


def _select(owner: Any, semantics: str) -> str:
    """Tell the environment what is recorded; return what it then says."""
    if not hasattr(owner, "rollout_action_semantics"):
        return semantics
    try:
        owner.rollout_action_semantics = semantics
    except (AttributeError, ValueError):
        pass  # it records one thing only; the engine compares
    return str(owner.rollout_action_semantics)


class PlainActions(ActionChannel):
    """Stores and executes the action as it comes."""

    def __init__(self, leaf: Leaf, lead: tuple[int, ...]) -> None:
        self.leaf = leaf
        self.report = ActionReport()
        self._lead = lead

    def take(self, action: Any, recorded: NDArray[np.bool_], whose: str, where: str) -> Taken:
        """See `ActionChannel.take`."""
        if isinstance(action, ControllerAction):
            raise EnvironmentContractError(
                f"{whose} gave a ControllerAction; the environment offers no expert_action_spec that says how to "
                "record it"
            )
        command = read(self.leaf, action, self._lead, whose=whose)
        require_finite(self.leaf, command[recorded] if self._lead and not recorded.all() else command, where)
        return Taken(command, command)


class PolicyRequests(ActionChannel):
    """Stores the request and lets the environment's action manager process it, within ``step``.

    Raises:
        EnvironmentContractError: If the action space is no vector, or its bounds are not those of the manager's terms.
    """

    def __init__(self, space: gym.Space[Any], report: ActionReport, lead: tuple[int, ...]) -> None:
        declared = action_leaf(space)
        self.report = report
        self.leaf = Leaf(declared.key, (), FieldSpec(shape=declared.spec.shape, dtype=_FLOAT32))
        self._lead = lead
        self._low, self._high = flat_bounds(report.descriptors)
        self._middle = (self._low / 2 + self._high / 2).astype(_FLOAT32)
        if not isinstance(space, gym.spaces.Box) or len(declared.spec.shape) != 1:
            raise EnvironmentContractError(f"requests must be vectors, the environment's action space is {space}")
        same_width = declared.spec.shape == self._low.shape  # otherwise the columns do not fit, which the engine tells
        if same_width and not (np.array_equal(space.low, self._low) and np.array_equal(space.high, self._high)):
            raise EnvironmentContractError(
                f"the environment's action space has the bounds {space.low} to {space.high}, its action_manager "
                f"accepts {self._low} to {self._high}: a wrapper changes actions, or one of both is wrong"
            )

    def take(self, action: Any, recorded: NDArray[np.bool_], whose: str, where: str) -> Taken:
        """See `ActionChannel.take`."""
        if isinstance(action, ControllerAction):
            raise EnvironmentContractError(
                f"{whose} gave a ControllerAction, which is no policy request: give the request of "
                f"{len(self._low)} numbers, or record action_semantics='expert_controller_command'"
            )
        requests = read(self.leaf, action, self._lead, whose=whose)
        if (given := np.asarray(action).dtype).kind != "f":  # a mask, taken for a request, would be within the bounds
            raise EnvironmentContractError(f"{whose} requested {given} values; a request must be floating numbers")
        accepted = inside(requests, self._low, self._high)
        if accepted.all():
            return Taken(requests, requests)
        rows = requests.reshape(-1, len(self._low))
        bad_rows = ~accepted.reshape(rows.shape).all(axis=1)
        refused = {
            int(row): f"{whose} requested {complaint(rows[row], self.report.descriptors, self._low, self._high)}"
            for row in np.flatnonzero(bad_rows & recorded)
        }
        harmless = np.where(bad_rows.reshape(*self._lead, 1), self._middle, requests)
        return Taken(requests, harmless, refused)


class ControllerCommands(ActionChannel):
    """Stores and executes what the joints are told. A request becomes a command first.

    A command is rounded to the recorded dtype before it is executed.
    """

    def __init__(
        self, manager: Any, requests: PolicyRequests | None, report: ActionReport, lead: tuple[int, ...]
    ) -> None:
        assert report.expert_action_spec is not None
        self.report = report
        self._manager = manager
        self._requests = requests
        self._layout = report.expert_action_spec
        field_spec = FieldSpec(shape=(self._layout.width,), dtype=np.dtype(self._layout.dtype))
        self.leaf = Leaf(("actions",), (), field_spec)
        self._lead = lead

    def take(self, action: Any, recorded: NDArray[np.bool_], whose: str, where: str) -> Taken:
        """See `ActionChannel.take`."""
        refused: Mapping[int, str] = {}
        if not isinstance(action, ControllerAction) and self._requests is not None:
            request = self._requests.take(action, recorded, whose, where)
            refused = request.refused
            action = self._manager.process(request.given)
            whose = "the action_manager"
        if isinstance(action, ControllerAction):
            try:
                action = self._layout.encode(action)
            except ValueError as error:
                raise EnvironmentContractError(f"{whose} gave a command that cannot be recorded: {error}") from error
        stored = read(self.leaf, action, self._lead, whose=whose)
        if not np.isfinite(stored).all():
            require_finite(self.leaf, stored[recorded] if self._lead else stored, where)
            idle = ~np.isfinite(stored).all(axis=-1, keepdims=True)
            stored = np.where(idle, np.zeros_like(stored), stored)  # of rows that nobody records
        return Taken(stored, self._layout.decode(stored), refused)

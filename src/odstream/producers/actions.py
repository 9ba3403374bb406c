"""What a recorded action means: requests and their contracts, controller commands and their layout.

A *request* is what a policy says, one flat vector in the bounds of its action space. A *controller command* is what
the joints are told. An environment's action manager (`odstream.producers.action_manager`) turns one into the other.

Shapes: ``P`` rows of a batch (no axis for a single environment), ``W`` request features, ``J`` controlled joints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from odstream.validation import check_choice, check_int

__all__ = [
    "ACTION_SEMANTICS",
    "ActionDescriptor",
    "ActionSemantics",
    "CommandMode",
    "ControllerAction",
    "ExpertActionSpec",
    "Setting",
]

ActionSemantics = Literal["expert_controller_command", "policy_request"]
"""What is stored as the action: what the expert commands, or what a policy would have to request."""
ACTION_SEMANTICS: tuple[str, ...] = get_args(ActionSemantics)
CommandMode = Literal["position", "position_velocity"]
Setting = str | float | tuple[float, ...]

_CONTRACT = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*@[1-9][0-9]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionDescriptor:
    """One term of a request vector: which columns it owns, what they mean, what is accepted.

    Raises:
        TypeError, ValueError: If a field is not acceptable; the message names the term and the field.
    """

    name: str
    """Of the term within its environment, such as ``"arm"``."""
    contract: str
    """Versioned id of what the numbers mean, ``"eef_pose.relative@1"``. Another meaning is another id or version."""
    start: int
    """First column, at least 0."""
    stop: int
    """Column after the last."""
    feature_names: tuple[str, ...]
    """One per column."""
    units: tuple[str, ...]
    """What a request of 1 is, one per column: ``"rad"``, ``"0.03 m"``, ``"share"``."""
    joint_names: tuple[str, ...]
    """Joints that the term commands, in the order of its commands."""
    low: tuple[float, ...]
    """Lowest accepted request, one per column: a number that float32 holds."""
    high: tuple[float, ...]
    """Highest accepted request, likewise. Above `low`."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """What the term was built with, as far as it changes what a request does."""

    def __post_init__(self) -> None:
        where = f"action term {self.name!r}: "
        check_names("name", (self.name,))
        check_contract(f"{where}contract", self.contract)
        check_int(f"{where}start", self.start, 0)
        check_int(f"{where}stop", self.stop, self.start + 1)
        check_names(f"{where}joint_names", self.joint_names)
        check_names(f"{where}feature_names", self.feature_names)
        if not all(isinstance(unit, str) and unit for unit in self.units):
            raise ValueError(f"{where}units must be non-empty strings, got {self.units!r}")
        for name in ("feature_names", "units", "low", "high"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or len(value) != self.width:
                raise ValueError(f"{where}{name} must be a tuple of {self.width}, one per column, got {value!r}")
        for name in ("low", "high"):
            if not all(float32_holds(bound) for bound in getattr(self, name)):
                raise ValueError(f"{where}{name} must be finite numbers that float32 holds, got {getattr(self, name)}")
        if not all(low < high for low, high in zip(self.low, self.high, strict=True)):
            raise ValueError(f"{where}low must be below high in every column, got {self.low} and {self.high}")
        object.__setattr__(self, "settings", dict(self.settings))

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.stop - self.start

    def to_json(self) -> dict[str, Any]:
        """Return all fields as what `json.dumps` takes."""
        lists = ("feature_names", "units", "joint_names", "low", "high")
        settings = {key: list(value) if isinstance(value, tuple) else value for key, value in self.settings.items()}
        return {
            "name": self.name,
            "contract": self.contract,
            "start": self.start,
            "stop": self.stop,
            **{name: list(getattr(self, name)) for name in lists},
            "settings": settings,
        }


@dataclass(frozen=True, slots=True, eq=False)
class ControllerAction:
    """What the joints are told for one control step. Owns its arrays; they cannot be written.

    Args:
        positions: ``[P, J]``, or ``[J]`` for a single environment: a target per joint, radians or metres.
        joint_names: The J joints in this order.
        velocities: As ``positions``, per second; None where positions alone are commanded.

    Raises:
        ValueError: If a shape does not fit or a number is not finite; the message names the field and the element.
    """

    positions: NDArray[np.float64]
    joint_names: tuple[str, ...]
    velocities: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        names = tuple(self.joint_names)
        _check_joint_names(names)
        object.__setattr__(self, "joint_names", names)
        object.__setattr__(self, "positions", _targets("positions", self.positions, len(names)))
        if self.velocities is not None:
            velocities = _targets("velocities", self.velocities, len(names))
            if velocities.shape != self.positions.shape:
                raise ValueError(f"velocities must have shape {self.positions.shape}, got {velocities.shape}")
            object.__setattr__(self, "velocities", velocities)


@lru_cache(maxsize=64)
def _check_joint_names(names: tuple[str, ...]) -> None:
    """Check names once: commands are made at every step."""
    check_names("joint_names", names)


def _targets(name: str, value: Any, joints: int) -> NDArray[np.float64]:
    given = np.asarray(value)
    if given.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be numbers, got {given.dtype}")
    owned = np.array(given, np.float64)
    if owned.ndim not in (1, 2) or owned.shape[-1] != joints:
        raise ValueError(f"{name} must have shape ({joints},) or (P, {joints}), a column per joint, got {owned.shape}")
    if not np.isfinite(owned).all():
        element = tuple(int(index) for index in np.argwhere(~np.isfinite(owned))[0])
        raise ValueError(f"{name} must be finite, got {owned[element]} at element {element}")
    owned.flags.writeable = False
    return owned


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertActionSpec:
    """How a controller command is laid out as one flat recorded action: positions, then velocities if they are.

    Raises:
        TypeError, ValueError: If a field is not acceptable.
    """

    joint_names: tuple[str, ...]
    """The J controlled joints, in the environment's order."""
    mode: CommandMode = "position"
    """What is commanded per joint."""
    dtype: Literal["float32", "float64"] = "float32"
    """Of the recorded action. A command is rounded to it before it is executed, so what is stored is what was done."""

    def __post_init__(self) -> None:
        check_names("joint_names", self.joint_names)
        check_choice("mode", self.mode, get_args(CommandMode))
        check_choice("dtype", self.dtype, ("float32", "float64"))

    @property
    def width(self) -> int:
        """Width of the recorded action."""
        return len(self.joint_names) * (1 if self.mode == "position" else 2)

    @property
    def position_slice(self) -> slice:
        """Columns of the positions."""
        return slice(0, len(self.joint_names))

    @property
    def velocity_slice(self) -> slice | None:
        """Columns of the velocities, or None."""
        return None if self.mode == "position" else slice(len(self.joint_names), self.width)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One per column."""
        kinds = ("position",) if self.mode == "position" else ("position", "velocity")
        return tuple(f"{joint}.{kind}" for kind in kinds for joint in self.joint_names)

    def encode(self, action: ControllerAction) -> NDArray[np.float64]:
        """Return a command as ``[P, width]`` (``[width]`` for a single environment); an owned copy.

        Raises:
            ValueError: If its joints, or whether it has velocities, are not what this layout says.
        """
        if action.joint_names != self.joint_names:
            raise ValueError(
                f"the command is for joints {list(action.joint_names)}, recorded are {list(self.joint_names)}"
            )
        if (action.velocities is None) != (self.mode == "position"):
            has = "no velocities" if action.velocities is None else "velocities"
            raise ValueError(f"the command has {has}, recorded is mode {self.mode!r}")
        parts = [part for part in (action.positions, action.velocities) if part is not None]
        return np.concatenate(parts, axis=-1)

    def decode(self, values: NDArray[Any]) -> ControllerAction:
        """Return the command that a recorded action ``[P, width]`` or ``[width]`` is.

        Raises:
            ValueError: If the width does not fit or a number is not finite.
        """
        if values.shape[-1:] != (self.width,):
            raise ValueError(f"a recorded action must have {self.width} columns, got shape {values.shape}")
        velocities = None if self.velocity_slice is None else values[..., self.velocity_slice]
        return ControllerAction(values[..., self.position_slice], self.joint_names, velocities)

    def to_json(self) -> dict[str, Any]:
        """Return all fields and feature names as what `json.dumps` takes."""
        return {
            "joint_names": list(self.joint_names),
            "mode": self.mode,
            "dtype": self.dtype,
            "feature_names": list(self.feature_names),
        }


def check_contract(name: str, value: object) -> None:
    """Refuse what is no contract id.

    Raises:
        ValueError: Naming the form.
    """
    if not isinstance(value, str) or not _CONTRACT.fullmatch(value):
        raise ValueError(f"{name} must be 'word.word@version', such as 'eef_pose.relative@1', got {value!r}")


def check_names(name: str, value: object) -> None:
    """Refuse what is no tuple of distinct, non-empty strings.

    Raises:
        TypeError: If it is no tuple of strings.
        ValueError: If it is empty, or a string is, or one is there twice.
    """
    if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"{name} must be a tuple of strings, got {value!r}")
    if not value or not all(value) or len(set(value)) != len(value):
        raise ValueError(f"{name} must be distinct, non-empty strings, at least one, got {value!r}")


def float32_holds(value: object) -> bool:
    """Whether a value is a finite number that float32 represents exactly."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= float(np.finfo(np.float32).max) and float(np.float32(value)) == value


def flat_bounds(descriptors: Sequence[ActionDescriptor]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Lowest and highest accepted request, ``[W]`` each."""
    low = np.array([bound for item in descriptors for bound in item.low], np.float32)
    high = np.array([bound for item in descriptors for bound in item.high], np.float32)
    return low, high


def inside(requests: NDArray[Any], low: NDArray[np.float32], high: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which elements of ``requests [..., W]`` are accepted: not beyond a bound, and a number."""
    accepted: NDArray[np.bool_] = (requests >= low) & (requests <= high)
    return accepted


def complaint(request: NDArray[Any], descriptors: Sequence[ActionDescriptor], low: Any, high: Any) -> str:
    """Say what is wrong with the first bad element of a request ``[W]``: name, element, value, bounds."""
    element = int(np.flatnonzero(~inside(request, low, high))[0])
    names = [f"{item.name}.{feature}" for item in descriptors for feature in item.feature_names]
    return (
        f"{names[element]} = {request[element]!s} (element {element}), "
        f"which must be finite and within [{low[element]!s}, {high[element]!s}]"
    )

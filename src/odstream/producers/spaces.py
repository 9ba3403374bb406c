"""From Gymnasium spaces to recorded fields, and from what an environment returns to arrays of exactly that kind.

Shapes: ``P`` rows of a batch; ``lead`` is ``()`` for one observation and ``(P,)`` for a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from odstream.errors import EnvironmentContractError
from odstream.producers.base import FieldKey, FieldSpec


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array inside a nested observation, or an action, or a reward."""

    key: FieldKey
    """Where it is recorded."""
    path: tuple[str | int, ...]
    """How to reach it inside what the environment returns."""
    spec: FieldSpec

    @property
    def name(self) -> str:
        """Readable name: ``obs.arm.q``."""
        return ".".join(self.key)


REWARD = Leaf(("rewards",), (), FieldSpec(shape=(), dtype=np.dtype(np.float32)))


def observation_leaves(space: gym.Space[Any]) -> tuple[Leaf, ...]:
    """Every array of an observation space, in the space's own order, under ``("obs", ...)``.

    Raises:
        EnvironmentContractError: If a part of the space has no elements or is no array.
    """
    return _leaves(space, ("obs",), ())


def _leaves(space: gym.Space[Any], key: FieldKey, path: tuple[str | int, ...]) -> tuple[Leaf, ...]:
    if isinstance(space, gym.spaces.Dict):
        parts: list[tuple[str | int, gym.Space[Any]]] = list(space.spaces.items())
    elif isinstance(space, gym.spaces.Tuple):
        parts = list(enumerate(space.spaces))
    else:
        return (Leaf(key, path, field_spec(space, key)),)
    if not parts:
        raise EnvironmentContractError(f"{'.'.join(key)} is an empty {type(space).__name__} space; nothing to record")
    return tuple(leaf for part, inner in parts for leaf in _leaves(inner, (*key, str(part)), (*path, part)))


def action_leaf(space: gym.Space[Any]) -> Leaf:
    """The field of an action space.

    Raises:
        EnvironmentContractError: If the space is neither Box nor one of the discrete array spaces.
    """
    return Leaf(("actions",), (), field_spec(space, ("actions",)))


def field_spec(space: gym.Space[Any], key: FieldKey) -> FieldSpec:
    """Shape and native dtype of a space whose values are single arrays."""
    spaces = gym.spaces
    name = ".".join(key)
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise EnvironmentContractError(
            f"{name} is a {type(space).__name__} space; "
            "accepted are Box, Discrete, MultiDiscrete and MultiBinary, in observations also inside Dict and Tuple"
        )
    shape = tuple(int(extent) for extent in space.shape or ())
    if 0 in shape:
        raise EnvironmentContractError(f"{name} has shape {shape}: a field must have at least one element")
    return FieldSpec(shape=shape, dtype=np.dtype(space.dtype).newbyteorder("="))


def action_width(leaf: Leaf) -> int:
    """Width of the flat action vector; 1 for a discrete action."""
    return math.prod(leaf.spec.shape)


def check_keys(space: gym.Space[Any], observation: Any, name: str = "obs") -> None:
    """Refuse an observation with other keys than its space declares.

    Raises:
        EnvironmentContractError: Naming the part and the keys that are missing or not declared.
    """
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(observation, Mapping):
            raise EnvironmentContractError(
                f"{name} must be a mapping with keys {list(space.spaces)}, got {observation!r}"
            )
        if set(observation) != set(space.spaces):
            raise EnvironmentContractError(
                f"{name} has keys {list(observation)}; its space declares {list(space.spaces)}"
            )
        parts: list[tuple[Any, gym.Space[Any]]] = list(space.spaces.items())
    elif isinstance(space, gym.spaces.Tuple):
        if not isinstance(observation, (tuple, list)) or len(observation) != len(space.spaces):
            raise EnvironmentContractError(f"{name} must be a tuple of {len(space.spaces)}, got {observation!r}")
        parts = list(enumerate(space.spaces))
    else:
        return
    for part, inner in parts:
        check_keys(inner, observation[part], f"{name}.{part}")


def read(leaf: Leaf, value: Any, lead: tuple[int, ...] = (), *, whose: str = "the environment") -> NDArray[Any]:
    """Return the leaf of ``value`` as an array ``[*lead, *shape]`` of the declared dtype; a view where it fits.

    Other floating widths are converted; integers are converted if no value changes. Everything else is refused.

    Raises:
        EnvironmentContractError: Naming the field, what was declared and what came.
    """
    try:
        for part in leaf.path:
            value = value[part]
    except (KeyError, IndexError, TypeError) as error:
        raise EnvironmentContractError(f"{whose} returned no {leaf.name}; its space declares it") from error
    if type(value) is np.ndarray and value.dtype == leaf.spec.dtype and value.shape == lead + leaf.spec.shape:
        return value
    return _convert(leaf, value, lead, whose)


def _convert(leaf: Leaf, value: Any, lead: tuple[int, ...], whose: str) -> NDArray[Any]:
    spec = leaf.spec
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise EnvironmentContractError(f"{whose} returned a ragged {leaf.name}: {value!r}") from error
    if array.shape != lead + spec.shape:
        raise EnvironmentContractError(
            f"{whose} returned {leaf.name} of shape {array.shape}; declared is {lead + spec.shape}"
        )
    if array.dtype == spec.dtype:
        return array
    integers = array.dtype.kind in "biu" and spec.dtype.kind in "biu"
    if not integers and not np.can_cast(array.dtype, spec.dtype, "same_kind"):
        raise EnvironmentContractError(f"{whose} returned {leaf.name} as {array.dtype}; declared is {spec.dtype}")
    with np.errstate(over="ignore"):  # an overflow becomes inf, which is refused as such
        converted = array.astype(spec.dtype)
    if integers and not np.array_equal(converted, array):
        raise EnvironmentContractError(f"{whose} returned {leaf.name} = {array!r}, which does not fit {spec.dtype}")
    return converted


def require_finite(leaf: Leaf, values: NDArray[Any], where: str) -> None:
    """Refuse NaN and infinity.

    Raises:
        EnvironmentContractError: Naming the field, the element and the value.
    """
    if values.dtype.kind not in "fc" or np.isfinite(values).all():
        return
    element = tuple(int(index) for index in np.argwhere(~np.isfinite(values))[0])
    raise EnvironmentContractError(f"{leaf.name} is {values[element]} at element {element} {where}; it must be finite")


def merge(space: gym.Space[Any], new: Any, old: Any, mask: NDArray[np.bool_]) -> Any:
    """Take the rows of ``mask`` from one batch of observations and the others from another; copies."""
    if isinstance(space, gym.spaces.Dict):
        return {part: merge(inner, new[part], old[part], mask) for part, inner in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(merge(inner, new[i], old[i], mask) for i, inner in enumerate(space.spaces))
    fresh, kept = np.asarray(new), np.asarray(old)
    return np.where(mask.reshape(-1, *(1,) * (fresh.ndim - 1)), fresh, kept)

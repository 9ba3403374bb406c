"""What the numbers of this task mean, as sources declare it."""

from __future__ import annotations

from typing import Any

from odstream.envs.franka.actions import ACTION_CONTRACTS
from odstream.envs.franka.environment import CONTROL_PERIOD_S

_JOINTS = [f"joint{number}" for number in range(1, 8)] + ["finger_left", "finger_right"]
_XYZ = ("x", "y", "z")


def _axes(frame: str) -> list[str]:
    return [f"{frame}_axis_{column}_{entry}" for column in ("x", "y") for entry in _XYZ]


OBSERVATION_NAMES = [
    *(f"{name}_position" for name in _JOINTS),
    *(f"{name}_velocity" for name in _JOINTS),
    *(f"tcp_{entry}" for entry in _XYZ),
    *_axes("tcp"),
    *(f"cube_{entry}" for entry in _XYZ),
    *_axes("cube"),
    *(f"goal_{entry}" for entry in _XYZ),
    *(f"tcp_to_cube_{entry}" for entry in _XYZ),
    *(f"cube_to_goal_{entry}" for entry in _XYZ),
    *(f"cube_velocity_{entry}" for entry in _XYZ),
    *(f"cube_angular_velocity_{entry}" for entry in _XYZ),
]
"""The 51 features in their order; see `odstream.envs.franka.observation`."""

SCHEMA: dict[str, Any] = {
    "version": 1,
    "observation": {
        "names": OBSERVATION_NAMES,
        "dtype": "float32",
        "units": "metres, radians and seconds; axes are unit vectors",
        "frame": "world; the cube's angular velocity in the cube's frame",
        "timing": "pre_action",
    },
    "action": {
        "names": [*(f"move_{entry}" for entry in _XYZ), *(f"turn_{entry}" for entry in _XYZ), "gripper"],
        "dtype": "float32",
        "semantics": "policy_request",
        "contracts": list(ACTION_CONTRACTS),
        "units": "shares of the largest step, -1 to 1; gripper: -1 opens, 1 closes",
        "frame": "world",
        "step_dt": CONTROL_PERIOD_S,
    },
}
"""For `odstream.datasets.OnlineDataSource`."""

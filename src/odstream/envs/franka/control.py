"""From a hand motion to joint targets: damped least squares over a batch of arms, in numpy.

Shapes: ``P`` arms, 7 joints, 6 = translation then rotation, in the world frame.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from odstream.envs.franka.scene import FINGER_OPENING_M, HOME_POSTURE

ACTION_DIM = 7
"""Six relative hand requests (x, y, z, rotation about x, y, z), then the gripper."""
GRIPPER = 6
"""Index of the gripper's request; the expert asks for -1 or 1 only."""
TRANSLATION_SCALE_M = 0.03
"""Hand travel that a request of 1 asks for in one control step."""
ROTATION_SCALE_RAD = 0.2
"""Hand rotation that a request of 1 asks for in one control step."""

_DAMPING = 1e-4
_POSTURE_GAIN = 0.05
_HOME = np.array(HOME_POSTURE)
_SCALE = np.array([TRANSLATION_SCALE_M] * 3 + [ROTATION_SCALE_RAD] * 3)


def joint_targets(
    jacobian: NDArray[np.float64],
    angles: NDArray[np.float64],
    requests: NDArray[np.float64],
    limits: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return joint angles that move each hand as requested, as far as joint limits allow.

    Motion that the hand does not notice (the arm has seven joints, the hand six degrees of freedom) pulls the
    arm gently to its home posture, so that it never drifts into a corner.

    Args:
        jacobian: ``[P, 6, 7]`` of the hand.
        angles: ``[P, 7]`` measured now, radians.
        requests: ``[P, 6]`` in [-1, 1].
        limits: ``[7, 2]`` lower and upper angle.

    Returns:
        ``[P, 7]`` radians. A row depends on nothing but its own inputs, to the bit.
    """
    transposed = jacobian.transpose(0, 2, 1)
    homewards = _POSTURE_GAIN * (_HOME - angles)
    wanted = (requests * _SCALE)[:, :, None] - jacobian @ homewards[:, :, None]
    damped = jacobian @ transposed + _DAMPING * np.eye(6)
    motion = (transposed @ np.linalg.solve(damped, wanted))[:, :, 0]
    targets: NDArray[np.float64] = np.clip(angles + motion + homewards, limits[:, 0], limits[:, 1])
    return targets


def finger_targets(requests: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return finger openings ``[P]`` in metres for gripper requests ``[P]``: -1 opens, +1 closes."""
    targets: NDArray[np.float64] = (1.0 - requests) * (FINGER_OPENING_M / 2)
    return targets

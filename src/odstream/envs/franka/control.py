"""What a request asks for: constants that expert, policy and action manager share."""

from __future__ import annotations

ACTION_DIM = 7
"""Six relative hand requests (x, y, z, rotation about x, y, z), then the gripper."""
GRIPPER = 6
"""Index of the gripper's request: -1 opens, 1 closes. The expert asks for -1 or 1 only."""
TRANSLATION_SCALE_M = 0.03
"""Hand travel that a request of 1 asks for in one control step."""
ROTATION_SCALE_RAD = 0.2
"""Hand rotation that a request of 1 asks for in one control step."""

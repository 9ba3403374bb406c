"""Franka pick-and-place in MuJoCo: scene, control, batched environment, expert, pictures, a small learner.

Importing this package imports nothing heavy. A producer needs ``environment`` and ``expert``; ``policy``,
``evaluate``, ``training`` and ``demo`` need torch, which therefore is not loaded in a producer process.

Raises:
    MissingExtraError: On import, if MuJoCo is not installed.
"""

from importlib.util import find_spec

from odstream.errors import MissingExtraError

if find_spec("mujoco") is None:
    raise MissingExtraError("the Franka task needs MuJoCo: pip install 'odstream[franka]'")

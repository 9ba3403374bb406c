"""Franka pick-and-place in MuJoCo: scene, control, batched environment, expert, pictures, a small learner.

Needs the extra ``franka``. Importing this package imports nothing; ``environment`` needs mujoco, ``policy``,
``evaluate`` and ``training`` need torch.
"""

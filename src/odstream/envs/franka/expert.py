"""A scripted expert in eight segments; every row of the batch is in its own segment at its own time.

Shapes: ``P`` rows. The expert sees observations only, and commands what a policy could command.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from odstream.envs.franka.control import ACTION_DIM, ROTATION_SCALE_RAD, TRANSLATION_SCALE_M
from odstream.envs.franka.observation import (
    CUBE_POSITION,
    CUBE_ROTATION,
    GOAL_POSITION,
    TCP_POSITION,
    TCP_ROTATION,
    cross,
    rotation_columns,
)


class Waypoint(NamedTuple):
    """One segment: where the hand goes, how, and when the next segment begins."""

    name: str
    instruction: str
    anchor: Literal["cube", "goal"]
    """What the waypoint lies above: the cube where it lay at the start, or the goal."""
    height_m: float
    tolerance_m: float
    """Arrived when this near; 0: the segment lasts ``max_steps`` whatever happens."""
    max_steps: int
    closed: bool
    """Whether the gripper is told to close."""


WAYPOINTS = (
    Waypoint("above", "move above the red cube", "cube", 0.10, 0.015, 60, closed=False),
    Waypoint("descend", "lower the open gripper around the cube", "cube", 0.008, 0.006, 40, closed=False),
    Waypoint("grasp", "close the gripper", "cube", 0.008, 0.0, 10, closed=True),
    Waypoint("lift", "lift the cube", "cube", 0.13, 0.02, 40, closed=True),
    Waypoint("move", "carry the cube above the goal", "goal", 0.13, 0.012, 60, closed=True),
    Waypoint("lower", "lower the cube onto the goal", "goal", 0.010, 0.006, 40, closed=True),
    Waypoint("open", "let go of the cube", "goal", 0.008, 0.0, 8, closed=False),
    Waypoint("withdraw", "withdraw the hand", "goal", 0.15, 0.0, 1_000_000, closed=False),
)
SEGMENT_NAMES = tuple(waypoint.name for waypoint in WAYPOINTS)

_HEIGHT = np.array([waypoint.height_m for waypoint in WAYPOINTS])
_AT_GOAL = np.array([waypoint.anchor == "goal" for waypoint in WAYPOINTS])
_TOLERANCE = np.array([waypoint.tolerance_m for waypoint in WAYPOINTS])
_MAX_STEPS = np.array([waypoint.max_steps for waypoint in WAYPOINTS])
_GRIPPER = np.array([1.0 if waypoint.closed else -1.0 for waypoint in WAYPOINTS])
_LAST = len(WAYPOINTS) - 1
_QUARTER_TURN = math.pi / 2
_POINTING_DOWN = np.diag([1.0, -1.0, -1.0])


class FrankaExpert:
    """Solves practically every scene of `FrankaPickPlace` in about 100 steps.

    Call `reset` for the rows that begin an episode, then the expert itself once per control step.
    """

    segment_names = SEGMENT_NAMES
    segment_instructions = tuple(waypoint.instruction for waypoint in WAYPOINTS)

    def __init__(self) -> None:
        self.segments: NDArray[np.int64] = np.zeros(0, np.int64)
        """``[P]`` index into `WAYPOINTS`: the segment that the latest action of each row belongs to."""
        self._steps = np.zeros(0, np.int64)
        self._cube = np.zeros((0, 3))
        self._grasp = np.zeros((0, 3, 3))

    def reset(self, observations: NDArray[np.float32], rows: NDArray[np.bool_] | None = None) -> None:
        """Begin a new episode.

        Args:
            observations: ``[P, 51]`` of all rows. P may change only when every row begins.
            rows: ``[P]`` which rows begin; None: all.
        """
        if rows is None or len(self.segments) != len(observations):
            self._resize(len(observations))
            rows = np.ones(len(observations), np.bool_)
        self.segments[rows] = 0
        self._steps[rows] = 0
        self._cube[rows] = observations[rows, CUBE_POSITION]
        for row in np.flatnonzero(rows):
            self._grasp[row] = _grasp_orientation(observations[row, CUBE_ROTATION])

    def _resize(self, num_envs: int) -> None:
        self.segments = np.zeros(num_envs, np.int64)
        self._steps = np.zeros(num_envs, np.int64)
        self._cube = np.zeros((num_envs, 3))
        self._grasp = np.zeros((num_envs, 3, 3))

    def __call__(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return actions ``[P, 7]`` in [-1, 1] for observations ``[P, 51]`` and count one step in every row."""
        tcp = observations[:, TCP_POSITION].astype(np.float64)
        goal = observations[:, GOAL_POSITION].astype(np.float64)
        self._next_segments(self._targets(goal) - tcp)
        actions = np.empty((len(observations), ACTION_DIM))
        actions[:, :3] = _straight(self._targets(goal) - tcp)
        actions[:, 3:6] = self._turn(rotation_columns(observations[:, TCP_ROTATION]))
        actions[:, 6] = _GRIPPER[self.segments]
        self._steps += 1
        return np.clip(actions, -1.0, 1.0).astype(np.float32)

    def _targets(self, goal: NDArray[np.float64]) -> NDArray[np.float64]:
        anchors = np.where(_AT_GOAL[self.segments, None], goal, self._cube)
        anchors[:, 2] += _HEIGHT[self.segments]
        return anchors

    def _next_segments(self, errors: NDArray[np.float64]) -> None:
        arrived = np.sqrt((errors * errors).sum(axis=1)) < _TOLERANCE[self.segments]
        done = (self.segments < _LAST) & (arrived | (self._steps >= _MAX_STEPS[self.segments]))
        self.segments += done
        self._steps[done] = 0

    def _turn(self, hand: NDArray[np.float64]) -> NDArray[np.float64]:
        """Requests that turn each hand (``[P, 3, 3]``, its axes) to its wanted orientation."""
        wanted = np.where((self.segments < _LAST)[:, None, None], self._grasp, _POINTING_DOWN)
        requests: NDArray[np.float64] = cross(hand, wanted).sum(axis=1) * (0.5 / ROTATION_SCALE_RAD)
        return requests


def _grasp_orientation(cube: NDArray[np.float32]) -> NDArray[np.float64]:
    """Axes of a hand that points down with its fingers along the cube's sides, turned as little as possible."""
    yaw = math.atan2(cube[1], cube[0])
    yaw = (yaw + _QUARTER_TURN / 2) % _QUARTER_TURN - _QUARTER_TURN / 2
    along, across = math.cos(yaw), math.sin(yaw)
    return np.array([[along, across, 0.0], [across, -along, 0.0], [0.0, 0.0, -1.0]])


def _straight(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Requests along ``errors``, at most of length 1, so that the hand moves in a straight line."""
    requests = errors / TRANSLATION_SCALE_M
    length: NDArray[np.float64] = np.sqrt((requests * requests).sum(axis=1, keepdims=True))
    return requests / np.maximum(length, 1.0)

"""Offscreen pictures of a scene. Optional: without a renderer everything but pictures works.

MuJoCo picks its OpenGL backend when it is imported, from ``MUJOCO_GL``. Here it is picked when the first
picture is wanted: ``MUJOCO_GL`` if set, else the first of EGL and OSMesa that is there (on Linux).
"""

from __future__ import annotations

import importlib
import os
import sys
from ctypes.util import find_library
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from odstream.envs.franka.scene import CAMERA, scene_xml
from odstream.envs.franka.simulation import Pose
from odstream.errors import MissingExtraError

_LINUX_BACKENDS = {"egl": "EGL", "osmesa": "OSMesa"}
"""Name of a backend and of the shared library it needs, best first."""
_ADVICE = (
    "install a software renderer (Debian and Ubuntu: apt-get install libegl1 libegl-mesa0, or libosmesa6), "
    "or set MUJOCO_GL to a backend that works here"
)


class Camera:
    """Draws poses. Holds an OpenGL context of its own: use it in one thread, and close it.

    Args:
        width_px: Up to ``max_px``.
        height_px: Up to ``max_px``.
        shadows: Slower (about 0.1 s a picture in software) and nicer.

    Raises:
        MissingExtraError: If no renderer is available; the message says what to install.
    """

    max_px = 1024

    def __init__(self, width_px: int = 256, height_px: int = 256, *, shadows: bool = False) -> None:
        for name, pixels in (("width_px", width_px), ("height_px", height_px)):
            if not 1 <= pixels <= self.max_px:
                raise ValueError(f"{name} must be 1 to {self.max_px}, got {pixels}")
        self._model = mujoco.MjModel.from_xml_string(scene_xml(shadows=shadows, picture_px=self.max_px))
        self._data = mujoco.MjData(self._model)
        self._goal_site = self._model.site("goal").id
        self._view = mujoco.MjvCamera()
        self._view.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._view.fixedcamid = self._model.camera(CAMERA).id
        self._scene = mujoco.MjvScene(self._model, maxgeom=200)
        self._options = mujoco.MjvOption()
        self._viewport = mujoco.MjrRect(0, 0, width_px, height_px)
        self._context, self._resources = _open_renderer(self._model, width_px, height_px)

    def picture(self, pose: Pose) -> NDArray[np.uint8]:
        """Return ``[height, width, 3]`` RGB, owned by the caller."""
        self._data.qpos[:] = pose.positions
        self._model.site_pos[self._goal_site, :2] = pose.goal[:2]
        mujoco.mj_forward(self._model, self._data)
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, self._data, self._options, None, self._view, everything, self._scene)
        self._context.make_current()
        mujoco.mjr_render(self._viewport, self._scene, self._resources)
        upside_down = np.empty((self._viewport.height, self._viewport.width, 3), np.uint8)
        mujoco.mjr_readPixels(upside_down, None, self._viewport, self._resources)
        return np.ascontiguousarray(upside_down[::-1])

    def close(self) -> None:
        """Free the OpenGL context. Idempotent."""
        if self._context is not None:
            self._context.make_current()
            self._resources.free()
            self._context.free()
            self._context = None

    def __enter__(self) -> Camera:
        """Return the camera."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the camera."""
        self.close()


def _open_renderer(model: Any, width_px: int, height_px: int) -> tuple[Any, Any]:
    """An OpenGL context, and MuJoCo's drawing resources within it."""
    wanted = os.environ.get("MUJOCO_GL", "").lower().strip()
    candidates = [wanted] if wanted else _available_backends()
    problem: Exception | None = None
    for backend in candidates:
        try:
            context = _context_class(backend)(width_px, height_px)
            context.make_current()
            resources = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
            mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, resources)
            return context, resources
        except Exception as error:  # OpenGL bindings raise anything from AttributeError to types of their own
            problem = error
    tried = f"{', '.join(candidates)}: {problem}" if candidates else "none, neither libEGL nor libOSMesa was found"
    raise MissingExtraError(f"no picture can be drawn: {_ADVICE} (backends tried: {tried})") from problem


def _available_backends() -> list[str]:
    if not sys.platform.startswith("linux"):
        return [""]
    return [backend for backend, library in _LINUX_BACKENDS.items() if find_library(library)]


def _context_class(backend: str) -> Any:
    module = f"mujoco.{backend}" if backend in _LINUX_BACKENDS else "mujoco"
    return importlib.import_module(module).GLContext

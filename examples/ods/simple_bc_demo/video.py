"""Films and the viewer. Everything else works without them.

MP4 needs the extra ``video`` (imageio-ffmpeg); without it a film is a GIF, which needs Pillow. Drawing needs a
renderer: see `odstream.envs.franka.camera`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odstream.envs.franka.camera import Camera
from odstream.envs.franka.environment import CONTROL_PERIOD_S
from odstream.envs.franka.simulation import Pose
from odstream.errors import MissingExtraError

SIZE_PX = 320
_GIF_STRIDE = 2
"""A GIF shows every second picture: it is slow to write, and large."""
_LAST_PICTURE_S = 1.0
"""How long a film stays on its last picture."""

Picture = NDArray[np.uint8]
_OPENS_A_DISPLAY = "import glfw, sys; sys.exit(0 if glfw.init() else 1)"


def require_film() -> None:
    """Return if films can be made here.

    Raises:
        MissingExtraError: If not; the message says what is missing.
    """
    if find_spec("imageio_ffmpeg") is None and find_spec("PIL") is None:
        raise MissingExtraError("films need imageio-ffmpeg (MP4) or Pillow (GIF): pip install 'odstream[video]'")
    Camera(16, 16).close()


def require_viewer() -> None:
    """Return if MuJoCo's viewer can be opened here.

    Raises:
        MissingExtraError: If there is no display, or it cannot be opened.
    """
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise MissingExtraError(
            "the viewer needs a display: neither DISPLAY nor WAYLAND_DISPLAY is set; use --no-viewer"
        )
    probe = subprocess.run([sys.executable, "-c", _OPENS_A_DISPLAY], capture_output=True, check=False)
    if probe.returncode:
        shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        raise MissingExtraError(f"the viewer needs a display: {shown} cannot be opened; use --no-viewer")


def write_film(poses: Sequence[Pose], path: Path) -> Path:
    """Draw every pose and write a film that runs as fast as the scene did.

    Args:
        poses: One per control step.
        path: Without suffix; ``.mp4`` or ``.gif`` is added.

    Returns:
        The file.

    Raises:
        MissingExtraError: As `require_film`.
    """
    with Camera(SIZE_PX, SIZE_PX) as camera:
        pictures = [camera.picture(pose) for pose in poses]
    pictures += [pictures[-1]] * round(_LAST_PICTURE_S / CONTROL_PERIOD_S)
    write: Callable[[Sequence[Picture], Path], Path] = _mp4 if find_spec("imageio_ffmpeg") else _gif
    return write(pictures, path)


def show(poses: Sequence[Pose]) -> None:
    """Play poses in MuJoCo's viewer, as fast as the scene was, until they end or the window is closed.

    Raises:
        MissingExtraError: As `require_viewer`.
    """
    require_viewer()
    import mujoco
    import mujoco.viewer

    from odstream.envs.franka.scene import scene_xml

    model = mujoco.MjModel.from_xml_string(scene_xml(shadows=True))
    data, goal = mujoco.MjData(model), model.site("goal").id
    with mujoco.viewer.launch_passive(model, data) as viewer:
        for pose in poses:
            if not viewer.is_running():
                return
            data.qpos[:] = pose.positions
            model.site_pos[goal, :2] = pose.goal[:2]
            mujoco.mj_forward(model, data)
            viewer.sync()
            time.sleep(CONTROL_PERIOD_S)


def _mp4(pictures: Sequence[Picture], path: Path) -> Path:
    imageio_ffmpeg: Any = import_module("imageio_ffmpeg")
    file = path.with_name(path.name + ".mp4")
    height, width, _ = pictures[0].shape
    writer: Any = imageio_ffmpeg.write_frames(
        str(file), (width, height), fps=1 / CONTROL_PERIOD_S, macro_block_size=16, ffmpeg_log_level="error"
    )
    writer.send(None)
    for picture in pictures:
        writer.send(picture)
    writer.close()
    return file


def _gif(pictures: Sequence[Picture], path: Path) -> Path:
    from PIL import Image

    file = path.with_name(path.name + ".gif")
    first, *others = [Image.fromarray(picture).quantize(64) for picture in pictures[::_GIF_STRIDE]]
    duration_ms = round(CONTROL_PERIOD_S * 1000) * _GIF_STRIDE
    first.save(file, save_all=True, append_images=others, duration=duration_ms, loop=0)
    return file

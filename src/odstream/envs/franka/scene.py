"""The scene as MuJoCo XML: a Franka arm made of capsules, a table, one cube, one goal. No mesh files.

The kinematics are the public ones of the Panda arm; link masses are rough public figures, so the arm is a
plausible robot and not a calibrated one. Lengths in metres, angles in radians, masses in kilograms.
"""

from __future__ import annotations

from typing import NamedTuple

ARM_JOINTS = 7
FINGER_OPENING_M = 0.04
"""Travel of one finger: 0 is closed, this is open."""
HOME_POSTURE = (0.0, 0.15, 0.0, -2.25, 0.0, 2.40, 0.785)
"""Joint angles at reset; the hand points down at the middle of the work space."""
CUBE_HALF_SIZE_M = 0.025
PHYSICS_TIMESTEP_S = 0.005
CAMERA = "front"


class _Link(NamedTuple):
    """One arm link: where its joint sits in the parent, what it weighs, how strong its servo is, its looks."""

    position: str
    orientation: str
    lower: float
    upper: float
    mass: float
    centre_of_mass: str
    stiffness: int
    """Servo gain kp in Nm/rad; the damping gain is a tenth of it. Soft on purpose: with stiff servos that
    saturate the torque limit, the arm falls into a limit cycle on newer versions of MuJoCo."""
    torque_limit: int
    radius: float
    capsules: tuple[str, ...]
    """Start and end of each; they are only seen, they collide with nothing."""


_FORWARD, _BACKWARD, _STRAIGHT = "1 1 0 0", "1 -1 0 0", "1 0 0 0"
_LINKS = (
    _Link("0 0 0.333", _STRAIGHT, -2.8973, 2.8973, 4.97, "0.0039 0.0021 -0.0476", 450, 87, 0.06,
          ("0 0 -0.19 0 0 -0.02",)),
    _Link("0 0 0", _BACKWARD, -1.7628, 1.7628, 0.647, "-0.0031 -0.0287 0.0035", 450, 87, 0.06,
          ("0 0 -0.04 0 0 0.04",)),
    _Link("0 -0.316 0", _FORWARD, -2.8973, 2.8973, 3.23, "0.0275 0.0392 -0.0665", 350, 87, 0.056,
          ("0 0 -0.27 0 0 -0.05", "0 0 -0.05 0.0825 0 0")),
    _Link("0.0825 0 0", _FORWARD, -3.0718, -0.0698, 3.59, "-0.0532 0.1044 0.0275", 350, 87, 0.055,
          ("0 0 -0.04 0 0 0.04", "0 0 0 -0.0825 0.09 0")),
    _Link("-0.0825 0.384 0", _BACKWARD, -2.8973, 2.8973, 1.226, "-0.012 0.0411 -0.0384", 200, 12, 0.05,
          ("0 0 -0.28 0 0 -0.02",)),
    _Link("0 0 0", _FORWARD, -0.0175, 3.7525, 1.667, "0.0601 -0.0141 -0.0105", 200, 12, 0.048,
          ("0 0 -0.03 0 0 0.03", "0 0 0 0.088 0 0")),
    _Link("0.088 0 0", _FORWARD, -2.8973, 2.8973, 0.735, "0.0105 -0.0043 0.0616", 200, 12, 0.042,
          ("0 0 0 0 0 0.08",)),
)  # fmt: skip

_DEFAULTS = """
  <default>
    <default class="visual"><geom contype="0" conaffinity="0" group="2" density="0"/></default>
    <default class="hand"><geom contype="1" conaffinity="2" density="0"/></default>
    <default class="pad">
      <geom contype="1" conaffinity="2" density="0" condim="4" friction="1.5 0.02 0.0001" solref="0.01 1"
            rgba="0.13 0.14 0.16 1"/>
    </default>
  </default>"""

_ASSETS = """
  <asset>
    <texture type="skybox" builtin="gradient" rgb1="0.96 0.97 0.99" rgb2="0.80 0.84 0.90" width="64" height="64"/>
    <texture name="table" type="2d" builtin="checker" rgb1="0.90 0.91 0.92" rgb2="0.85 0.86 0.88" width="128"
             height="128"/>
    <material name="table" texture="table" texrepeat="15 15"/>
    <material name="shell" rgba="0.95 0.95 0.96 1" specular="0.4" shininess="0.5"/>
    <material name="joint" rgba="0.70 0.73 0.78 1" specular="0.4" shininess="0.5"/>
    <material name="cube" rgba="0.85 0.20 0.16 1" specular="0.3" shininess="0.3"/>
    <material name="goal" rgba="0.16 0.65 0.35 0.75"/>
  </asset>"""


def scene_xml(*, timestep_s: float = PHYSICS_TIMESTEP_S, shadows: bool = False, picture_px: int = 1024) -> str:
    """Return the scene as MJCF text.

    Args:
        timestep_s: Physics step.
        shadows: Draw shadows and smooth edges. Physics is the same; a frame takes 20 times as long to draw
            in software, so leave it off for image observations.
        picture_px: Largest width and height of an offscreen picture.
    """
    shadow_px, samples = (4096, 8) if shadows else (0, 0)
    return f"""<mujoco model="franka">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{timestep_s}" integrator="implicitfast" cone="pyramidal"><flag nativeccd="enable"/></option>
  <visual>
    <global offwidth="{picture_px}" offheight="{picture_px}"/>
    <quality shadowsize="{shadow_px}" offsamples="{samples}"/>
    <headlight ambient="0.38 0.38 0.38" diffuse="0.35 0.35 0.35" specular="0.1 0.1 0.1"/>
    <map znear="0.01"/>
  </visual>{_DEFAULTS}{_ASSETS}
  <worldbody>
    <light pos="1.2 -0.9 2.4" dir="-0.35 0.4 -1" diffuse="0.55 0.55 0.52" specular="0.2 0.2 0.2"/>
    <camera name="{CAMERA}" pos="1.62 -0.50 0.52" xyaxes="0.371 0.928 -0.000 -0.139 0.056 0.989" fovy="36"/>
    <geom name="table" type="plane" size="1.5 1.5 0.1" material="table" contype="2" conaffinity="3" condim="4"
          friction="1 0.005 0.0001"/>
    <body name="base">
      <geom class="visual" type="cylinder" fromto="0 0 0 0 0 0.15" size="0.09" material="joint"/>{_arm()}
    </body>
    <body name="cube" pos="0.5 0 {CUBE_HALF_SIZE_M}">
      <freejoint/>
      <geom name="cube" type="box" size="{CUBE_HALF_SIZE_M} {CUBE_HALF_SIZE_M} {CUBE_HALF_SIZE_M}" mass="0.1"
            contype="2" conaffinity="3" condim="4" friction="1 0.01 0.0001" material="cube"/>
    </body>
    <site name="goal" type="cylinder" pos="0.5 0.2 0.001" size="0.045 0.001" material="goal"/>
  </worldbody>
  <tendon>
    <fixed name="opening"><joint joint="finger_left" coef="0.5"/><joint joint="finger_right" coef="0.5"/></fixed>
  </tendon>
  <equality>
    <joint joint1="finger_left" joint2="finger_right" solimp="0.95 0.99 0.001" solref="0.005 1"/>
  </equality>
  <actuator>{_servos()}
    <position name="gripper" tendon="opening" kp="800" kv="40" forcerange="-60 60" ctrlrange="0 {FINGER_OPENING_M}"/>
  </actuator>
</mujoco>"""


def _arm() -> str:
    opening, closing = "", ""
    for number, link in enumerate(_LINKS, start=1):
        across, along = 0.02 * link.mass / 3, 0.01 * link.mass / 3
        material = "shell" if number % 2 else "joint"
        capsules = "".join(
            f"""
        <geom class="visual" type="capsule" fromto="{ends}" size="{link.radius}" material="{material}"/>"""
            for ends in link.capsules
        )
        opening += f"""
      <body name="link{number}" pos="{link.position}" quat="{link.orientation}" gravcomp="1">
        <inertial pos="{link.centre_of_mass}" mass="{link.mass}" diaginertia="{across:.4f} {across:.4f} {along:.4f}"/>
        <joint name="joint{number}" axis="0 0 1" range="{link.lower} {link.upper}" damping="1" armature="0.1"/>{
            capsules
        }"""
        closing += "</body>"
    return opening + _hand() + closing


def _hand() -> str:
    return f"""
      <body name="hand" pos="0 0 0.107" quat="0.9238795 0 0 -0.3826834" gravcomp="1">
        <inertial pos="0 0 0.03" mass="0.73" diaginertia="0.001 0.0025 0.0017"/>
        <geom class="hand" name="hand" type="box" pos="0 0 0.035" size="0.03 0.1 0.03" material="shell"/>
        <site name="tcp" pos="0 0 0.1034" size="0.004" rgba="0 0 0 0"/>{_finger("left", "1 0 0 0")}{
        _finger("right", "0 0 0 1")
    }
      </body>"""


def _finger(side: str, orientation: str) -> str:
    return f"""
        <body name="finger_{side}" pos="0 0 0.0584" quat="{orientation}" gravcomp="1">
          <inertial pos="0 0 0.025" mass="0.05" diaginertia="2e-5 2e-5 1e-5"/>
          <joint name="finger_{side}" type="slide" axis="0 1 0" range="0 {FINGER_OPENING_M}" armature="0.1"
                 damping="5"/>
          <geom class="visual" type="box" pos="0 0.012 0.022" size="0.009 0.01 0.022" rgba="0.27 0.28 0.30 1"/>
          <geom name="pad_{side}" class="pad" type="box" pos="0 0.0075 0.0445" size="0.0095 0.0075 0.0095"/>
        </body>"""


def _servos() -> str:
    return "".join(
        f"""
    <position name="servo{number}" joint="joint{number}" kp="{link.stiffness}" kv="{link.stiffness / 10:g}"
              forcerange="-{link.torque_limit} {link.torque_limit}"/>"""
        for number, link in enumerate(_LINKS, start=1)
    )

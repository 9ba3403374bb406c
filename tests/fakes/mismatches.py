"""Every way in which an environment can differ from what an engine was configured for, and what is said about it."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.fakes.arms import CONFIG, ArmEnv, Commands, Requests
from tests.fakes.environments import CountingEnv, plus_hundred

REQUESTS = {"state_dim": 5, **CONFIG}
COMMANDS = {"state_dim": 5, "action_dim": 3}


class Mismatch(NamedTuple):
    """A configuration, an environment, and the complaint."""

    cfg: dict[str, Any]
    kwargs: dict[str, Any]
    complaint: str

    @property
    def gym_config(self) -> dict[str, Any]:
        return {"factory": ArmEnv, "kwargs": self.kwargs, "expert": Requests(), "seed": 0}


_OTHER = (
    r"action_semantics is configured as 'policy_request', the environment records 'expert_controller_command': it must"
)
_CONTRACTS = r"action_contracts are configured as \({}.*\), the environment's action_manager has \({}.*\)"
_ORDER = r"the joints of action term '{}' must be in the environment's order, \['a', 'b', 'g'\], found {}"

MISMATCHES = {
    "no manager": Mismatch(REQUESTS, {"flaw": "no manager"}, _OTHER),
    "a manager of another make": Mismatch(REQUESTS, {"flaw": "foreign manager"}, _OTHER),
    "semantics for requests": Mismatch(REQUESTS, {"flaw": "stubborn"}, "'policy_request', .* records 'raw_torque'"),
    "semantics for commands": Mismatch(
        COMMANDS, {"flaw": "stubborn"}, "'expert_controller_command', the environment records 'raw_torque'"
    ),
    "state width": Mismatch(REQUESTS | {"state_dim": 4}, {}, "state_dim is configured as 4, .* a state of width 5"),
    "action width": Mismatch(REQUESTS | {"action_dim": 4}, {}, "action_dim is configured as 4, .* have width 3"),
    "command width": Mismatch(COMMANDS, {"mode": "position_velocity"}, "action_dim is configured as 3, .* width 6"),
    "command width by default": Mismatch({"state_dim": 5}, {}, r"\(by default state_dim\) is .* 5, .* width 3"),
    "contracts in another order": Mismatch(
        REQUESTS | {"action_contracts": CONFIG["action_contracts"][::-1]},
        {},
        _CONTRACTS.format("'gripper.parallel@1', 'joint", "'joint_position.relative@1', 'grip"),
    ),
    "fewer contracts": Mismatch(
        REQUESTS | {"action_contracts": ("joint_position.relative@1",)},
        {},
        _CONTRACTS.format("'joint_position.relative@1',", "'joint_position.relative@1', 'grip"),
    ),
    "another version": Mismatch(
        REQUESTS, {"flaw": "other contract"}, _CONTRACTS.format(".*gripper.parallel@1'", ".*gripper.parallel@2'")
    ),
    "a gap": Mismatch(REQUESTS, {"flaw": "gap"}, "'hand' must start at column 2, .* has it at 3 to 4"),
    "an overlap": Mismatch(REQUESTS, {"flaw": "overlap"}, "'hand' must start at column 2, .* has it at 1 to 2"),
    "columns without a term": Mismatch(
        REQUESTS | {"action_contracts": ("joint_position.relative@1",)},
        {"flaw": "short"},
        "must cover all 3 columns of a request, they cover 2",
    ),
    "joints of a term in another order": Mismatch(
        REQUESTS, {"flaw": "term order"}, _ORDER.format("arm", r"\['b', 'a'\]")
    ),
    "a joint that is not there": Mismatch(REQUESTS, {"flaw": "unknown joint"}, _ORDER.format("hand", r"\['x'\]")),
    "a joint of two terms": Mismatch(
        REQUESTS,
        {"flaw": "joint twice"},
        r"'g'\] in this order, its action terms command \['a', 'a', 'b'\]",
    ),
    "no order of joints": Mismatch(REQUESTS, {"flaw": "no joint names"}, "the environment has no joint_names"),
    "commands in another order": Mismatch(
        COMMANDS,
        {"flaw": "spec order"},
        r"'g'\] in this order, its expert_action_spec has \['b', 'a', 'g'\]",
    ),
    "joints in another order": Mismatch(
        COMMANDS, {"joint_names": ("g", "a", "b")}, r"controls the joints \['g', 'a', 'b'\] in this order"
    ),
}


class PlainMismatch(Mismatch):
    """The same for a plain environment."""

    @property
    def gym_config(self) -> dict[str, Any]:
        return {"factory": CountingEnv, "kwargs": self.kwargs, "expert": plus_hundred, "seed": 0}


MISMATCHES["a plain environment"] = PlainMismatch(CONFIG | {"action_dim": 1}, {}, _OTHER)
__all__ = ["COMMANDS", "MISMATCHES", "REQUESTS", "Commands", "Mismatch"]

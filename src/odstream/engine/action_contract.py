"""Compares what recorded actions mean, as the producer reports it, with what the engine was configured for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from odstream.engine.config import OnlineDataEngineCfg
from odstream.errors import EnvironmentContractError
from odstream.producers.base import RolloutSpec


def check_semantics(cfg: OnlineDataEngineCfg, spec: RolloutSpec) -> None:
    """Refuse a producer that records something else.

    Raises:
        EnvironmentContractError: Naming both.
    """
    if spec.action_semantics == cfg.action_semantics:
        return
    message = (
        f"action_semantics is configured as {cfg.action_semantics!r}, the environment records {spec.action_semantics!r}"
    )
    if cfg.action_semantics == "policy_request":
        message += ": it must offer an action_manager whose contracts can be compared with action_contracts"
    raise EnvironmentContractError(message)


def check_terms(cfg: OnlineDataEngineCfg, spec: RolloutSpec) -> None:
    """Refuse requests whose terms are not the configured ones in order, or do not cover the vector without a gap.

    Raises:
        EnvironmentContractError: Naming the terms, or the columns.
    """
    if cfg.action_semantics != "policy_request":
        return
    contracts = tuple(item.contract for item in spec.action_descriptors)
    if contracts != cfg.action_contracts:
        raise EnvironmentContractError(
            f"action_contracts are configured as {cfg.action_contracts}, the environment's action_manager has "
            f"{contracts}"
        )
    expected = 0
    for item in spec.action_descriptors:
        if item.start != expected:
            raise EnvironmentContractError(
                f"action term {item.name!r} must start at column {expected}, where the one before it stops; "
                f"the environment's action_manager has it at {item.start} to {item.stop}"
            )
        expected = item.stop
    if expected != spec.action_dim:
        raise EnvironmentContractError(
            f"the terms of the environment's action_manager must cover all {spec.action_dim} columns of a request, "
            f"they cover {expected}"
        )


def check_joints(spec: RolloutSpec) -> None:
    """Refuse terms, or a recorded command, whose joints are not the controlled joints in the environment's order.

    Raises:
        EnvironmentContractError: Naming the joints.
    """
    if spec.expert_action_spec is None and not spec.action_descriptors:
        return
    order = spec.joint_names
    if order is None:
        raise EnvironmentContractError(
            "the environment has no joint_names, so that the order of its controlled joints cannot be checked"
        )
    if spec.expert_action_spec is not None:
        _check_all("its expert_action_spec has", spec.expert_action_spec.joint_names, order)
    claimed: list[str] = []
    for item in spec.action_descriptors:
        ordered = tuple(name for name in order if name in item.joint_names)
        if item.joint_names != ordered:
            raise EnvironmentContractError(
                f"the joints of action term {item.name!r} must be in the environment's order, {list(order)}, "
                f"found {list(item.joint_names)}"
            )
        claimed += item.joint_names
    if spec.action_descriptors:
        _check_all("its action terms command", sorted(claimed, key=order.index), order)


def _check_all(what: str, found: Sequence[str], order: Sequence[str]) -> None:
    if list(found) != list(order):
        raise EnvironmentContractError(
            f"the environment controls the joints {list(order)} in this order, {what} {list(found)}"
        )

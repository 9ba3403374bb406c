"""Compares what a producer will record with what the engine was configured for. Pure."""

from __future__ import annotations

import numpy as np

from odstream.cache.layout import ANNOTATIONS, PROVENANCE, CacheLayout, Field, FieldKey
from odstream.engine.action_contract import check_joints, check_semantics, check_terms
from odstream.engine.config import OnlineDataEngineCfg
from odstream.errors import EnvironmentContractError
from odstream.producers.base import FieldSpec, RolloutSpec

__all__ = ["layout_for"]

_RESERVED = frozenset(field.key[0] for field in (*ANNOTATIONS, *PROVENANCE)) | {"loss_mask"}
_DTYPES = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


def layout_for(cfg: OnlineDataEngineCfg, spec: RolloutSpec) -> CacheLayout:
    """Return the layout of the cache for a producer.

    Raises:
        EnvironmentContractError: If what the producer's actions mean, its widths, fields or number of environments do
            not fit ``cfg``; the message names what is expected and what was found.
    """
    check_semantics(cfg, spec)
    _check_widths(cfg, spec)
    check_terms(cfg, spec)
    check_joints(spec)
    if spec.num_envs < 1:
        raise EnvironmentContractError(f"a producer must run at least one environment, it reports {spec.num_envs}")
    if spec.num_envs > cfg.buffer_size:
        raise EnvironmentContractError(
            f"buffer_size must be at least the producer's num_envs={spec.num_envs}, got {cfg.buffer_size}"
        )
    declared = cfg.gym_config.get("num_envs")
    if declared is not None and declared != spec.num_envs:
        raise EnvironmentContractError(
            f"gym_config['num_envs'] is {declared}, but the environment runs {spec.num_envs} at once"
        )
    recorded = tuple(_field(key, field) for key, field in spec.fields.items())
    _check_names([field.key for field in recorded])
    return CacheLayout(
        slots=cfg.buffer_size,
        spare_rows=spec.num_envs,
        max_episode_steps=cfg.max_episode_steps,
        fields=(*recorded, *ANNOTATIONS, *(PROVENANCE if cfg.include_provenance else ())),
        event_capacity=cfg.lifecycle_event_capacity,
        language_bytes=cfg.language_buffer_bytes,
    )


def _check_widths(cfg: OnlineDataEngineCfg, spec: RolloutSpec) -> None:
    if cfg.state_dim is not None and cfg.state_dim != spec.state_dim:
        found = "no flat state vector" if spec.state_dim is None else f"a state of width {spec.state_dim}"
        raise EnvironmentContractError(f"state_dim is configured as {cfg.state_dim}, the environment has {found}")
    action_dim = cfg.state_dim if cfg.action_dim is None else cfg.action_dim
    if action_dim is not None and action_dim != spec.action_dim:
        origin = "action_dim (by default state_dim)" if cfg.action_dim is None else "action_dim"
        raise EnvironmentContractError(
            f"{origin} is configured as {action_dim}, the environment's actions have width {spec.action_dim}"
        )


def _field(key: FieldKey, spec: FieldSpec) -> Field:
    name = ".".join(key)
    if any(extent < 1 for extent in spec.shape):
        raise EnvironmentContractError(f"{name} must not be empty, got shape {spec.shape}")
    if spec.dtype.name not in _DTYPES or not spec.dtype.isnative:
        raise EnvironmentContractError(
            f"{name} must be bool, integer, float or complex of a dtype that torch has, in native byte order, "
            f"got dtype {spec.dtype!r}"
        )
    return Field(key, spec.shape, np.dtype(spec.dtype.name))  # of several that are equal, the one torch knows


def _check_names(keys: list[FieldKey]) -> None:
    if not any(key[0] == "obs" for key in keys):
        raise EnvironmentContractError(f"a producer must record 'obs', it records {keys}")
    for name in ("actions", "rewards"):
        if (name,) not in keys:
            raise EnvironmentContractError(f"a producer must record {name!r}, it records {keys}")
    for key in keys:
        if key[0] in _RESERVED:
            raise EnvironmentContractError(f"{'.'.join(key)} is a name the engine fills itself")
        if any(key[:depth] in keys for depth in range(1, len(key))):
            raise EnvironmentContractError(f"{'.'.join(key)} lies below another field of the same name")

"""A live engine as a source of contexts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from odstream.datasets.schema import check_features, features_of, validate_data_schema
from odstream.datasets.sequence import SequenceSpecCfg

if TYPE_CHECKING:
    from odstream.engine.data import OnlineDataEngine
    from odstream.producers.base import RolloutSpec

__all__ = ["OnlineDataSource"]

_FRAME_ID_FIELDS = ("ods_run_id", "ods_episode_id", "ods_frame_index")
_STEP_TOLERANCE = 1e-6


class OnlineDataSource:
    """Contexts of a live engine, under the contract of `BatchSource`.

    The engine is the caller's: this neither starts, stops nor refills it, and waits for nothing. What the engine
    raises reaches the caller. Forked and spawned copies sample as those of the engine do.

    Args:
        engine: An `OnlineDataEngine` with ``include_provenance=True``, started before the first sample.
        schema: What the batches' observations (after the transform) and actions mean.
        observation_transform: Gets the observations of a batch as its one argument, ``[B, L, ...]`` or nested, an
            owned copy that it may change, and returns the declared features: a tensor, or a TensorDict, with the
            leading axes ``[B, L]``. The engine's lock is not held. Padding is restored afterwards, whatever the
            transform made of it. What was delivered stays counted if it raises.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If the schema is incomplete, contradicts the engine, or the engine records no provenance.
    """

    def __init__(
        self,
        engine: OnlineDataEngine,
        *,
        schema: Mapping[str, Any],
        observation_transform: Callable[[Any], torch.Tensor | TensorDictBase] | None = None,
    ) -> None:
        if not callable(getattr(engine, "sample_batch_with_context", None)):
            raise TypeError(f"engine must be an OnlineDataEngine, got {engine!r} ({type(engine).__name__})")
        if observation_transform is not None and not callable(observation_transform):
            raise TypeError(f"observation_transform must be callable or None, got {observation_transform!r}")
        if not engine.cfg.include_provenance:
            raise ValueError(
                "a source returns frame_ids, which need include_provenance=True in the engine's settings; it is False"
            )
        self.schema = validate_data_schema(schema)
        self.engine = engine
        self.observation_transform = observation_transform
        self._check_semantics()
        self._checked = False

    @property
    def source_id(self) -> str:
        """The engine's run: a new one for every engine."""
        return str(self.engine.run_id)

    def sample_context(
        self, batch_size: int, spec: SequenceSpecCfg, *, generator: torch.Generator | None = None
    ) -> TensorDict:
        """Return ``B`` contexts as an owned TensorDict ``[B, L]``; see `BatchSource.sample_context`.

        The engine's lock is held while it chooses, copies and debits, not during the transform.

        Raises:
            As `OnlineDataEngine.sample_batch_with_context`; what the transform raises; and ``ValueError`` if
            observations or actions are not what the schema declares.
        """
        check_spec(spec)
        if not self._checked:
            self._check_recording()
        batch = self.engine.sample_batch_with_context(
            batch_size,
            spec.history_length,
            spec.prediction_horizon,
            generator=generator,
            sampling_mode=spec.sampling_mode,
            generations=spec.generations,
        )
        batch["frame_ids"] = torch.stack([batch[name] for name in _FRAME_ID_FIELDS], -1)
        if self.observation_transform is not None:
            batch["obs"] = restore_padding(self.observation_transform(batch["obs"]), batch["valid"])
            check_features(self.schema, "observation", features_of(batch, "obs"))
        return batch

    def resolve_language(self, batch: Mapping[str, Any] | TensorDict) -> dict[str, Any]:
        """Return the texts of a batch's ids; see `OnlineDataEngine.resolve_language`."""
        return self.engine.resolve_language(batch)

    def _check_semantics(self) -> None:
        recorded = getattr(self.engine.cfg, "action_semantics", None)
        declared = self.schema["action"].get("semantics")
        if None not in (recorded, declared) and recorded != declared:
            raise ValueError(
                f"schema.action.semantics is {declared!r}, the engine records action_semantics={recorded!r}"
            )

    def _check_recording(self) -> None:
        """Compare the schema with what the engine records: known once it runs, constant from then on."""
        spec = self.engine.rollout_spec
        if spec is None:
            return  # not started; sampling says so
        check_step("the engine's environment", spec.step_dt, self.schema)
        check_features(self.schema, "action", _recorded(spec, "actions"))
        if self.observation_transform is None:
            check_features(self.schema, "observation", _recorded(spec, "obs"))
        self._checked = True


def _recorded(spec: RolloutSpec, name: str) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {
        ".".join(key[1:]): (field.shape, torch.from_numpy(np.empty(0, field.dtype)).dtype)
        for key, field in spec.fields.items()
        if key[0] == name
    }


def check_spec(spec: object) -> None:
    """Refuse anything but a `SequenceSpecCfg`, which has checked itself."""
    if not isinstance(spec, SequenceSpecCfg):
        raise TypeError(f"spec must be a SequenceSpecCfg, got {spec!r} ({type(spec).__name__})")


def check_step(what: str, step_dt: float | None, schema: Mapping[str, Any]) -> None:
    """Compare a recorded control period (seconds; None: unknown) with the declared one.

    Raises:
        ValueError: If they differ by more than a millionth.
    """
    declared = schema["action"]["step_dt"]
    if step_dt is not None and not math.isclose(step_dt, declared, rel_tol=_STEP_TOLERANCE):
        raise ValueError(f"schema.action.step_dt is {declared} s, {what} has {step_dt} s")


def restore_padding(values: torch.Tensor | TensorDictBase, valid: torch.Tensor) -> torch.Tensor | TensorDictBase:
    """Return ``values`` with exact zeros where ``valid`` is False, selected, so that no NaN survives.

    Args:
        values: ``[B, L, ...]`` features, or a TensorDict of such.
        valid: ``[B, L]`` bool.

    Raises:
        TypeError: If ``values`` is neither.
        ValueError: If a leading axis is not that of ``valid``.
    """
    if isinstance(values, TensorDictBase):
        padded = values.apply(lambda leaf: _padded(leaf, valid), batch_size=valid.shape)
        assert padded is not None
        return padded
    if not isinstance(values, torch.Tensor):
        raise TypeError(
            f"observation_transform must return a tensor or a TensorDict, got {values!r} ({type(values).__name__})"
        )
    return _padded(values, valid)


def _padded(values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    if values.shape[:2] != valid.shape:
        raise ValueError(
            f"observation_transform must keep the leading axes {tuple(valid.shape)}, it returned {tuple(values.shape)}"
        )
    mask = valid.view(*valid.shape, *(1,) * (values.ndim - 2))
    return torch.where(mask.to(values.device), values, torch.zeros((), dtype=values.dtype, device=values.device))

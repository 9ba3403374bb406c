"""A live engine and resident tensors, each as a source of contexts.

Letters as in `sequence`; ``N`` episodes, ``T`` frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from odstream.cache.layout import FieldKey
from odstream.datasets.episode_checks import check_episodes
from odstream.datasets.resident import ResidentLayout, ResidentStore, resident_fields
from odstream.datasets.resident_source import ResidentSource, check_budget, check_source_id, source_run_id
from odstream.datasets.schema import check_features, features_of, validate_data_schema
from odstream.datasets.sequence import SequenceSpecCfg, check_spec
from odstream.datasets.source_language import SourceLanguage
from odstream.engine.sampling import check_generator

if TYPE_CHECKING:
    from odstream.engine.data import OnlineDataEngine
    from odstream.producers.base import RolloutSpec

__all__ = ["OnlineDataSource", "TensorDataSource"]

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
        check_generator(generator)
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
        batch["frame_ids"] = _side_by_side([batch[name] for name in _FRAME_ID_FIELDS])
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
        check_features(self.schema, "action", recorded_features(spec, "actions"))
        if self.observation_transform is None:
            check_features(self.schema, "observation", recorded_features(spec, "obs"))
        self._checked = True


def recorded_features(spec: RolloutSpec, name: str) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape per frame and dtype of what a producer records under ``name``, by dotted names below it."""
    return {
        ".".join(key[1:]): (field.shape, torch.from_numpy(np.empty(0, field.dtype)).dtype)
        for key, field in spec.fields.items()
        if key[0] == name
    }


class TensorDataSource(ResidentSource):
    """Contexts of episodes that are given as tensors and kept in CPU memory.

    ``data`` is copied, once; the caller may drop or change it afterwards. Rows are stored as long as their episodes,
    so rows that were padded to the longest episode cost no more than their real frames.

    Fields have the names of the engine's batches: ``obs`` (a tensor or nested) and ``actions`` are needed, everything
    else is optional and returned as it was given. Annotations and provenance (``continuity_id``, ``segment_id``,
    ``ods_episode_id``, ...) must have the engine's dtypes; they bound contexts as they do live. ``frame_ids``
    ``[..., 3]`` identify the frames; without them the ``ods_*`` fields do, and without these the source id, the
    position of the episode and that of the frame.

    Args:
        data: A TensorDict ``[N, T]`` with ``valid`` ``[N, T]`` bool, or a sequence of TensorDicts ``[T]``, one per
            episode, where ``valid`` may be left out if all frames are real. What lies in frames that are not real is
            ignored.
        schema: What observations and actions mean; see `odstream.datasets.schema`.
        source_id: Identity of the data: the same for the same data, also in the next process.
        episode_sample_budget: How often each episode may be selected; None, together with the limit: as often as one
            likes.
        episode_sample_hard_limit: Ceiling for the budget.
        seed: Of the source's own generator; None for a fresh one.
        language: ``{"task": {0: "text"}, "subtask": {...}}``: the texts of ``task_index`` and ``subtask_index``.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If fields have wrong axes, dtypes or devices, differ from the schema, hold NaN or infinity in real
            frames, or episodes are not in order; see `odstream.datasets.episode_checks`.
        SharedMemoryError: If the frames do not fit into the available memory.
    """

    def __init__(
        self,
        data: TensorDictBase | Sequence[TensorDictBase],
        *,
        schema: Mapping[str, Any],
        source_id: str,
        episode_sample_budget: int | None = None,
        episode_sample_hard_limit: int | None = None,
        seed: int | None = None,
        language: Mapping[str, Mapping[int, str]] | None = None,
    ) -> None:
        checked = validate_data_schema(schema)
        check_source_id(source_id)
        texts = SourceLanguage(language)
        episodes = _episodes_of(data)
        budget = check_budget(episode_sample_budget, episode_sample_hard_limit, len(episodes))
        features = _common_features(episodes)
        for section, key in (("observation", "obs"), ("action", "actions")):
            check_features(checked, section, features_of(episodes[0], key, 1))
        recorded = {key: (shape, torch.empty(0, dtype=dtype).numpy().dtype) for key, (shape, dtype) in features.items()}
        lengths = tuple(episode.batch_size[0] for episode in episodes)
        store = ResidentStore(ResidentLayout(lengths=lengths, fields=resident_fields(recorded)))
        _fill(store, episodes, recorded, source_run_id(source_id))
        store.seal()
        check_episodes(store)
        super().__init__(store, schema=checked, source_id=source_id, budget=budget, seed=seed, language=texts)


def _episodes_of(data: object) -> list[TensorDictBase]:
    """Return the episodes as TensorDicts ``[T]``, views of ``data`` without what lies behind the last real frame."""
    if isinstance(data, TensorDictBase):
        if data.batch_dims != 2 or 0 in data.batch_size:
            raise ValueError(
                f"data must have the axes [episodes, frames], none of them empty, got {tuple(data.batch_size)}"
            )
        rows = list(data.unbind(0))
        if "valid" not in data.keys():
            raise ValueError("data [N, T] needs a field valid [N, T] bool: which of the T frames are real")
    elif isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        rows = list(data)
        if not rows:
            raise ValueError("data must hold at least one episode, got none")
    else:
        raise TypeError(f"data must be a TensorDict or a sequence of TensorDicts, got {type(data).__name__}")
    episodes = [_trimmed(row, index) for index, row in enumerate(rows)]
    if not any("valid" not in episode.keys() or bool(episode["valid"].any()) for episode in episodes):
        raise ValueError("data must hold at least one real frame; valid is False everywhere")
    return episodes


def _trimmed(episode: object, index: int) -> TensorDictBase:
    if not isinstance(episode, TensorDictBase):
        raise TypeError(f"data[{index}] must be a TensorDict, got {type(episode).__name__}")
    if episode.batch_dims != 1 or 0 in episode.batch_size:
        raise ValueError(f"data[{index}] must have the axis [frames], not empty, got {tuple(episode.batch_size)}")
    for name in ("obs", "actions"):
        if name not in episode.keys():
            raise ValueError(f"data[{index}] has no {name}; it has {sorted(map(str, episode.keys()))}")
    if "valid" not in episode.keys():
        return episode
    valid = episode["valid"]
    if valid.dtype != torch.bool or valid.ndim != 1:
        raise ValueError(f"valid of episode {index} must be bool [frames], got {valid.dtype} {tuple(valid.shape)}")
    real = valid.nonzero()
    return episode[: int(real[-1]) + 1 if len(real) else 1]


def _common_features(episodes: Sequence[TensorDictBase]) -> dict[FieldKey, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape per frame and dtype of every field, alike in all episodes."""
    expected = _features(episodes[0], 0)
    for index, episode in enumerate(episodes[1:], start=1):
        found = _features(episode, index)
        if found != expected:
            names = sorted(".".join(key) for key in {*found, *expected} if found.get(key) != expected.get(key))
            raise ValueError(f"all episodes must have the same fields, episode {index} differs from 0 in {names}")
    return expected


def _features(episode: TensorDictBase, index: int) -> dict[FieldKey, tuple[tuple[int, ...], torch.dtype]]:
    features: dict[FieldKey, tuple[tuple[int, ...], torch.dtype]] = {}
    for name, leaf in episode.items(include_nested=True, leaves_only=True):
        key = (name,) if isinstance(name, str) else tuple(name)
        place = f"{'.'.join(key)} of episode {index}"
        if not isinstance(leaf, torch.Tensor) or leaf.is_sparse or leaf.is_quantized:
            raise ValueError(f"{place} must be a dense tensor, got {type(leaf).__name__}")
        if leaf.device.type != "cpu":
            raise ValueError(f"{place} must be on the CPU, it is on {leaf.device}")
        if leaf.dtype == torch.bfloat16:
            raise ValueError(f"{place} has the dtype torch.bfloat16, which numpy lacks; convert it to float32")
        features[key] = tuple(leaf.shape[1:]), leaf.dtype
    return features


def _fill(store: ResidentStore, episodes: Sequence[TensorDictBase], recorded: Mapping[FieldKey, Any], run: int) -> None:
    views = store.frames()
    given = [(name,) in recorded for name in _FRAME_ID_FIELDS]
    for row, episode in enumerate(episodes):
        span = store.span(row)
        for key in recorded:
            views[key][span] = episode[key].detach().numpy()
        if ("valid",) not in recorded:
            views["valid",][span] = True
        if ("frame_ids",) in recorded:
            continue
        ids = views["frame_ids",][span]
        if all(given):
            for column, name in enumerate(_FRAME_ID_FIELDS):
                ids[:, column] = views[name,][span]
        else:
            ids[:] = run, row, 0
            ids[:, 2] = np.arange(len(ids))


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


def _side_by_side(columns: list[torch.Tensor]) -> torch.Tensor:
    """Stack int64 columns on a new last axis; without a copy where they are neighbours in memory."""
    first = columns[0]
    step = first.element_size()
    if all(
        column.stride() == first.stride() and column.data_ptr() == first.data_ptr() + step * place
        for place, column in enumerate(columns)
    ):
        return first.as_strided((*first.shape, len(columns)), (*first.stride(), 1))
    return torch.stack(columns, -1)

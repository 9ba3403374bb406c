"""Records the accepted episodes of a live engine as a LeRobot dataset, without holding production or learner back."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from odstream.cache.layout import FieldKey
from odstream.datasets.lerobot_import import import_lerobot
from odstream.datasets.schema import check_features, data_schema_fingerprint, validate_data_schema
from odstream.datasets.sources import check_step, recorded_features
from odstream.engine.episodes import StoredEpisode, copy_episodes, stored_fields
from odstream.errors import EngineOwnershipError, EngineStateError, RecordingError
from odstream.producers.base import RolloutSpec
from odstream.recording.converter import convert, run_converter
from odstream.recording.features import plan_features
from odstream.recording.spool import RecordingPlan, Spool, SpooledEpisode, spool_folder
from odstream.validation import check_finite, check_int

if TYPE_CHECKING:
    from odstream.engine.data import OnlineDataEngine

__all__ = ["EpisodeRecorder", "recover_recording"]

_FPS_TOLERANCE = 1e-6
_LOG = logging.getLogger("odstream")


class EpisodeRecorder:
    """Writes every accepted episode of a running engine once, in order of acceptance, to a new LeRobot dataset.

    Recording copies whole episodes out of the cache; it draws no sample, debits no budget and starts no refill. An
    episode is copied under the engine's lock (some tens of microseconds) and put into a file of its own beside the
    dataset; a process of its own turns these into the dataset with LeRobot's SDK. The dataset can be opened while it
    grows: it always holds complete episodes. Use it as a context manager; leaving it waits until everything is
    written.

    What is recorded: observations, actions, rewards and every further number, the annotations (segments, validity,
    continuity, ids of texts), the provenance, and the texts. Images are left out, with a line in the log.

    After a crash the dataset can be read up to the last file that was finished. What was recorded beyond that is in
    ``.NAME.recording`` beside it: the converter still writes it if only the recorder died, else `recover_recording`
    does. A loss of power is another matter: files are not forced onto the disk.

    Args:
        engine: Started, with ``include_provenance=True``; owned by this process. The caller owns its life.
        root: The dataset's folder; it must not exist yet, or be empty.
        schema: What observations and actions mean, where it is declared: it is checked against the engine, names the
            numbers in the dataset, and is kept with it.
        step_dt: Control period in seconds; None: the one that the environment reports. One second must hold a whole
            number of them, since LeRobot counts frames per second.
        episodes_per_file: Episodes that are written, and become readable, together.

    Raises:
        EngineOwnershipError: If this process does not own the engine.
        EngineStateError: If it is not running.
        FileExistsError: If the folder is not empty, or an interrupted recording of it is there.
        MissingExtraError: If LeRobot's SDK is not installed.
        ValueError: If something cannot be recorded, or an argument is out of range.
    """

    def __init__(
        self,
        engine: OnlineDataEngine,
        root: Path | str,
        *,
        schema: Mapping[str, Any] | None = None,
        step_dt: float | None = None,
        episodes_per_file: int = 16,
    ) -> None:
        engine.check_health()
        if not engine.is_owner:
            raise EngineOwnershipError("episodes are recorded by the process that owns the engine")
        check_int("episodes_per_file", episodes_per_file, 1)
        self.root = Path(root)
        self.recorded = 0
        """Episodes that are in the dataset or on their way."""
        self.missed = 0
        """Episodes that were replaced in the cache before they could be recorded."""
        self._engine = engine
        self._last = -1
        self._texts: dict[str, dict[int, str]] = {"task": {}, "subtask": {}}
        plan, self._features = self._plan(schema, step_dt, episodes_per_file)
        folder = spool_folder(self.root)
        _check_free(self.root, folder)
        import_lerobot()
        self._spool: Spool | None = Spool.create(folder, plan)
        context = multiprocessing.get_context("spawn")
        self._converter = context.Process(
            target=run_converter, args=(self.root, os.getpid()), name="odstream-recorder", daemon=True
        )
        self._converter.start()

    def _plan(
        self, schema: Mapping[str, Any] | None, step_dt: float | None, episodes_per_file: int
    ) -> tuple[RecordingPlan, Any]:
        engine = self._engine
        spec = engine.rollout_spec
        assert spec is not None  # it runs
        declared = None if schema is None else validate_data_schema(schema)
        names: dict[FieldKey, list[str]] = {}
        for section, key in (("observation", "obs"), ("action", "actions")) if declared is not None else ():
            assert declared is not None
            check_features(declared, section, recorded_features(spec, key))
            if "names" in declared[section]:
                names[key,] = declared[section]["names"]
        features = plan_features(stored_fields(engine), names)
        for field in features.left_out:
            _LOG.warning("%s: not recorded: %s", self.root, field)
        step_s = spec.step_dt if step_dt is None else check_finite("step_dt", step_dt)
        if step_s is None:
            raise ValueError("the environment reports no control period; say which: step_dt=...")
        if declared is not None:
            check_step("the recording", step_s, declared)
        mapping = features.mapping
        plan = RecordingPlan(
            features=features.features,
            fps=_frames_per_second(step_s),
            mapping={
                "observation": mapping.observation,
                "action": mapping.action,
                "fields": dict(mapping.fields),
                "scalars": list(mapping.scalars),
            },
            recording={
                "run_id": engine.run_id,
                "left_out": list(features.left_out),
                "schema": declared,
                "schema_fingerprint": None if declared is None else data_schema_fingerprint(declared),
                "action": _meaning_of_actions(spec),
            },
            episodes_per_file=episodes_per_file,
        )
        return plan, features

    def record_new(self, limit: int | None = None) -> int:
        """Record the readable episodes that are not recorded yet, oldest first, and return how many those were.

        With manual refill call it once per generation, before the next refill is requested, and none is missed. What
        automatic refills replace in between is counted in `missed`.

        Args:
            limit: Record at most this many; the rest counts as not wanted, not as missed, if nothing follows.

        Raises:
            RecordingError: If the converter has failed. What was recorded before is not lost.
            EngineStateError, Exception: As `OnlineDataEngine.check_health`.
        """
        return self.put(self.take_new(limit))

    def take_new(self, limit: int | None = None) -> list[StoredEpisode]:
        """Copy what `record_new` would record into memory, for `put`: so that a refill can begin in between.

        Raises:
            As `record_new`.
        """
        if limit is not None:
            check_int("limit", limit, 0)
        self._spooling()
        taken: list[StoredEpisode] = []
        for episode in copy_episodes(self._engine, after=self._last):
            if limit is not None and len(taken) == limit:
                break
            taken.append(episode)
            self.missed += episode.episode_id - self._last - 1
            self._last = episode.episode_id
        for episode in taken:
            self._learn(episode)
        return taken

    def put(self, episodes: list[StoredEpisode]) -> int:
        """Record episodes that `take_new` returned, in that order; return how many those were.

        Raises:
            RecordingError: As `record_new`.
        """
        spool = self._spooling()
        for episode in episodes:
            spool.put(self.recorded, self._spooled(episode))
            self.recorded += 1
        return len(episodes)

    def close(self) -> None:
        """Wait until everything is written. Idempotent.

        Raises:
            RecordingError: If the converter has failed; its folder stays, for `recover_recording`.
        """
        spool, self._spool = self._spool, None
        if spool is None:
            return
        spool.end()
        self._converter.join()
        if self._converter.exitcode != 0 or spool.failure() is not None:
            raise self._failed(spool)
        spool.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except RecordingError as failure:
            if error is None:
                raise
            error.add_note(f"Recording failed as well: {failure}")

    # Inside

    def _spooling(self) -> Spool:
        if self._spool is None:
            raise EngineStateError("the recorder is closed")
        if not self._converter.is_alive():
            raise self._failed(self._spool)
        return self._spool

    def _failed(self, spool: Spool) -> RecordingError:
        reason = spool.failure() or f"the process ended with exit code {self._converter.exitcode}"
        last_line = reason.strip().splitlines()[-1]
        return RecordingError(
            f"{self.root} could not be written: {last_line}. {len(spool.pending())} episodes wait in {spool.folder}; "
            f"once the cause is removed, recover_recording({str(self.root)!r}) writes them.\n\n{reason}"
        )

    def _learn(self, episode: StoredEpisode) -> None:
        """Ask for the texts of ids that were not seen before."""
        for kind, number in _ids(episode):
            if number not in self._texts[kind]:
                ids = {f"{name}_index": np.array([] if name != kind else [number], np.int64) for name in self._texts}
                self._texts[kind][number] = self._engine.resolve_language(ids)[kind][0]

    def _spooled(self, episode: StoredEpisode) -> SpooledEpisode:
        language: dict[str, dict[int, str]] = {"task": {}, "subtask": {}}
        for kind, number in _ids(episode):
            language[kind][number] = self._texts[kind][number]
        return SpooledEpisode(
            columns=self._features.columns(episode.frames),
            task=next(iter(language["task"].values()), ""),
            language=language,
        )


def _meaning_of_actions(spec: RolloutSpec) -> dict[str, Any]:
    layout = spec.expert_action_spec
    return {
        "semantics": spec.action_semantics,
        "terms": [item.to_json() for item in spec.action_descriptors],
        "expert_action_spec": None if layout is None else layout.to_json(),
    }


def recover_recording(root: Path | str) -> int:
    """Finish a recording that was interrupted, and return how many episodes the dataset has.

    Do not call it while the recording's own process is still at work.

    Raises:
        FileNotFoundError: If no interrupted recording of this dataset is there.
        MissingExtraError: If LeRobot's SDK is not installed.
    """
    folder = spool_folder(Path(root))
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no interrupted recording of {root}: no folder {folder}")
    spool = Spool(folder)
    spool.forget_failure()
    episodes = convert(Path(root))
    spool.remove()
    return episodes


def _ids(episode: StoredEpisode) -> Iterator[tuple[str, int]]:
    for kind in ("task", "subtask"):
        for number in dict.fromkeys(episode.frames[f"{kind}_index",].tolist()):
            if number >= 0:
                yield kind, number


def _check_free(root: Path, folder: Path) -> None:
    if folder.exists():
        raise FileExistsError(
            f"{folder} is there: another recording of {root} is running, or was interrupted; finish it with "
            f"recover_recording({str(root)!r}), or delete the folder"
        )
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise FileExistsError(f"{root} is there and not empty; record into a new folder")


def _frames_per_second(step_s: float) -> int:
    rate = 1 / step_s
    if not math.isclose(rate, round(rate), rel_tol=_FPS_TOLERANCE) or round(rate) < 1:
        raise ValueError(f"step_dt={step_s} s is {rate:.6g} frames per second; LeRobot needs a whole number of them")
    return round(rate)

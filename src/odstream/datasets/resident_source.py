"""Sampling, accounting and saved positions of episodes that stay in memory, wherever they come from.

Letters as in `sequence`; ``R`` episodes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict

from odstream.cache.layout import Word
from odstream.datasets.resident import ResidentStore
from odstream.datasets.schema import data_schema_fingerprint
from odstream.datasets.sequence import SequenceSpecCfg, check_spec
from odstream.datasets.source_language import SourceLanguage
from odstream.datasets.source_state import STATE_FORMAT, check_state, digest_of
from odstream.engine.sampling import Sampler, WindowRequest, check_generator
from odstream.errors import SourceOwnershipError
from odstream.validation import INT64_MAX, check_int

__all__ = ["ResidentSource", "check_budget", "check_source_id", "source_run_id"]


class ResidentSource:
    """Contexts of fixed episodes in CPU memory, under the contract of `BatchSource`.

    Base of `TensorDataSource` and `LeRobotDataSource`. Windows are chosen, copied and accounted for by the code that
    samples a live engine: the same frames and the same generator yield the same batch, bit for bit.

    With budgets every episode may be selected ``episode_sample_budget`` times, ever: a context is one selection,
    whatever its length; a batch is debited as a whole once it is copied; nothing is refunded or assigned anew. Such a
    source samples only in the process that created it. Without budgets forked and spawned copies share the frames and
    draw at random, each differently; the spawned ones get them while they are being started, as workers of a
    ``DataLoader`` do.
    """

    def __init__(
        self,
        store: ResidentStore,
        *,
        schema: dict[str, Any],
        source_id: str,
        budget: tuple[int, int] | None,
        seed: int | None,
        language: SourceLanguage,
    ) -> None:
        self.schema = schema
        self.source_id = source_id
        self._store = store
        self._budget = budget
        self._language = language
        self._owner_pid = os.getpid()
        if budget is not None:
            store.assigned[store.valid_frames > 0] = budget[0]
        self._own: torch.Generator | None = torch.Generator()
        if seed is None:
            self._own.seed()
        else:
            self._own.manual_seed(check_int("seed", seed, 0))
        self._sampler: Sampler | None = None
        self._digest: str | None = None

    # What there is

    @property
    def num_episodes(self) -> int:
        """R."""
        return len(self._store.length)

    @property
    def num_frames(self) -> int:
        """Real frames of all episodes: every one can be the current frame of a context, unless its time is unknown."""
        return int(self._store.valid_frames.sum())

    def describe_episodes(self) -> list[dict[str, int]]:
        """Return ``episode_id, generation`` (-1 where the data knows none) and ``valid_frames`` of every episode."""
        store = self._store
        columns = {
            "episode_id": store.identity[:, 1].tolist(),
            "generation": store.generation.tolist(),
            "valid_frames": store.valid_frames.tolist(),
        }
        return [dict(zip(columns, line, strict=True)) for line in zip(*columns.values(), strict=True)]

    @property
    def resident_bytes(self) -> int:
        """Memory that the episodes take as long as the source lives."""
        return self._store.layout.nbytes

    # Sampling

    def sample_context(
        self, batch_size: int, spec: SequenceSpecCfg, *, generator: torch.Generator | None = None
    ) -> TensorDict:
        """Return ``B`` contexts as an owned TensorDict ``[B, L]``; see `BatchSource.sample_context`.

        An episode is drawn uniformly among those that have an eligible frame (and, with budgets, selections left),
        then the current frame uniformly within it.

        Raises:
            DataUnavailableError: If no episode has an eligible frame. Waiting does not help: the data is fixed.
            DataBudgetExhaustedError: If the eligible episodes cannot fund the whole batch. Nothing was debited.
            ValueError: If ``spec`` filters by generations or segments, and the data has none.
            SourceOwnershipError: If the source has budgets and this process did not create it.
        """
        check_int("batch_size", batch_size, 1)
        check_spec(spec)
        check_generator(generator)
        self._require_metadata(spec)
        if self._budget is not None:
            self._require_owner("sample_context()")
        request = WindowRequest(
            batch_size=batch_size,
            mode=spec.sampling_mode,
            anchor_frames=1,
            before=spec.history_length - 1,
            length=spec.length,
            padded=True,
            generations=spec.generations,
        )
        if self._sampler is None:
            self._sampler = self._new_sampler()
        owned = self._own if os.getpid() == self._owner_pid else None
        return self._sampler.draw(request, owned if generator is None else generator)

    def resolve_language(self, batch: Mapping[str, Any] | TensorDict) -> dict[str, Any]:
        """Return ``{"task": ..., "subtask": ...}``: the texts of a batch's ids, nested like its batch dimensions.

        Only the kinds whose ids the data has. Select frames by ``valid`` first.

        Raises:
            KeyError: If the data has texts of a kind, and the batch no ids of it.
            ValueError: If the source has no texts, or an id is padding or unknown.
        """
        return self._language.resolve(batch)

    # Accounting

    def get_sampling_budget_snapshot(self) -> dict[str, Any]:
        """Return the ledger, in the form in which an engine returns its own.

        ``rows`` lists ``run_id, episode_id, generation`` (-1 where the data knows none), ``slot`` (the position of the
        episode), ``assigned, delivered, remaining, locked``; beside it ``enabled, unlocked_remaining_chunks,
        total_delivered_chunks, episode_sample_budget, episode_sample_hard_limit``.
        """
        if self._budget is None:
            nothing = dict.fromkeys(
                (
                    "unlocked_remaining_chunks",
                    "total_delivered_chunks",
                    "episode_sample_budget",
                    "episode_sample_hard_limit",
                )
            )
            return {"enabled": False, "rows": [], **nothing}
        self._require_owner("get_sampling_budget_snapshot()")
        store = self._store
        with store.transaction():
            left = store.assigned - store.delivered
            columns = {
                "run_id": store.identity[:, 0].tolist(),
                "episode_id": store.identity[:, 1].tolist(),
                "generation": store.generation.tolist(),
                "slot": store.row_of_slot.tolist(),
                "assigned": store.assigned.tolist(),
                "delivered": store.delivered.tolist(),
                "remaining": left.tolist(),
            }
            unlocked, delivered = int(left[store.anchors > 0].sum()), int(store.words[Word.SAMPLED_CHUNKS])
        rows = [
            {**dict(zip(columns, line, strict=True)), "locked": False} for line in zip(*columns.values(), strict=True)
        ]
        return {
            "enabled": True,
            "rows": rows,
            "unlocked_remaining_chunks": unlocked,
            "total_delivered_chunks": delivered,
            "episode_sample_budget": self._budget[0],
            "episode_sample_hard_limit": self._budget[1],
        }

    # Saved positions

    def state_dict(self, *, generator: torch.Generator | None = None) -> dict[str, Any]:
        """Return all that is needed to go on elsewhere as if nothing had happened: numbers, strings and tensors.

        It holds the ledger, how far the random draws have come, and what the data is, not the data. ``torch.save`` can
        write it, and ``torch.load`` can read it with ``weights_only=True``.

        Args:
            generator: The generator that is passed to `sample_context`, if one is; its position is saved instead of
                that of the source's own.

        Raises:
            SourceOwnershipError: If this process did not create the source.
        """
        check_generator(generator)
        self._require_owner("state_dict()")
        assert self._own is not None
        store = self._store
        identity = self._identity()
        with store.transaction():
            return {
                "format": STATE_FORMAT,
                "identity": identity,
                "delivered": torch.from_numpy(store.delivered.copy()),
                "total_delivered": int(store.words[Word.SAMPLED_CHUNKS]),
                "budget": None if self._budget is None else list(self._budget),
                "generator": (self._own if generator is None else generator).get_state(),
                "generator_of": "source" if generator is None else "caller",
            }

    def load_state_dict(self, state: Mapping[str, Any], *, generator: torch.Generator | None = None) -> None:
        """Go on where `state_dict` was called: the next draws and debits are those that would have followed.

        Only a source that has not sampled yet accepts a state: loading never gives a selection back. Everything is
        checked first; after an error nothing has changed.

        Args:
            state: As `state_dict` returned it.
            generator: If the state was saved with the caller's generator: where to restore its position.

        Raises:
            ValueError: If the state is of other data, another schema, source id or budget, or is damaged; the message
                says what differs.
            RuntimeError: If the source has sampled before.
            SourceOwnershipError: If this process did not create the source.
        """
        check_generator(generator)
        self._require_owner("load_state_dict()")
        store = self._store
        check_state(state, self._identity(), self._budget, store.assigned)
        if store.words[Word.SAMPLED_CHUNKS]:
            raise RuntimeError(
                f"load_state_dict() needs a source that has not sampled yet, this one has delivered "
                f"{int(store.words[Word.SAMPLED_CHUNKS])} contexts; create a new one"
            )
        of_caller = state["generator_of"] == "caller"
        if of_caller != (generator is not None):
            raise ValueError(
                f"the state holds the position of the {'caller' if of_caller else 'source'}'s generator: "
                f"{'pass' if of_caller else 'do not pass'} generator="
            )
        target = generator if of_caller else self._own
        assert target is not None
        target.set_state(state["generator"])
        with store.transaction():
            store.delivered[:] = state["delivered"].numpy()
            store.words[Word.SAMPLED_CHUNKS] = state["total_delivered"]

    # Inside

    def _identity(self) -> dict[str, str]:
        if self._digest is None:
            self._digest = digest_of(self._store)
        return {"source_id": self.source_id, "schema": data_schema_fingerprint(self.schema), "data": self._digest}

    def _require_metadata(self, spec: SequenceSpecCfg) -> None:
        names = {field.key for field in self._store.layout.fields}
        if spec.generations is not None and ("ods_generation",) not in names:
            raise ValueError(f"generations={spec.generations} was asked for, but the data has no ods_generation")
        if spec.sampling_mode == "segment":
            missing = [name for name in ("segment_id", "segment_accepted") if (name,) not in names]
            if missing:
                raise ValueError(f"sampling_mode 'segment' needs fields that the data does not have: {missing}")

    def _require_owner(self, operation: str) -> None:
        if os.getpid() != self._owner_pid:
            raise SourceOwnershipError(
                f"{operation} works only in process {self._owner_pid}, which created the source and keeps its ledger; "
                f"this is process {os.getpid()}. Iterate with num_workers=0"
            )

    def _new_sampler(self) -> Sampler:
        return Sampler(self._store, budgeted=self._budget is not None, refill_after=None, check=_nothing_to_check)

    def __getstate__(self) -> dict[str, Any]:
        if self._budget is not None:
            raise SourceOwnershipError(
                "a source with budgets cannot be copied into another process, where its ledger would be doubled; "
                "iterate with num_workers=0, and save its position with state_dict()"
            )
        return {**self.__dict__, "_sampler": None, "_own": None}


def check_budget(budget: int | None, hard_limit: int | None, episodes: int) -> tuple[int, int] | None:
    """Return budget and limit if both are given and valid, None if neither is.

    Raises:
        TypeError, ValueError: As the engine's settings of these names.
    """
    if budget is None and hard_limit is None:
        return None
    if budget is None or hard_limit is None:
        raise ValueError(
            "episode_sample_budget and episode_sample_hard_limit must be given together or not at all, "
            f"got {budget!r} and {hard_limit!r}"
        )
    check_int("episode_sample_hard_limit", hard_limit, 1)
    check_int("episode_sample_budget", budget, 1)
    if budget > hard_limit:
        raise ValueError(f"episode_sample_budget must be at most episode_sample_hard_limit={hard_limit}, got {budget}")
    if budget * episodes > INT64_MAX:
        raise ValueError(f"episode_sample_budget={budget} times {episodes} episodes is more than can be counted")
    return budget, hard_limit


def check_source_id(source_id: object) -> str:
    """Return ``source_id`` if it is a non-blank string."""
    if not isinstance(source_id, str) or not source_id.strip():
        raise ValueError(f"source_id must be a non-blank string, the same for the same data, got {source_id!r}")
    return source_id


def source_run_id(source_id: str) -> int:
    """Return the run number for frames that were recorded without one: the same for the same ``source_id``."""
    return int.from_bytes(hashlib.sha256(source_id.encode()).digest()[:8], "big") >> 2


def _nothing_to_check() -> None:
    """Fixed data has no producer that could have failed."""

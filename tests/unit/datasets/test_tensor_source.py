"""Resident tensors under the contract of sources."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from odstream.datasets import BatchSource, SequenceSpecCfg, TensorDataSource
from odstream.errors import DataBudgetExhaustedError, DataUnavailableError
from tests.fakes.cache import Cache, Published, Row, context, seeded
from tests.fakes.sources import SCHEMA, episode, padded

pytestmark = pytest.mark.spec("SRC-05")

ROWS = (
    Row(7, segments=(3, 5), accepted=(True, False, True)),
    Row(12, gaps=(4, 5), continuity=(0,) * 8 + (1,) * 4, task=3),
    Row(2),
    Row(9, continuity=(0, 0, -1, -1, 1, 1, 1, 2, 2)),
)
SIMPLE = {
    "observation": {"names": ["o"]},
    "action": {"shape": [], "semantics": "count", "step_dt": 1},
}


def published(*rows: Row, **cache: Any) -> tuple[Cache, list[Published]]:
    stored = Cache(slots=len(rows), **cache)
    return stored, stored.fill(*rows)


def resident(data: Any, **more: Any) -> TensorDataSource:
    return TensorDataSource(data, **({"schema": SCHEMA, "source_id": "tests"} | more))


def simple(*lengths: int, **more: Any) -> TensorDataSource:
    """Episodes whose observation at frame t of episode e is ``100 * e + t + 1``."""
    return resident([plain(length, index) for index, length in enumerate(lengths)], schema=SIMPLE, **more)


def plain(length: int, index: int = 0, **fields: torch.Tensor) -> TensorDict:
    number = 100 * index + torch.arange(length) + 1.0
    return TensorDict({"obs": number[:, None], "actions": number + 0.5, **fields}, batch_size=(length,))


def draw(source: TensorDataSource, batch_size: int, spec: SequenceSpecCfg, seed: int = 0) -> TensorDict:
    return source.sample_context(batch_size, spec, generator=seeded(seed))


# ---------------------------------------------------------------- the same as a live engine


@pytest.mark.spec("SRC-07", "SRC-08", "CTX-02", "CTX-03")
@pytest.mark.parametrize("as_rows", [False, True], ids=["episodes", "padded rows"])
@pytest.mark.parametrize("mode", ["episode", "segment"])
@pytest.mark.parametrize(("history", "horizon"), [(1, 1), (2, 4), (5, 3), (40, 90)])
def test_the_same_frames_and_generator_yield_what_the_engine_yields(
    as_rows: bool, mode: Any, history: int, horizon: int
) -> None:
    cache, rows = published(*ROWS)
    episodes = [episode(row) for row in rows]
    source = resident(padded(episodes, 20) if as_rows else episodes)
    assert isinstance(source, BatchSource)
    live_generator, generator = seeded(5), seeded(5)
    for _ in range(3):
        live = cache.sampler().draw(context(64, history, horizon, mode), live_generator)
        batch = source.sample_context(64, SequenceSpecCfg(history, horizon, mode), generator=generator)
        for key in live.keys(include_nested=True, leaves_only=True):
            assert torch.equal(batch[key], live[key]), key
            assert batch[key].dtype == live[key].dtype
        ids = torch.stack([live[f"ods_{name}"] for name in ("run_id", "episode_id", "frame_index")], -1)
        assert torch.equal(batch["frame_ids"], ids)
    assert torch.equal(live_generator.get_state(), generator.get_state())


@pytest.mark.spec("QUOTA-08", "QUOTA-07")
def test_budgets_are_spent_as_the_engine_spends_them() -> None:
    cache, rows = published(*ROWS, budget=9)
    source = resident([episode(row) for row in rows], episode_sample_budget=9, episode_sample_hard_limit=20)
    sampler, live_generator, generator = cache.sampler(), seeded(1), seeded(1)
    for _ in range(7):
        live = sampler.draw(context(5, 2, 3), live_generator)
        batch = source.sample_context(5, SequenceSpecCfg(2, 3), generator=generator)
        assert torch.equal(batch["frame_ids"][..., 2], live["ods_frame_index"])
    ledger = source.get_sampling_budget_snapshot()
    assert {line["episode_id"]: line["delivered"] for line in ledger["rows"]} == cache.delivered()
    assert ledger["total_delivered_chunks"] == 35 == sum(line["delivered"] for line in ledger["rows"])
    with pytest.raises(DataBudgetExhaustedError, match="1 selections left, the batch needs 5"):
        source.sample_context(5, SequenceSpecCfg(2, 3))
    assert source.get_sampling_budget_snapshot() == ledger


def test_every_real_frame_is_reached_and_nothing_else() -> None:
    source = simple(3, 4, 5)
    batch = draw(source, 600, SequenceSpecCfg(1, 1))
    reached = {tuple(ids) for ids in batch["frame_ids"][:, 0, 1:].tolist()}
    assert reached == {(row, frame) for row, length in enumerate((3, 4, 5)) for frame in range(length)}
    assert torch.equal(batch["obs"][:, 0, 0], 100.0 * batch["frame_ids"][:, 0, 1] + batch["frame_ids"][:, 0, 2] + 1)


@pytest.mark.spec("CTX-03")
def test_windows_that_reach_far_over_short_episodes_hold_padding_alone() -> None:
    batch = draw(simple(1, 2, 300, 1), 200, SequenceSpecCfg(50, 80))
    valid = batch["valid"]
    assert valid[:, 49].all()
    for name, padding in (("obs", 0), ("actions", 0), ("frame_ids", -1)):
        assert (batch[name][~valid] == padding).all()
    lengths = torch.tensor([1, 2, 300, 1])[batch["frame_ids"][:, 49, 1]]
    anchor = batch["frame_ids"][:, 49, 2]
    assert torch.equal(valid.sum(1), (anchor + 1).clamp(max=50) + (lengths - anchor - 1).clamp(max=79))


@pytest.mark.spec("CTX-03")
def test_every_anchor_of_a_short_episode_has_a_real_target() -> None:
    """Field cases W05 and N05."""
    batch = draw(simple(3), 200, SequenceSpecCfg(1, 10))
    first = {int(frame): batch[index] for index, frame in enumerate(batch["frame_ids"][:, 0, 2])}
    assert sum(int(item["valid"].sum()) for item in first.values()) == 6
    assert sum(int(item["loss_mask"].sum()) for item in first.values()) == 6
    assert batch["loss_mask"].any(1).all()


@pytest.mark.spec("CTX-03")
def test_a_masked_loss_counts_real_targets_alone() -> None:
    """Field case W15."""
    actions = torch.zeros(3, 4)
    source = TensorDataSource(
        [TensorDict({"obs": torch.zeros(3, 1), "actions": actions}, batch_size=(3,))],
        schema={"observation": {"shape": [1]}, "action": {"shape": [4], "semantics": "x", "step_dt": 0.1}},
        source_id="w15",
    )
    batch = source.sample_context(64, SequenceSpecCfg(1, 5))
    last = batch[batch["frame_ids"][:, 0, 2] == 2][0]
    prediction = torch.where(last["loss_mask"][:, None], torch.ones(5, 4), torch.full((5, 4), 1e6))
    mask = last["loss_mask"][:, None].expand(5, 4)
    error = (prediction - last["actions"]).abs()
    assert int(mask.sum()) == 4
    assert float(torch.where(mask, error, 0.0).sum() / mask.sum()) == 1.0


def test_samples_are_owned_and_so_is_the_data() -> None:
    data = [plain(5)]
    source = resident(data, schema=SIMPLE)
    data[0]["obs"].fill_(7)
    first = draw(source, 50, SequenceSpecCfg(2, 2))
    kept = first.clone()
    first["obs"].fill_(-3)
    second = draw(source, 50, SequenceSpecCfg(2, 2))
    assert all(torch.equal(second[key], kept[key]) for key in kept.keys())


@pytest.mark.spec("SRC-05")
def test_scalars_and_single_columns_keep_their_axes() -> None:
    """Field case L07."""
    data = TensorDict({"obs": torch.ones(5), "actions": torch.ones(5, 1)}, batch_size=(5,))
    schema = {"observation": {"shape": []}, "action": {"names": ["x"], "semantics": "x", "step_dt": 1}}
    batch = resident([data], schema=schema).sample_context(3, SequenceSpecCfg(2, 2))
    assert tuple(batch["obs"].shape) == (3, 3) and tuple(batch["actions"].shape) == (3, 3, 1)


@pytest.mark.spec("ENG-21")
def test_large_integers_survive_exactly() -> None:
    """Field case N03."""
    stamp = 1_700_000_000_000_000_001
    data = [plain(4, row, ods_accepted_at_ns=torch.full((4,), stamp + row)) for row in range(2)]
    batch = draw(resident(data, schema=SIMPLE), 64, SequenceSpecCfg(3, 3))
    times = torch.stack(list(batch["ods_accepted_at_ns"]))
    assert set(times[batch["valid"]].tolist()) == {stamp, stamp + 1}
    assert (times[~batch["valid"]] == -1).all()


# ---------------------------------------------------------------- filters


@pytest.mark.spec("CTX-04")
def test_a_filter_by_generations_needs_generations() -> None:
    with pytest.raises(ValueError, match=r"generations=\(1,\) was asked for, but the data has no ods_generation"):
        simple(4).sample_context(1, SequenceSpecCfg(1, 1, generations=(1,)))
    cache, rows = published(Row(4), Row(4))
    rows.append(cache.publish(Row(4), slot=0, generation=2))
    source = resident([episode(row) for row in rows])
    batch = draw(source, 50, SequenceSpecCfg(1, 1, generations=(2,)))
    assert set(batch["frame_ids"][:, 0, 1].tolist()) == {2}
    with pytest.raises(DataUnavailableError, match=r"asked for generations \(3,\), readable are \[1, 2\]"):
        draw(source, 1, SequenceSpecCfg(1, 1, generations=(3,)))


def test_segment_mode_needs_segments() -> None:
    with pytest.raises(ValueError, match=r"does not have: \['segment_id', 'segment_accepted'\]"):
        simple(4).sample_context(1, SequenceSpecCfg(1, 1, "segment"))


@pytest.mark.spec("QUOTA-05")
def test_data_without_an_eligible_frame_is_unavailable_before_budgets_are_looked_at() -> None:
    unusable = plain(3, continuity_id=torch.full((3,), -1))
    source = resident([unusable], schema=SIMPLE, episode_sample_budget=1, episode_sample_hard_limit=1)
    with pytest.raises(DataUnavailableError, match="none of 1 episodes"):
        source.sample_context(5, SequenceSpecCfg(1, 1))
    assert source.get_sampling_budget_snapshot()["unlocked_remaining_chunks"] == 0


# ---------------------------------------------------------------- what is refused


def frame_ids(*rows: tuple[int, int, int]) -> torch.Tensor:
    return torch.tensor(rows)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([plain(3), plain(3)[:, None]], r"data\[1\] must have the axis \[frames\]"),
        ([], "at least one episode, got none"),
        ([TensorDict({"obs": torch.zeros(3, 1)}, batch_size=(3,))], r"data\[0\] has no actions; it has \['obs'\]"),
        (torch.stack([plain(3)]), r"data \[N, T\] needs a field valid"),
        (plain(3), r"data must have the axes \[episodes, frames\], none of them empty, got \(3,\)"),
        ([plain(3, valid=torch.zeros(3, dtype=torch.bool))], "valid is False everywhere"),
        ([plain(3, valid=torch.ones(3))], "valid of episode 0 must be bool"),
        ([plain(3), plain(3, extra=torch.zeros(3))], r"episode 1 differs from 0 in \['extra'\]"),
        (
            [plain(3), plain(3, extra=torch.zeros(3)).exclude("extra").double()],
            r"differs from 0 in \['actions', 'obs'\]",
        ),
        ([plain(3, extra=torch.zeros(3, 0))], "extra must not be empty"),
        ([plain(3, loss_mask=torch.ones(3, dtype=torch.bool))], "loss_mask must not be given"),
        ([plain(3, continuity_id=torch.zeros(3, dtype=torch.int32))], "continuity_id must be int64"),
        ([plain(3, ods_run_id=torch.zeros(3, 1, dtype=torch.int64))], "ods_run_id must be int64 of the shape"),
        ([plain(3, extra=torch.zeros(3, dtype=torch.bfloat16))], "extra of episode 0 has the dtype torch.bfloat16"),
        ([plain(3, extra=torch.zeros(3, device="meta"))], "extra of episode 0 must be on the CPU, it is on meta"),
        ([plain(3, extra=torch.tensor([0, math.nan, 0]))], "extra must be finite in real frames; episode 0, frame 1"),
        ([plain(3), plain(3, 1) * math.inf], "obs must be finite in real frames; episode 1, frame 0"),
        (
            [plain(2, frame_ids=frame_ids((1, 1, 0), (1, 1, 1))), plain(2, frame_ids=frame_ids((1, 1, 5), (1, 1, 6)))],
            "episodes 0 and 1 are both episode 1 of run 1",
        ),
        ([plain(2, frame_ids=frame_ids((1, 1, 0), (1, 2, 1)))], "episode 0 changes its run or episode .* at frame 1"),
        ([plain(2, frame_ids=frame_ids((1, 1, 3), (1, 1, 3)))], "episode 0 has a frame number that does not rise"),
        ([plain(2, frame_ids=frame_ids((1, 1, 0), (1, 1, 2)))], "episode 0 leaves out frame numbers, .* at frame 1"),
        ([plain(2, frame_ids=frame_ids((1, -1, 0), (1, -1, 1)))], "episode 0 has a negative number in frame_ids"),
        ([plain(2, ods_generation=torch.tensor([1, 2]))], "episode 0 changes its ods_generation, at frame 1"),
        ([plain(2, ods_generation=torch.tensor([0, 0]))], "episode 0 has an ods_generation below 1"),
    ],
)
def test_data_that_is_not_in_order_is_refused(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resident(data, schema=SIMPLE)


def test_a_jump_in_time_that_is_declared_is_accepted() -> None:
    ids = frame_ids((1, 1, 0), (1, 1, 2), (1, 1, 3))
    source = resident([plain(3, frame_ids=ids, continuity_id=torch.tensor([0, 1, 1]))], schema=SIMPLE)
    batch = draw(source, 60, SequenceSpecCfg(2, 1))
    pairs = {tuple(pair) for pair in batch["frame_ids"][..., 2].tolist()}
    assert pairs == {(-1, 0), (-1, 2), (2, 3)}


def test_what_lies_in_frames_that_are_not_real_does_not_matter_and_is_not_returned() -> None:
    valid = torch.tensor([True, False, True])
    data = plain(3, valid=valid)
    data["obs"][1] = math.nan
    data["actions"][1] = 1e30
    batch = draw(resident([data], schema=SIMPLE), 60, SequenceSpecCfg(2, 2))
    assert batch["obs"].isfinite().all() and batch["actions"].max() < 1e3
    assert set(batch["valid"].sum(1).tolist()) == {1}


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"source_id": " "}, ValueError, "source_id must be a non-blank string"),
        ({"episode_sample_budget": 3}, ValueError, "must be given together or not at all, got 3 and None"),
        (
            {"episode_sample_budget": 3, "episode_sample_hard_limit": 2},
            ValueError,
            "must be at most episode_sample_hard_limit=2, got 3",
        ),
        ({"episode_sample_budget": 0, "episode_sample_hard_limit": 2}, ValueError, "episode_sample_budget must be at"),
        ({"episode_sample_budget": True, "episode_sample_hard_limit": 2}, TypeError, "must be an int, got True"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"schema": {}}, ValueError, r"schema\.observation is missing"),
        ({"schema": SCHEMA}, ValueError, r"obs has the shape \(1,\) per frame"),
        ({"language": {"goal": {0: "x"}}}, ValueError, "no kinds but task, subtask, got 'goal'"),
        ({"language": {"task": {-1: "x"}}}, ValueError, "must be at least 0, got -1"),
        ({"language": {"task": {0: ""}}}, TypeError, r"language\['task'\]\[0\] must be a non-blank string"),
        ({"language": {"task": {"0": "x"}}}, TypeError, "must be ints, got '0'"),
    ],
)
def test_arguments_out_of_range_are_refused(more: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        simple(4, **more) if "schema" not in more else resident([plain(4)], **more)


def test_data_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(TypeError, match="data must be a TensorDict or a sequence of TensorDicts, got dict"):
        resident({"obs": torch.zeros(3, 1)})
    with pytest.raises(TypeError, match=r"data\[0\] must be a TensorDict, got Tensor"):
        resident([torch.zeros(3)])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda source: source.sample_context(0, SequenceSpecCfg(1, 1)), ValueError, "batch_size must be at least 1"),
        (lambda source: source.sample_context(True, SequenceSpecCfg(1, 1)), TypeError, "batch_size must be an int"),
        (lambda source: source.sample_context(1, {"history_length": 1}), TypeError, "spec must be a SequenceSpecCfg"),
        (lambda source: source.sample_context(1, SequenceSpecCfg(1, 1), generator=3), TypeError, "generator must be a"),
    ],
)
def test_calls_out_of_range_are_refused(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call(simple(3))


# ---------------------------------------------------------------- randomness, language, memory


def test_a_seeded_generator_repeats_and_the_global_one_is_not_touched() -> None:
    """Field case S06."""
    source, before = simple(30, 40), torch.get_rng_state()
    first, second = ([draw(source, 8, SequenceSpecCfg(2, 2), 7)["frame_ids"] for _ in range(1)] for _ in range(2))
    generators = seeded(7), seeded(7)
    for _ in range(100):
        left, right = (source.sample_context(4, SequenceSpecCfg(2, 2), generator=one) for one in generators)
        assert torch.equal(left["frame_ids"], right["frame_ids"])
    assert torch.equal(first[0], second[0])
    source.sample_context(4, SequenceSpecCfg(2, 2))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_source_has_a_generator_of_its_own_that_can_be_seeded() -> None:
    spec = SequenceSpecCfg(1, 1)
    first, second, other = (simple(500, seed=seed).sample_context(32, spec)["frame_ids"] for seed in (3, 3, 4))
    assert torch.equal(first, second) and not torch.equal(first, other)
    unseeded = [simple(500).sample_context(32, spec)["frame_ids"] for _ in range(2)]
    assert not torch.equal(*unseeded)


def test_frame_ids_of_data_without_identity_follow_from_the_source_id() -> None:
    first, same, other = (draw(simple(4, source_id=name), 1, SequenceSpecCfg(1, 1)) for name in ("a", "a", "b"))
    runs = [int(batch["frame_ids"][0, 0, 0]) for batch in (first, same, other)]
    assert runs[0] == runs[1] != runs[2] and min(runs) >= 0


def test_texts_are_resolved_for_real_frames() -> None:
    data = plain(2, task_index=torch.tensor([1, 1]))
    source = resident([data], schema=SIMPLE, language={"task": {0: "pick", 1: "place"}})
    batch = source.sample_context(2, SequenceSpecCfg(1, 1))
    assert source.resolve_language(batch) == {"task": [["place"], ["place"]]}
    with pytest.raises(ValueError, match="task_index -1 is padding"):
        source.resolve_language(draw(source, 2, SequenceSpecCfg(9, 1)))
    with pytest.raises(ValueError, match="task_index 5 is unknown; there are 2 task texts"):
        source.resolve_language({"task_index": torch.tensor([5])})
    with pytest.raises(ValueError, match="the source has no texts"):
        simple(2).resolve_language(batch)


def test_one_long_episode_does_not_make_the_others_as_long() -> None:
    frame_bytes = 4 + 4 + 1 + 24  # obs, actions, valid, frame_ids
    uneven = simple(*[20] * 500, 10_000)
    payload = uneven.num_frames * frame_bytes
    assert uneven.num_frames == 20_000
    assert payload < uneven.resident_bytes < 1.6 * payload  # padded to the longest it would be 250 times
    assert uneven.resident_bytes - 501 * 136 < 1.36 * payload


def test_two_sources_keep_a_ledger_each() -> None:
    """Field case X08."""
    first, second = (simple(5, 5, episode_sample_budget=2, episode_sample_hard_limit=2) for _ in range(2))
    first.sample_context(3, SequenceSpecCfg(1, 1))
    assert first.get_sampling_budget_snapshot()["unlocked_remaining_chunks"] == 1
    assert second.get_sampling_budget_snapshot()["unlocked_remaining_chunks"] == 4
    assert simple(5).get_sampling_budget_snapshot() == {
        "enabled": False,
        "rows": [],
        "unlocked_remaining_chunks": None,
        "total_delivered_chunks": None,
        "episode_sample_budget": None,
        "episode_sample_hard_limit": None,
    }

"""The small learner: what it minimises, and its checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from odstream.envs.franka.policy import (
    ChunkPolicy,
    Learner,
    LearnerCfg,
    PolicyCfg,
    load_policy,
    masked_l1,
    save_policy,
)

pytestmark = pytest.mark.franka

CFG = PolicyCfg(observation_dim=3, action_dim=4, history=2, chunk=5, width=8)


def context(length: int, anchor: int) -> dict[str, Tensor]:
    """One context of an episode of ``length`` frames: observation t, action t."""
    frames = torch.arange(anchor - 1, anchor + 5)
    valid = (frames >= 0) & (frames < length)
    loss_mask = valid.clone()
    loss_mask[0] = False
    numbers = torch.where(valid, frames, 0).float()[None, :, None]
    return {
        "obs": numbers.expand(1, 6, 3).clone(),
        "actions": numbers.expand(1, 6, 4).clone(),
        "valid": valid[None],
        "loss_mask": loss_mask[None],
    }


def blind_policy(output: float) -> ChunkPolicy:
    """A policy that predicts the same number whatever it sees."""
    policy = ChunkPolicy(CFG)
    with torch.no_grad():
        policy.layers[-1].weight.zero_()
        policy.layers[-1].bias.fill_(output)
    return policy


def test_padding_counts_neither_in_the_error_nor_in_the_mean() -> None:
    """Field case W15."""
    batch = context(length=3, anchor=2)
    batch["actions"][~batch["valid"]] = 1e6
    assert blind_policy(1.0).loss(batch).item() == pytest.approx(1.0)  # the one real target is 2


def test_the_loss_covers_the_current_and_the_future_actions() -> None:
    loss = blind_policy(0.0).loss(context(length=10, anchor=2)).item()
    assert loss == pytest.approx((2 + 3 + 4 + 5 + 6) / 5)


def test_the_first_frame_is_its_own_history() -> None:
    policy = ChunkPolicy(CFG)
    batch = context(length=10, anchor=0)
    batch["obs"][:, 1:] = 0.7
    expected = batch["actions"][:, 1:] - policy(torch.full((1, 2, 3), 0.7))
    assert policy.loss(batch).item() == pytest.approx(expected.abs().mean().item())


def test_normalisation_looks_at_real_frames_and_has_a_floor() -> None:
    policy = ChunkPolicy(CFG)
    batch = context(length=3, anchor=2)
    batch["obs"][~batch["valid"]] = 1e6
    policy.freeze_normalisation(batch)
    assert policy.get_buffer("observation_mean").tolist() == [1.5] * 3
    batch["obs"][:] = 1.0
    policy.freeze_normalisation(batch)
    assert policy.get_buffer("observation_std").tolist() == pytest.approx([0.02] * 3)


def test_actions_stay_within_their_range() -> None:
    actions = blind_policy(40.0).act(torch.zeros(2, 2, 3))
    assert actions.shape == (2, 5, 4)
    assert actions.eq(1.0).all()


def test_learning_reduces_the_loss_and_the_learning_rate_ends_small() -> None:
    torch.manual_seed(0)
    learner = Learner(ChunkPolicy(CFG), LearnerCfg(learning_rate=1e-2, observation_noise=0.0))
    batch = context(length=10, anchor=2)
    losses = [learner.update(batch, step / 300) for step in range(301)]
    assert losses[-1] < 0.1 * losses[0]
    assert learner.learning_rate == pytest.approx(2e-4)


def test_a_checkpoint_gives_back_the_same_policy(tmp_path: Path) -> None:
    torch.manual_seed(0)
    policy = ChunkPolicy(CFG)
    policy.freeze_normalisation(context(length=10, anchor=2))
    save_policy(policy, tmp_path / "policy.pt")
    loaded = load_policy(tmp_path / "policy.pt")
    seen = torch.randn(4, 2, 3)
    assert torch.equal(loaded.act(seen), policy.act(seen))
    assert loaded.cfg == CFG


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    torch.save({"format": 99}, tmp_path / "policy.pt")
    with pytest.raises(ValueError, match="checkpoint format 99; this version reads 2"):
        load_policy(tmp_path / "policy.pt")


def test_the_masked_mean_divides_by_the_real_elements() -> None:
    """Field case W15."""
    targets = torch.full((1, 5, 4), 1e6)
    targets[:, 0] = 2.0
    mask = torch.tensor([[True, False, False, False, False]])
    mean, elements = masked_l1(torch.ones(1, 5, 4), targets, mask)
    assert (mean.item(), elements) == (1.0, 4)


@pytest.mark.parametrize("padding", [0.0, float("nan"), float("inf")])
def test_a_batch_without_real_targets_teaches_nothing(padding: float) -> None:
    """Field case N05."""
    predicted = torch.ones(2, 5, 4, requires_grad=True)
    targets = torch.full((2, 5, 4), padding)
    mean, elements = masked_l1(predicted, targets, torch.zeros(2, 5, dtype=torch.bool))
    mean.backward()  # type: ignore[no-untyped-call]
    assert (mean.item(), elements) == (0.0, 0)
    assert predicted.grad is not None
    assert predicted.grad.eq(0.0).all()


def test_a_learner_goes_on_where_it_was_saved() -> None:
    batch = context(length=10, anchor=2)
    cfg = LearnerCfg(observation_noise=0.0)
    torch.manual_seed(0)
    first = Learner(ChunkPolicy(CFG), cfg)
    for step in range(5):
        first.update(batch, step / 10)
    saved = copy.deepcopy(first.state_dict())
    for step in range(5, 10):
        first.update(batch, step / 10)
    second = Learner(ChunkPolicy(CFG), cfg)
    second.load_state_dict(saved)
    for step in range(5, 10):
        second.update(batch, step / 10)
    torch.testing.assert_close(second.state_dict(), first.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("field", ["task", "schema", "action_contracts"])
def test_a_checkpoint_that_belongs_elsewhere_is_refused(tmp_path: Path, field: str) -> None:
    path = tmp_path / "policy.pt"
    save_policy(ChunkPolicy(CFG), path)
    torch.save({**torch.load(path, weights_only=True), field: "another"}, path)
    with pytest.raises(ValueError, match=f"of another {field}: 'another', this is"):
        load_policy(path)


class Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return exec, ("raise SystemExit('code of a checkpoint was run')",)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    torch.save({"format": 2, "state": Trap()}, path)
    with pytest.raises(ValueError, match="is not read"):
        load_policy(path)
    path.write_text("not a checkpoint")
    with pytest.raises(ValueError, match="no checkpoint"):
        load_policy(path)
    with pytest.raises(FileNotFoundError):
        load_policy(tmp_path / "nothing.pt")


def test_a_binary_entry_is_commanded_as_the_nearer_end_and_the_others_as_predicted() -> None:
    policy = ChunkPolicy(PolicyCfg(observation_dim=3, action_dim=2, chunk=2, width=8, binary_actions=(1,)))
    with torch.no_grad():
        policy.layers[-1].weight.zero_()
        policy.layers[-1].bias.copy_(torch.tensor([0.25, 0.25, -0.5, -0.5]))
    actions = policy.act(torch.zeros(1, 2, 3))
    assert actions[0].tolist() == [[0.25, 1.0], [-0.5, -1.0]]


@pytest.mark.parametrize("damage", [{"cfg": {"width": 3}}, {"state": {}}, {"cfg": None}])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: dict[str, object]) -> None:
    path = tmp_path / "policy.pt"
    save_policy(ChunkPolicy(CFG), path)
    torch.save({**torch.load(path, weights_only=True), **damage}, path)
    with pytest.raises(ValueError, match=r"policy\.pt is damaged"):
        load_policy(path)


def test_a_checkpoint_of_weights_that_are_not_finite_is_refused(tmp_path: Path) -> None:
    policy = ChunkPolicy(CFG)
    with torch.no_grad():
        policy.layers[-1].bias[0] = torch.nan
    save_policy(policy, tmp_path / "policy.pt")
    with pytest.raises(ValueError, match=r"policy\.pt is of a training that went wrong: layers\.\d+\.bias has numbers"):
        load_policy(tmp_path / "policy.pt")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LearnerCfg(learning_rate=float("nan")), "learning_rate must be finite and greater than 0, got nan"),
        (lambda: LearnerCfg(weight_decay=float("inf")), "weight_decay must be finite"),
        (lambda: LearnerCfg(observation_noise=-1.0), "observation_noise must be finite and greater than 0, got -1.0"),
        (lambda: PolicyCfg(observation_dim=3, action_dim=2, history=0), "history must be at least 1"),
        (lambda: PolicyCfg(observation_dim=3, action_dim=2, width=-1), "width must be at least 1, got -1"),
        (lambda: PolicyCfg(observation_dim=3, action_dim=2, binary_actions=(2,)), "binary_actions must be at least 0"),
    ],
)
def test_settings_that_cannot_train_are_refused_by_name(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()

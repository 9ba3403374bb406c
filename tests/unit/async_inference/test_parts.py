from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from examples.async_inference.channel import Slots
from examples.async_inference.fleet import Batch
from examples.async_inference.learner import Learner, LearnerCfg
from examples.async_inference.metrics import Metrics
from examples.async_inference.models import STOP, Target, TargetCfg
from examples.async_inference.settings import Settings, read_settings
from odstream.cli.debug import DebugCfg

TARGET = TargetCfg(vocabulary=12, width=16, max_tokens=20, min_tokens=5)


def test_a_sequence_ends_with_its_first_stop_and_is_as_long_as_it_says() -> None:
    tokens, hidden, lengths = Target(TARGET).generate(200, torch.Generator().manual_seed(1))
    assert (tokens.shape, hidden.shape) == ((200, 20), (200, 20, 16))
    assert lengths.min() >= TARGET.min_tokens and lengths.max() <= TARGET.max_tokens and len(lengths.unique()) > 3
    for sequence, length in zip(tokens.tolist(), lengths.tolist(), strict=True):
        assert STOP not in sequence[: length - 1]
        assert length == TARGET.max_tokens or sequence[length - 1] == STOP


def test_hidden_states_are_those_of_the_target_and_the_same_in_every_process() -> None:
    tokens, hidden, lengths = Target(TARGET).generate(4, torch.Generator().manual_seed(2))
    other = Target(TARGET)
    state = torch.zeros(4, TARGET.width)
    for place in range(int(lengths.min())):
        state = other.cell(other.embed(tokens[:, place]), state)
        assert torch.equal(state, hidden[:, place])


def test_what_lies_beyond_a_length_changes_no_loss_and_no_weight() -> None:
    batch = Batch(*Target(TARGET).generate(6, torch.Generator().manual_seed(3)))
    beyond = torch.arange(TARGET.max_tokens) >= batch.lengths[:, None]
    assert beyond.any()
    dirty = batch._replace(
        tokens=batch.tokens.masked_fill(beyond, 7), hidden=batch.hidden.masked_fill(beyond[..., None], 9.0)
    )
    learners = [Learner(LearnerCfg(width=16), TARGET, torch.device("cpu")) for _ in range(2)]
    for _ in range(3):
        clean, other = (learner.update(one) for learner, one in zip(learners, (batch, dirty), strict=True))
        assert other == pytest.approx(clean, rel=1e-5)


def test_the_draft_learns_what_the_target_would_say() -> None:
    target, generator = Target(TARGET), torch.Generator().manual_seed(4)
    learner = Learner(LearnerCfg(width=32), TARGET, torch.device("cpu"))
    found = [learner.update(Batch(*target.generate(32, generator))) for _ in range(60)]
    assert found[-1][0] < 0.5 * found[0][0]
    assert found[-1][1] > found[0][1]


def test_slots_are_shared_memory_that_has_no_name() -> None:
    slots = Slots.allocate(2, 3, TARGET)
    assert slots.hidden.is_shared() and slots.tokens.is_shared() and slots.lengths.is_shared()
    sequences = Target(TARGET).generate(3, torch.Generator().manual_seed(5))
    slots.write(1, sequences)
    assert torch.equal(slots.hidden[1], sequences.hidden)
    assert not slots.hidden[0].any()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("engine.slots=1", "engine.slots=1 are too few for one engine alone to fill a batch: .*no batch could ever"),
        ("batch_size=27", "pool_capacity must be at least 34, got 32"),
        ("engine.slot=4", r"engine has an unknown field 'slot' \(close to 'slots'\)"),
        ("debug.enable_metrics=true", r"unknown field 'enable_metrics' \(close to 'enable_perf_metrics'\)"),
        ("learner=5", "learner must be a mapping of settings, got 5"),
        ("engine.count=0", "engine.count must be at least 1"),
        ("learner.learning_rate=0", "learner.learning_rate must be finite and greater than 0"),
        ("target.min_tokens=99", "target.min_tokens must be at least 3 and at most 32, got 99"),
        ("device=nowhere", "device must be auto, cpu or a device that is there, got 'nowhere'"),
        ("debug.selections_per_episode=2", "each sequence is trained on once"),
        ("epochs", "an override must be key=value, got 'epochs'"),
        ("epochs=[", "the settings are no YAML|the settings cannot be resolved"),
    ],
)
def test_what_cannot_run_is_refused_in_words(override: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_settings(None, [override])


def test_the_command_line_goes_before_the_file_and_the_file_before_the_smoke_run(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("epochs: 7\nbatch_size: 4\nengine: {count: 3}\ndebug: {enable_perf_metrics: true}\n", "utf-8")
    found = read_settings(file, ["batch_size=2"], smoke=True)
    assert (found.epochs, found.batch_size, found.engine.count, found.steps_per_epoch) == (7, 2, 3, 50)
    assert found.debug.enable_perf_metrics and found.debug.window_s == 0.5
    assert read_settings(None, []) == Settings()
    assert not Settings().debug.enable_perf_metrics, "off is the default"
    for text in ("- 1\n", "a: [\n"):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match="the settings"):
            read_settings(file, [])


def test_settings_that_fit_are_those_that_one_engine_alone_can_serve() -> None:
    fits = replace(Settings(), batch_size=24, debug=DebugCfg(enable_perf_metrics=True))
    assert fits.engine.slots * fits.engine.sequences == 32


def test_a_sink_that_cannot_start_leaves_no_run_directory(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="needs the extra `prometheus`")
    output = tmp_path / "run"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        sinks = f"debug.sink_settings={{prometheus: {{port: {taken.getsockname()[1]}}}}}"
        found = read_settings(None, [f"output={output}", "debug.sinks=[jsonl, prometheus]", sinks])
        with pytest.raises(RuntimeError, match="the sink 'prometheus' could not start"):
            Metrics(found, torch.device("cpu"))
    assert not output.exists()

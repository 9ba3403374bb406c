"""throughput.json and plan.json are read strictly, and a plan is explained."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odstream.calibration import (
    PlanInputs,
    explain_plan,
    measure_throughput,
    plan_from_json,
    plan_to_json,
    render_plan,
    throughput_from_json,
    throughput_to_json,
    what_would_change,
)
from odstream.cli.plan import main
from odstream.configuration import ODSReuseProfileCfg, ODSRuntimeCfg
from tests.unit.test_calibration import records

PROFILE = ODSReuseProfileCfg(
    profile_id="illustrative-v1",
    scope="numbers",
    qualified=False,
    min_chunks_per_episode=200,
    max_chunks_per_episode=600,
    hard_max_chunks_per_episode=1000,
)
PROFILE_YAML = """
profile_id: illustrative-v1
scope: numbers
qualified: false
min_chunks_per_episode: 200
max_chunks_per_episode: 600
hard_max_chunks_per_episode: 1000
"""


def inputs(g: float = 1.0, t: float = 1000.0, **runtime: Any) -> PlanInputs:
    fields: dict[str, Any] = {
        "batch_size": 64,
        "producer_envs": 4,
        "first_publication_p95_seconds": 2.0,
        "min_cache_episodes": 8,
        "measurement_scope": "numbers",
    }
    return PlanInputs(
        accepted_episodes_per_second=g,
        training_chunks_per_second=t,
        profile=PROFILE,
        runtime=ODSRuntimeCfg(**{**fields, **runtime}),
    )


def edited(text: str, edit: Callable[[dict[str, Any]], object]) -> str:
    document = json.loads(text)
    edit(document)
    return json.dumps(document)


THROUGHPUT_JSON = throughput_to_json(measure_throughput(records()))
PLAN_JSON = plan_to_json(inputs(g=0.7312345678901, t=1123.456789))


def test_documents_keep_every_digit() -> None:
    assert throughput_from_json(THROUGHPUT_JSON) == measure_throughput(records())
    plan, read = plan_from_json(PLAN_JSON)
    assert read == inputs(g=0.7312345678901, t=1123.456789)
    assert plan == read.plan()


def test_warnings_travel_with_the_numbers() -> None:
    measured = measure_throughput(records(first_publication_s=[1.0]))
    assert throughput_from_json(throughput_to_json(measured)).warnings == measured.warnings != ()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.pop("overlap_seconds"), "the throughput document misses overlap_seconds"),
        (lambda d: d.update(overlap=1.0), "has an unknown field 'overlap'"),
        (lambda d: d.update(overlap_second=1.0), "unknown field 'overlap_second' .close to 'overlap_seconds'."),
        (lambda d: d.pop("version"), "version must be 1, the one that this release reads, got None"),
        (lambda d: d.update(version=2), "version must be 1, the one that this release reads, got 2"),
        (lambda d: d.update(version=True), "version must be 1, the one that this release reads, got True"),
        (lambda d: d.update(format="odstream.plan"), "format must be 'odstream.throughput', got 'odstream.plan'"),
        (lambda d: d.update(batch_size="64"), "batch_size must be an integer"),
        (lambda d: d.update(training_active_seconds="1"), "active_seconds must be a finite number"),
        (lambda d: d.update(overlap_seconds=None), "overlap_seconds must be a finite number"),
        (lambda d: d.update(accepted_episodes=81), "accepted_episodes_per_second must be count over active time"),
        (lambda d: d.update(warnings=[1]), "warnings must be a tuple of texts"),
    ],
)
def test_a_throughput_document_that_is_not_exactly_one_is_refused(
    edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        throughput_from_json(edited(THROUGHPUT_JSON, edit))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the document is no JSON"),
        ("[]", "the document must be a mapping of fields, got list"),
        ('{"a": 1, "a": 2}', "the document repeats a"),
        (THROUGHPUT_JSON.replace("107400", "NaN"), "holds NaN, which is no finite number"),
        (THROUGHPUT_JSON.replace("107400", "Infinity"), "holds Infinity"),
        (PLAN_JSON, "format must be 'odstream.throughput'"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        throughput_from_json(text)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda d: d["plan"].update(buffer_size=99),
            "does not follow from its inputs; plan again: buffer_size: 99, deri",
        ),
        (lambda d: d["plan"].update(reasons=[]), "plan again: reasons"),
        (lambda d: d["plan"].pop("buffer_size"), "plan misses buffer_size"),
        (lambda d: d["plan"].update(extra=1), "plan has an unknown field 'extra'"),
        (lambda d: d["inputs"]["runtime"].update(batch_size=128), "plan again: batch_size: 64, derived 128"),
        (lambda d: d["inputs"]["runtime"].update(batchsize=1), "runtime has an unknown field 'batchsize'"),
        (lambda d: d["inputs"].pop("profile"), "inputs misses profile"),
        (lambda d: d["inputs"].update(profile=None), "profile must be a mapping of fields, got NoneType"),
        (lambda d: d["inputs"].update(accepted_episodes_per_second=0), "accepted_episodes_per_second must be a finite"),
        (lambda d: d.pop("inputs"), "the plan document misses inputs"),
        (lambda d: d.update(plan=[]), "plan must be a mapping of fields, got list"),
        (lambda d: d.update(version=0), "version must be 1"),
    ],
)
def test_a_plan_document_must_follow_from_its_inputs(edit: Callable[[dict[str, Any]], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_from_json(edited(PLAN_JSON, edit))


# ---------------------------------------------------------------- explanation


def limits(case: PlanInputs) -> dict[str, str]:
    return {line.name: line.limit for line in explain_plan(case) if line.limit}


def test_every_derived_value_of_a_plan_is_explained() -> None:
    case = inputs(cache_memory_bytes=10, bytes_per_episode=1)
    explained = {line.name for line in explain_plan(case)}
    measured_or_told = {"batch_size", "producer_envs", "profile_id", "profile_scope", "profile_qualified"}
    derived = set(json.loads(plan_to_json(case))["plan"]) - measured_or_told
    derived -= {"measurement_scope", "reasons", "end_of_supply_rule", "initial_remainder_chunks"}
    derived -= {"expected_training_throttle_fraction", "expected_producer_throttle_fraction"}
    assert derived <= explained
    assert all(line.formula and line.numbers for line in explain_plan(case))


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (inputs(), {"episode_sample_budget": "K_max", "buffer_size": "latency", "target": "supply", "cap": "learner"}),
        (inputs(t=400.5), {"episode_sample_budget": "balance", "target": "supply"}),
        (inputs(g=10.0), {"episode_sample_budget": "K_min", "target": "learner"}),
        (inputs(min_cache_episodes=100), {"buffer_size": "D"}),
        (inputs(first_publication_p95_seconds=0.01), {"buffer_size": "2P", "refill_remaining_chunks": "batch"}),
        (inputs(batch_size=6400, first_publication_p95_seconds=0.01), {"buffer_size": "batch"}),
        (
            inputs(cache_memory_bytes=8, bytes_per_episode=1, first_publication_p95_seconds=4.0),
            {"buffer_size": "memory", "cap": "cache", "target": "cache", "refill_remaining_chunks": "latency"},
        ),
        (inputs(cache_memory_bytes=99, bytes_per_episode=1), {"buffer_size": "latency"}),
    ],
)
def test_the_limit_that_binds_is_named(case: PlanInputs, expected: dict[str, str]) -> None:
    full = {"cap": "active_chunks_per_second_cap", "target": "training_chunks_per_second_target"}
    found = limits(case)
    assert {name: found[full.get(name, name)] for name in expected} == expected


def test_advice_is_true_when_it_is_followed() -> None:
    supply_limited = inputs()
    assert any("More supply: at 1.66667 accepted episodes/s" in line for line in what_would_change(supply_limited))
    assert inputs(g=1.66667).plan().training_chunks_per_second_target == pytest.approx(1000.0, rel=2e-3)

    tight: dict[str, Any] = {"bytes_per_episode": 1, "first_publication_p95_seconds": 4.0}
    advice = what_would_change(inputs(cache_memory_bytes=8, **tight))
    assert any("More memory: 16 bytes (16 episodes)" in line for line in advice)
    assert inputs(cache_memory_bytes=16, **tight).plan().active_chunks_per_second_cap == 1000.0
    assert inputs(cache_memory_bytes=15, **tight).plan().active_chunks_per_second_cap < 1000.0

    assert any("the producer is needed for 50.0%" in line for line in what_would_change(inputs(g=10.0)))


def test_the_table_names_values_formulas_limits_and_reasons() -> None:
    text = render_plan(inputs(), warnings=["Only 2 complete refills were measured."])
    row = next(line for line in text.splitlines() if line.startswith("episode_sample_budget"))
    assert row.split(maxsplit=2)[1] == "600"
    assert "clamp(floor(t/g), K_min, K_max) = clamp(1,000, 200, 600)" in row
    assert row.endswith("K_max")
    assert "'illustrative-v1' is provisional" in text
    assert "- Only 2 complete refills were measured." in text
    assert max(map(len, text.splitlines())) <= 140


# ---------------------------------------------------------------- the command


def files(folder: Path, *, throughput: str = THROUGHPUT_JSON, profile: str = PROFILE_YAML) -> list[str]:
    (folder / "throughput.json").write_text(throughput)
    (folder / "profile.yaml").write_text(profile)
    return ["--input", str(folder / "throughput.json"), "--profile", str(folder / "profile.yaml")]


def test_the_command_prints_the_table_and_writes_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "plan.json"
    memory = ["--cache-memory-bytes", "5000000", "--min-cache-episodes", "8"]
    assert main([*files(tmp_path), "--output", str(output), *memory]) == 0
    plan, read = plan_from_json(output.read_text())
    assert (read.accepted_episodes_per_second, read.profile) == (0.8, PROFILE)
    assert (read.runtime.min_cache_episodes, read.runtime.cache_memory_bytes) == (8, 5_000_000)
    assert plan.episode_sample_budget == 600
    assert capsys.readouterr().out == render_plan(read)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"throughput": "{}"}, "throughput.json: format must be 'odstream.throughput', got None"),
        ({"profile": PROFILE_YAML.replace("qualified: false", "")}, "profile.yaml: the profile misses qualified"),
        ({"profile": PROFILE_YAML + "max_chunks: 3\n"}, "profile.yaml: the profile has an unknown field 'max_chunks'"),
        ({"profile": PROFILE_YAML.replace("false", "'no'")}, "profile.yaml: qualified must be True or False, got 'no'"),
        ({"profile": "- 1\n"}, "profile.yaml: the profile must be a mapping of fields, got list"),
        ({"profile": "{"}, "profile.yaml: the profile is no YAML"),
    ],
)
def test_the_command_names_the_file_and_the_field_and_writes_nothing(
    changes: dict[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "plan.json"
    assert main([*files(tmp_path, **changes), "--output", str(output)]) == 2
    assert message in capsys.readouterr().err
    assert not output.exists()


def test_the_command_refuses_memory_that_is_too_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*files(tmp_path), "--cache-memory-bytes", "1000"]) == 2
    assert "cache_memory_bytes=1000 holds 0 episodes" in capsys.readouterr().err


def test_the_command_names_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = files(tmp_path)
    (tmp_path / "profile.yaml").unlink()
    assert main(arguments) == 2
    assert "profile.yaml" in capsys.readouterr().err


def test_a_plan_made_for_a_measurement_keeps_its_settings() -> None:
    measured = measure_throughput(records())
    case = replace(inputs(), runtime=measured.runtime())
    assert (case.plan().batch_size, case.plan().producer_envs) == (measured.batch_size, measured.producer_envs)

"""The planner: from two rates, a reuse profile and runtime settings to an `ODSConfiguration`. Pure.

Every intermediate value is an exact fraction. Rates that limit something are published rounded down, so a
published limit never allows more than its exact value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from odstream.configuration.checks import (
    checked_count,
    checked_quantity,
    checked_text,
    derived_count,
    nearest,
    round_up_to,
    rounded_down,
)

UNSPECIFIED_SCOPE = "unspecified"
"""The measurement scope of someone who did not say what was measured; the plan then says so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ODSReuseProfileCfg:
    """How often one episode may be used, for one task, model and sampler.

    The caller vouches for it: neither rates nor this module can tell how much reuse is safe for learning.

    Raises:
        ValueError: If a field is out of its range, or the bounds are out of order.
    """

    profile_id: str
    """Name and version of the profile."""
    scope: str
    """What it holds for: task, model, history and horizon, episode lengths, sampling."""
    qualified: bool
    """Whether the bounds were shown to be safe. No default: it is said, never inferred."""
    min_chunks_per_episode: int
    """K_min: selections to plan for at least; at least 1. Not a promise that every episode gets them."""
    max_chunks_per_episode: int
    """K_max: selections to plan for at most; at least K_min."""
    hard_max_chunks_per_episode: int
    """K_hard: what no configuration may exceed; at least K_max."""
    latency_safety_factor: float = 1.25
    """s: factor on the first-publication latency; at least 1."""

    def __post_init__(self) -> None:
        checked_text("profile_id", self.profile_id)
        checked_text("scope", self.scope)
        if not isinstance(self.qualified, bool):
            raise ValueError(f"qualified must be True or False, got {self.qualified!r}")
        bounds = (
            checked_count("min_chunks_per_episode", self.min_chunks_per_episode),
            checked_count("max_chunks_per_episode", self.max_chunks_per_episode),
            checked_count("hard_max_chunks_per_episode", self.hard_max_chunks_per_episode),
        )
        if not bounds[0] <= bounds[1] <= bounds[2]:
            raise ValueError(
                "min_chunks_per_episode <= max_chunks_per_episode <= hard_max_chunks_per_episode is required, "
                "got {} <= {} <= {}".format(*bounds)
            )
        if checked_quantity("latency_safety_factor", self.latency_safety_factor) < 1:
            raise ValueError(f"latency_safety_factor must be at least 1, got {self.latency_safety_factor!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ODSRuntimeCfg:
    """The settings under which the rates were measured, and what storage is allowed.

    Raises:
        ValueError: If a field is out of its range, or only one of the two memory fields is given.
    """

    batch_size: int
    """B: chunks per batch; at least 1. Kept as measured."""
    producer_envs: int
    """P: environments that the producer runs at once; at least 1. Kept as measured."""
    first_publication_p95_seconds: float
    """Seconds from a refill's request to its first publication, 95th percentile; positive."""
    min_cache_episodes: int = 1
    """Episodes to keep at least, for diversity; at least 1."""
    measurement_scope: str = UNSPECIFIED_SCOPE
    """What was measured, where, and under which load."""
    cache_memory_bytes: int | None = None
    """M: bytes for stored episodes, and for nothing else; None for no limit."""
    bytes_per_episode: int | None = None
    """E: bytes that one stored episode takes; given exactly when ``cache_memory_bytes`` is."""

    def __post_init__(self) -> None:
        checked_count("batch_size", self.batch_size)
        checked_count("producer_envs", self.producer_envs)
        checked_quantity("first_publication_p95_seconds", self.first_publication_p95_seconds)
        checked_count("min_cache_episodes", self.min_cache_episodes)
        checked_text("measurement_scope", self.measurement_scope)
        memory, episode = self.cache_memory_bytes, self.bytes_per_episode
        if (memory is None) != (episode is None):
            raise ValueError(
                "cache_memory_bytes and bytes_per_episode must be given together or not at all, "
                f"got {memory!r} and {episode!r}"
            )
        if memory is not None:
            checked_count("cache_memory_bytes", memory)
            checked_count("bytes_per_episode", episode)


@dataclass(frozen=True, kw_only=True, slots=True)
class ODSConfiguration:
    """A plan. It changes nothing by itself: the host applies it.

    Rates and limits are rounded down; the balance, duties and throttles are rounded to nearest.
    """

    episode_sample_budget: int
    """K: selections granted to each episode."""
    episode_sample_hard_limit: int
    """K_hard, from the profile."""
    balance_chunks_per_episode: float
    """t / g: selections per episode at which neither side would wait."""
    batch_size: int
    """B, as measured."""
    producer_envs: int
    """P, as measured."""
    buffer_size: int
    """C: episodes in the cache, a multiple of P."""
    cache_bytes: int | None
    """C * E, or None if no memory was stated."""
    initial_chunk_budget: int
    """C * K: selections that the first fill grants."""
    initial_max_updates: int
    """Full batches in the initial budget. A ceiling, not advice on convergence."""
    initial_remainder_chunks: int
    """What is left of the initial budget after those batches."""
    refill_remaining_chunks: int
    """Ask for a refill when this many unlocked selections, or fewer, are left."""
    active_chunks_per_second_cap: float
    """Chunks per second that the cache can bridge during L_safe; at most t."""
    training_chunks_per_second_target: float
    """Chunks per second to train at: the least of t, the cap and what production sustains."""
    training_updates_per_second_target: float
    """The same in batches per second."""
    publication_episodes_per_second_target: float
    """Episodes per second that this consumes; at most g."""
    training_duty_fraction: float
    """Share of time the learner is expected to work."""
    producer_duty_fraction: float
    """Share of time the producer is expected to work."""
    expected_training_throttle_fraction: float
    """1 - training_duty_fraction."""
    expected_producer_throttle_fraction: float
    """1 - producer_duty_fraction."""
    profile_id: str
    profile_scope: str
    profile_qualified: bool
    measurement_scope: str
    reasons: tuple[str, ...]
    """What limits this plan, and what it does not establish, in sentences."""
    end_of_supply_rule: str = "Stop when the unlocked selections that remain cannot fund one full batch."
    """When to stop training once production has ended."""


@dataclass(frozen=True, slots=True)
class _Cache:
    """C, and the larger size that would have been chosen without a memory limit."""

    episodes: int
    desired_episodes: int


def _size_cache(chunks_per_second: Fraction, lead_s: Fraction, budget: int, runtime: ODSRuntimeCfg) -> _Cache:
    """Size the cache for one batch and for ``lead_s`` of training while P rows are being replaced."""
    producers = runtime.producer_envs
    rows_per_batch = -(-runtime.batch_size // budget)
    base = round_up_to(producers, max(2 * producers, runtime.min_cache_episodes, producers + rows_per_batch))
    bridge = producers + math.ceil(chunks_per_second * lead_s / budget)
    desired = derived_count("cache size in episodes", round_up_to(producers, max(base, bridge)))
    if runtime.cache_memory_bytes is None or runtime.bytes_per_episode is None:
        return _Cache(desired, desired)
    capacity = runtime.cache_memory_bytes // runtime.bytes_per_episode // producers * producers
    if capacity < base:
        raise ValueError(
            f"cache_memory_bytes={runtime.cache_memory_bytes} holds {capacity} episodes of "
            f"{runtime.bytes_per_episode} bytes in whole groups of {producers}, but at least {base} are needed "
            f"({base * runtime.bytes_per_episode} bytes): rows being replaced, min_cache_episodes and one batch"
        )
    return _Cache(min(desired, capacity), desired)


def _reuse_reasons(balance: Fraction, profile: ODSReuseProfileCfg) -> list[str]:
    """Say what the profile does to the balance between the two sides."""
    reasons: list[str] = []
    if not profile.qualified:
        reasons.append(f"Profile {profile.profile_id!r} is provisional: its reuse bounds still need a learning test.")
    if balance > profile.max_chunks_per_episode:
        reasons.append(
            f"Supply limits training: the learner could use {float(balance):.6g} chunks per episode, the profile "
            f"allows {profile.max_chunks_per_episode}, so the learner is paced."
        )
    if balance < profile.min_chunks_per_episode:
        reasons.append(
            f"Demand limits production: the learner uses {float(balance):.6g} chunks per episode, the profile plans "
            f"for at least {profile.min_chunks_per_episode}, so less production is asked for."
        )
    return reasons


def _cache_reasons(cache: _Cache, cap: Fraction, demand: Fraction, *, refill_is_everything: bool) -> list[str]:
    """Say what the memory limit does to the cache."""
    reasons: list[str] = []
    if cache.episodes < cache.desired_episodes:
        reasons.append(
            f"Memory limits the cache to {cache.episodes} of {cache.desired_episodes} episodes; the active rate "
            f"is capped at {float(cap):.6g} of {float(demand):.6g} chunks/s."
        )
    if refill_is_everything:
        reasons.append("The refill point is all that can be unlocked: a refill follows as soon as chunks are used.")
    reasons.append(
        "Cache and refill sizes cover the first publication only; check the spacing of later ones, and measure "
        "again when the pacing has changed."
    )
    return reasons


def configure_ods(
    accepted_episodes_per_second: float,
    training_chunks_per_second: float,
    *,
    profile: ODSReuseProfileCfg,
    runtime: ODSRuntimeCfg,
) -> ODSConfiguration:
    """Derive budget, cache size, refill point and pacing from two rates measured side by side.

    The active cap is rounded down first; everything after it derives from the rounded cap.

    Args:
        accepted_episodes_per_second: g, published episodes per active production second, retries included.
        training_chunks_per_second: t, completed chunks per active learner second, waits and pacing excluded.
            Completed updates per second times the batch size; never frames per second.
        profile: How often one episode may be used.
        runtime: The measured settings and the storage allowance.

    Returns:
        The plan, frozen.

    Raises:
        TypeError: If ``profile`` or ``runtime`` is of another class.
        ValueError: If a rate is not a finite positive number, if the memory cannot hold the smallest cache
            that works, or if a derived value leaves the range of a float or a 64-bit integer.
    """
    if not isinstance(profile, ODSReuseProfileCfg):
        raise TypeError(f"profile must be an ODSReuseProfileCfg, got {type(profile).__name__}")
    if not isinstance(runtime, ODSRuntimeCfg):
        raise TypeError(f"runtime must be an ODSRuntimeCfg, got {type(runtime).__name__}")
    supply = checked_quantity("accepted_episodes_per_second", accepted_episodes_per_second)
    demand = checked_quantity("training_chunks_per_second", training_chunks_per_second)
    return _plan(supply, demand, profile, runtime)


def _plan(supply: Fraction, demand: Fraction, profile: ODSReuseProfileCfg, runtime: ODSRuntimeCfg) -> ODSConfiguration:
    """Apply the formulas to checked inputs."""
    lead_s = Fraction(runtime.first_publication_p95_seconds) * Fraction(profile.latency_safety_factor)
    batch, producers = runtime.batch_size, runtime.producer_envs

    balance = demand / supply
    balance_rounded = nearest("balance_chunks_per_episode", balance)
    budget = min(max(math.floor(balance), profile.min_chunks_per_episode), profile.max_chunks_per_episode)
    cache = _size_cache(demand, lead_s, budget, runtime)
    unlocked = (cache.episodes - producers) * budget
    initial = derived_count("initial chunk budget", cache.episodes * budget)

    cap_rounded = rounded_down("active_chunks_per_second_cap", min(demand, unlocked / lead_s))
    cap = Fraction(cap_rounded)
    target = min(cap, supply * budget)
    publication = target / budget
    # cap <= unlocked / lead_s and B <= unlocked, so the refill point never lies above what can be unlocked.
    refill = max(batch, math.ceil(cap * lead_s))
    training_duty, producer_duty = target / demand, publication / supply
    cache_bytes = None
    if runtime.bytes_per_episode is not None:
        cache_bytes = derived_count("cache size in bytes", cache.episodes * runtime.bytes_per_episode)
    reasons = _reuse_reasons(balance, profile)
    reasons += _cache_reasons(cache, cap, demand, refill_is_everything=refill == unlocked)
    if runtime.measurement_scope == UNSPECIFIED_SCOPE:
        reasons.append("The measurement scope is unspecified: nothing says that the rates hold side by side.")

    return ODSConfiguration(
        episode_sample_budget=budget,
        episode_sample_hard_limit=profile.hard_max_chunks_per_episode,
        balance_chunks_per_episode=balance_rounded,
        batch_size=batch,
        producer_envs=producers,
        buffer_size=cache.episodes,
        cache_bytes=cache_bytes,
        initial_chunk_budget=initial,
        initial_max_updates=initial // batch,
        initial_remainder_chunks=initial % batch,
        refill_remaining_chunks=refill,
        active_chunks_per_second_cap=cap_rounded,
        training_chunks_per_second_target=rounded_down("training_chunks_per_second_target", target),
        training_updates_per_second_target=rounded_down("training_updates_per_second_target", target / batch),
        publication_episodes_per_second_target=rounded_down("publication_episodes_per_second_target", publication),
        training_duty_fraction=nearest("training_duty_fraction", training_duty),
        producer_duty_fraction=nearest("producer_duty_fraction", producer_duty),
        expected_training_throttle_fraction=nearest("expected_training_throttle_fraction", 1 - training_duty),
        expected_producer_throttle_fraction=nearest("expected_producer_throttle_fraction", 1 - producer_duty),
        profile_id=profile.profile_id,
        profile_scope=profile.scope,
        profile_qualified=profile.qualified,
        measurement_scope=runtime.measurement_scope,
        reasons=tuple(reasons),
    )

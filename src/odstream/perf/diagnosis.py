"""Which side holds the pipeline back, in words. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from odstream.perf.facts import Facts

__all__ = ["Diagnosis", "Steady", "Thresholds", "Verdict", "diagnose"]

Verdict = Literal["insufficient", "paced by plan", "production", "training", "buffer", "overhead", "balanced"]


_ELSEWHERE = ("other", "eval", "checkpoint")


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Where a fraction of wall time begins to matter."""

    steps: int = 20
    """Fewer say nothing."""
    intervals: int = 5
    """Fewer completed calls of producers say nothing."""
    held: float = 0.10
    """Of the learner in ``wait``, of the producers in ``blocked``."""
    paced: float = 0.05
    down: float = 0.05
    lost: float = 0.01
    """Lost or failed episodes among all attempts."""
    starved: float = 0.20
    publish: float = 0.30
    """Of busy and publish."""
    data_path: float = 0.60
    """Fetch in fetch and compute, from here on the data path."""
    compute: float = 0.25
    """Fetch in fetch and compute, up to here compute."""
    overhead: float = 0.15
    realised: float = 0.80
    """Throughput over the smaller capacity."""
    equal: float = 0.10
    """Relative difference up to which two capacities count as equal: what they are accurate to."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A verdict on one window."""

    verdict: Verdict
    cause: str = ""
    """The part of the side that holds back, where it can be named."""
    advice: str = ""
    notes: tuple[str, ...] = ()
    """What else is remarkable."""

    def __str__(self) -> str:
        head = f"{self.verdict} ({self.cause})" if self.cause else self.verdict
        return "; ".join(part for part in (head, self.advice, *self.notes) if part)


class _Finding(NamedTuple):
    verdict: Verdict
    cause: str = ""
    advice: str = ""


def diagnose(facts: Facts, thresholds: Thresholds | None = None) -> Diagnosis:
    """Return the verdict on one window.

    Args:
        facts: Of the window, warm-up left out.
        thresholds: None: the defaults.
    """
    limits = Thresholds() if thresholds is None else thresholds
    if facts.steps < limits.steps or facts.intervals < limits.intervals:
        return Diagnosis(
            "insufficient",
            advice=f"{facts.steps} steps and {facts.intervals} completed producer calls; "
            f"a verdict needs {limits.steps} and {limits.intervals}",
            notes=_losses(facts, limits),
        )
    finding = _find(facts, limits)
    notes = (*_losses(facts, limits), *_contradictions(facts, finding.verdict, limits))
    return Diagnosis(finding.verdict, finding.cause, finding.advice, notes)


def _find(facts: Facts, limits: Thresholds) -> _Finding:
    waits = facts.learner["wait"] >= limits.held
    blocked = facts.producer["blocked"] >= limits.held
    if facts.learner["pace"] >= limits.paced and not waits:
        return _Finding("paced by plan", "", "deliberate: the plan spaces the batches; no side holds back")
    if waits and blocked:
        return _Finding(
            "buffer",
            "",
            "both sides wait for each other in turn: a larger cache, smaller batches, or fewer episodes per call",
        )
    if waits:
        return _production(facts, limits)
    if blocked and not _is_elsewhere(facts, limits):
        return _training(facts, limits)
    return _neither(facts, limits)


def _is_elsewhere(facts: Facts, limits: Thresholds) -> bool:
    """Whether the learner holds producers back by what is no training: it spends more time on that than on steps."""
    elsewhere = sum(facts.learner[state] for state in _ELSEWHERE)
    return elsewhere >= max(limits.overhead, facts.learner["fetch"] + facts.learner["compute"])


def _production(facts: Facts, limits: Thresholds) -> _Finding:
    busy, publish = facts.producer["busy"], facts.producer["publish"]
    if facts.producer["starved"] >= limits.starved:
        return _Finding(
            "production", "tasks", "producers have nothing to work on: hand out tasks sooner, more at a time"
        )
    if busy + publish > 0 and publish / (busy + publish) >= limits.publish:
        return _Finding(
            "production", "publication", "publication takes long: smaller frames, or a faster way to the cache"
        )
    advice = "more producers, or a faster simulation"
    if facts.train_per_s and facts.infer_per_s and facts.reuse_known:
        factor = facts.train_per_s / facts.infer_per_s
        if factor > 1:
            advice = f"{factor:.1f} times the producers, or a reuse K larger by that factor if the profile allows it"
    return _Finding("production", "", advice)


def _training(facts: Facts, limits: Thresholds) -> _Finding:
    data_s, compute_s = facts.data_s or 0.0, facts.compute_s or 0.0
    share = data_s / (data_s + compute_s) if data_s + compute_s > 0 else 0.5
    if share >= limits.data_path:
        return _Finding(
            "training",
            "data path",
            f"{share:.0%} of a step goes into getting data that exists: larger requests, prefetching, fewer copies",
        )
    if share <= limits.compute:
        return _Finding("training", "compute", "a faster device, a smaller model or more ranks; or fewer producers")
    return _Finding("training", "data path and compute", f"{share:.0%} of a step is data; overlap it with the update")


def _neither(facts: Facts, limits: Thresholds) -> _Finding:
    others = {state: facts.learner[state] for state in _ELSEWHERE}
    largest = max(others, key=lambda state: others[state])
    if sum(others.values()) >= limits.overhead:
        return _Finding("overhead", largest, f"{others[largest]:.0%} of the learner's time is {largest}")
    return _Finding("balanced", "", "neither side waits for the other")


def _losses(facts: Facts, limits: Thresholds) -> tuple[str, ...]:
    notes = []
    if facts.producer["down"] >= limits.down:
        now = f"{facts.slots_down} of {facts.slots} now"
        notes.append(f"producers down: {now}, {facts.producer['down']:.0%} of their time")
    attempts = facts.accepted + facts.failed
    for name, count in (("failed", facts.failed), ("lost", facts.lost)):
        if attempts and count / attempts > limits.lost:
            notes.append(f"{count / attempts:.0%} of the generations {'failed' if name == 'failed' else 'were lost'}")
    return tuple(notes)


def _contradictions(facts: Facts, verdict: Verdict, limits: Thresholds) -> tuple[str, ...]:
    """Name capacities that contradict the verdict, and capacity that is not used although nothing holds it back."""
    infer, train, thru = facts.infer_per_s, facts.train_per_s, facts.thru_per_s
    if infer is None or train is None or thru is None or verdict == "paced by plan" or not facts.reuse_known:
        return ()
    reasons = []
    if verdict == "production" and infer > train * (1 + limits.equal):
        reasons.append(f"I = {infer:.1f} > T = {train:.1f} samples/s")
    if verdict == "training" and train > infer * (1 + limits.equal):
        reasons.append(f"T = {train:.1f} > I = {infer:.1f} samples/s")
    bound = min(infer, train)
    if bound > 0 and thru / bound < limits.realised:
        reasons.append(f"thru = {thru:.1f} is {thru / bound:.0%} of min(I, T) = {bound:.1f} samples/s")
    return (f"capacity not realised: {', '.join(reasons)}",) if reasons else ()


class Steady:
    """Holds a diagnosis until two windows in a row give another verdict with the same cause."""

    def __init__(self) -> None:
        self.current = Diagnosis("insufficient", advice="no window yet")
        self._candidate: tuple[str, str] | None = None

    def update(self, diagnosis: Diagnosis) -> Diagnosis:
        """Take the diagnosis of the next window, and return the one that holds.

        Advice and notes are the newest ones as long as the verdict holds.
        """
        found = (diagnosis.verdict, diagnosis.cause)
        if found in ((self.current.verdict, self.current.cause), self._candidate):
            self.current, self._candidate = diagnosis, None
        else:
            self._candidate = found
            return self.pending()
        return self.current

    def pending(self) -> Diagnosis:
        """Return what holds while no window decides."""
        if self.current.verdict == "insufficient":
            self.current = Diagnosis("insufficient", advice="two whole windows must agree")
        return self.current

"""Breaks injected at random places are named with their cause and path; undisturbed teams raise no alarm.

A sample of what ``python -m benchmarks.bench_detection`` runs in full.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import forms
from faults import RULES, all_cases, causes_for, from_traces, injected, play, skewed_count, undisturbed

CASES = [(rules, cause) for rules in RULES for cause in causes_for(rules)]


@pytest.mark.slow
@pytest.mark.parametrize(("rules", "cause"), CASES, ids=[f"{rules}-{cause}" for rules, cause in CASES])
def test_an_injected_break_is_named(rules: str, cause: str) -> None:
    """Cause and path are right, nothing else in the case is an alarm, and the expectation is the provider's."""
    for seed in range(3):
        played = play(injected(seed, rules, cause))
        told = [e for e, r in zip(played.expected, played.read, strict=True) if r is not None]
        assert played.right, (seed, played.case.path, played.verdict)
        assert not played.false_alarms, (seed, [played.verdicts[i] for i in played.false_alarms])
        assert told == [r for r in played.read if r is not None]


@pytest.mark.parametrize("rules", RULES)
def test_undisturbed_teams_raise_no_alarm(rules: str) -> None:
    """Appending agents and forks of one transcript, with and without names, under each rule set."""
    for seed in range(30):
        played = play(undisturbed(seed, rules))
        assert not played.alarms, (seed, [played.verdicts[i] for i in played.alarms])


def test_breaks_in_recorded_conversations_are_named(traces) -> None:
    """The same in conversations of the tau-bench traces."""
    material = from_traces(traces("tau_bench"))
    for case in all_cases(120, seed=300, material=material):
        played = play(case)
        assert played.right, (case.rules, case.cause, case.path, played.verdict)


def test_another_tokenizer_at_the_provider_changes_nothing() -> None:
    """The provider counts a part of the texts 10 % shorter and a part 40 % longer than we do."""
    wrong = [case for case in all_cases(120, seed=900) if not play(case, count=skewed_count).right]
    loud = [seed for seed in range(60) if play(undisturbed(seed, RULES[seed % 5]), count=skewed_count).alarms]
    assert len(wrong) <= 1, [(case.rules, case.cause) for case in wrong]
    assert len(loud) <= 1


def test_breaks_in_every_wire_form_are_named() -> None:
    """Responses, Gemini and Bedrock too, in texts of other scripts, code and JSON, with very short turns between."""
    played = [(name, play(case)) for name, case in forms.cases(84, seed=40)]
    wrong = [(name, one.case.path, one.verdict) for name, one in played if not one.right]
    assert len(wrong) <= 1, wrong
    assert not [name for name, one in played if one.false_alarms]


def test_undisturbed_conversations_in_every_wire_form_raise_no_alarm() -> None:
    """Whoever asks, with a name or without."""
    assert not [one.alarms for one in map(play, forms.undisturbed(36, seed=90)) if one.alarms]

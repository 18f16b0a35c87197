"""When a conversation's own history is compacted, and how, without the waiting for a summary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cacheprefix._terms import Attempt, Steps, Terms, compacted, guarded, planned_of, tell_stuck
from cacheprefix.context import Circumstances, Compaction, ContextState, Plan

if TYPE_CHECKING:
    from cacheprefix._conversation import Conversation


def rules_of(conversation: Conversation, terms: Terms) -> tuple[Compaction, Circumstances]:
    """The compaction in force, fitted to the provider, and what it depends on beside the history."""
    rules = terms.compaction or Compaction(trigger=None if terms.request else Compaction().trigger)
    around = Circumstances(request=terms.request)
    if terms.fitted is not None:
        rules, around = terms.fitted(conversation, rules)
    return rules, replace(around, static_tokens=around.static_tokens + terms.static_tokens)


def due_of(
    conversation: Conversation, terms: Terms, volatile_tokens: int
) -> tuple[Compaction, Circumstances] | None:
    """By what to plan a compaction; None where none can be due, which most requests learn at no cost."""
    rules, around = rules_of(conversation, terms)
    trigger, target = rules.limits(around.request)
    tokens = conversation.statistics(trigger).tokens + volatile_tokens
    if tokens <= (trigger + target) // 2 or (tokens <= trigger and not around.prices.cold):
        return None
    return rules, replace(around, static_tokens=around.static_tokens + volatile_tokens)


def steps_of(
    conversation: Conversation,
    terms: Terms,
    rules: Compaction,
    around: Circumstances,
    *,
    attempt: Attempt,
    force: bool,
    asks: bool,
) -> Steps[Callable[[ContextState], ContextState] | None]:
    """Yields what a summary is wanted of and takes its text; gives what is to be done to the state, if it is due."""
    plan = partial(planned_of, conversation.state, terms, rules, around, force=force)
    planned: Plan | None = guarded(attempt, "compaction", plan, None)
    if planned is not None:
        tell_stuck(planned, terms.note)
    if planned is None or not planned.due:
        return None
    summary = str((yield planned.request)) if planned.request is not None and asks else ""
    # Planned again on the state as it is then: the model may have taken its time over the summary.
    return partial(
        compacted, terms=terms, rules=rules, around=around, scope=conversation.scope, summary=summary, force=force
    )

"""Compaction of a plain list of messages, for loops that keep their history themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cacheprefix.errors import SetupError
from cacheprefix.history.compaction import Compaction, plan_compaction
from cacheprefix.history.ledger import Ledger
from cacheprefix.history.replaying import replay
from cacheprefix.prompt import estimate_tokens
from cacheprefix.prompt.views import Count
from cacheprefix.wire.apply_decisions import apply, sendable
from cacheprefix.wire.message_views import views_of
from cacheprefix.wire.messages import Form


def compaction_hook(
    messages: Sequence[Mapping[str, Any]],
    target: int,
    *,
    api: Form = "openai-chat",
    settings: Compaction | None = None,
    count: Count | None = None,
) -> list[Mapping[str, Any]]:
    """The messages shortened to ``target`` tokens; the very same objects where nothing had to change.

    Results that can be had again go first, then old uses of tools, then the oldest messages, each call with its
    results; the system's and pinned messages, and the last turns, stay. ``settings`` is the ``Compaction`` it goes by,
    but for its trigger and target, ``api`` the form of the messages. Nothing is remembered: called again with the
    original history and more, it decides anew, and the cache is lost. So keep what it gives and append to that, or
    have a ``Conversation`` do it, which decides once. Raises ``SetupError`` for a target below 1, and ``BodyError`` for
    a malformed message.
    """
    if target < 1:
        raise SetupError(f"compaction_hook needs a target of at least 1 token, found {target}")
    counter = count or estimate_tokens
    views = [replace(view, pinned=True) if view.role == "system" else view for view in views_of(messages, api, counter)]
    if sum(view.tokens for view in views) <= target:
        return list(messages)
    rules = replace(settings or Compaction(), trigger=target, target=target)
    plan = plan_compaction(views, Ledger(), rules, count=counter, force=True)
    done = replay(views, plan.commit(), count=counter, readable=False)
    return list(sendable(apply(messages, done.decisions, api)))

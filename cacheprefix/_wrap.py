"""``wrap`` and ``preview``: one call for anything an installed adapter knows."""

from __future__ import annotations

from typing import Any

from cacheprefix.adapter import AdapterSession, given_or_configured
from cacheprefix.dry_run import PlannedRequest, Preview, play
from cacheprefix.errors import SetupError
from cacheprefix.hookspecs import HookName
from cacheprefix.session import Session


def wrap(target: Any, session: Session | None = None) -> Any:
    """Bind a session to a framework's object: a chat model, an agent, a team, a crew.

    The installed adapters are asked who knows the object. Without a session one is made as
    ``Session.from_config()`` does; the result carries it where its adapter says. Raises ``SetupError`` when nobody
    knows the object, and ``ConfigError``.
    """
    bound = given_or_configured(session)
    found = bound.plugins.call_first("wrap", target=target, session=bound.session)
    if found is not None:
        return found
    raise SetupError(
        f"no installed adapter can wrap a {_kind(target)} (adapters found: {_adapters(bound, 'wrap')}); "
        "install cacheprefix-langgraph, -autogen, -crewai or -sdk, or use the adapter's own front door"
    )


def preview(target: Any, session: Session | None = None, *, task: object = None) -> Preview:
    """What the first requests of a framework's agents will look like, share and should cost; sends nothing.

    ``target`` is what ``wrap`` takes, as the application has it; it stays as it is. ``task`` is what the run begins
    with: a text, or what the framework takes (LangGraph's state, CrewAI's inputs). What the run itself brings forth,
    answers of other agents among it, is not known yet and not counted. Raises ``SetupError`` where no installed
    adapter can tell. Of an application that has no team before it asks (a plain client, LiteLLM) ``target`` is the
    requests that it is going to send: a ``PlannedRequest``, or a list of them, as ``session.preview`` takes them.
    """
    bound = given_or_configured(session)
    planned = [target] if isinstance(target, PlannedRequest) else target
    if isinstance(planned, (list, tuple)) and any(isinstance(one, PlannedRequest) for one in planned):
        return play(bound, planned)
    before = dict(bound.plugins.failures)
    found = bound.plugins.call_first("preview", target=target, session=bound.session, task=task)
    if isinstance(found, Preview):
        return found
    failed = [name for name, count in bound.plugins.failures.items() if count > before.get(name, 0)]
    if failed:
        raise SetupError(f"the preview of a {_kind(target)} failed in {', '.join(failed)}; a warning says where")
    raise SetupError(
        f"no installed adapter can preview a {_kind(target)} (adapters that can: {_adapters(bound, 'preview')}); "
        "give the requests themselves: a list of PlannedRequest(agent, body, api)"
    )


def _kind(target: Any) -> str:
    return f"{type(target).__module__}.{type(target).__qualname__}"


def _adapters(bound: AdapterSession, hook: HookName) -> str:
    return ", ".join(info.name for info in bound.plugins.loaded if hook in info.hooks) or "none"

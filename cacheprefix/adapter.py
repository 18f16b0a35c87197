"""All that an adapter may use of the core, beside the public names and ``cacheprefix.wire``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from inspect import iscoroutinefunction
from types import FunctionType
from typing import TYPE_CHECKING, Any, get_args

# Read here, and not with the first front door: that may be called in an event loop, which must not wait for a disk.
from cacheprefix import config as _config  # noqa: F401
from cacheprefix.adapter_session import AdapterSession
from cacheprefix.bodies import (
    LAID_OUT,
    LONG_ROLE,
    ForkBody,
    Role,
    ToolSet,
    adopt_declared,
    agreed,
    allowed_choice,
    begins,
    bound_role,
    compacts,
    condensed_body,
    current_role,
    for_own_tools,
    forces_any,
    fork_body,
    in_role,
    instruction_of,
    overlaid,
    well_formed,
)
from cacheprefix.bounded import Bounded, Generations
from cacheprefix.by_object import ByObject
from cacheprefix.calls.begin import Boundary, Request, unasked
from cacheprefix.calls.gating import Waits
from cacheprefix.calls.history_runner import RestOfRequest
from cacheprefix.calls.report import tally
from cacheprefix.calls.tool_calls import ToolUse
from cacheprefix.contexts import BlockVar, inside, within
from cacheprefix.effects import Call as WaitingFor
from cacheprefix.effects import Flow, adrive, drive
from cacheprefix.errors import APPLICATIONS, SetupError, check_text
from cacheprefix.forks import AskOptions, ForkOptions, ForkResult, ask_options
from cacheprefix.history import (
    READ_TOOL_SCHEMA,
    Circumstances,
    Cutting,
    Ledger,
    SummaryRequest,
    TransitionHook,
    digests_of,
    merge_json,
    plan_compaction,
    replay,
    update_json,
)
from cacheprefix.layout import (
    FOLLOW,
    NEXT,
    ONE_CALL,
    Pass,
    SearchedText,
    Tool,
    VolatileRole,
    Worth,
    context_block,
    economics,
    find_text,
    majority_text,
    mostly_holds,
    tail_text,
    with_volatile,
)
from cacheprefix.layout.baseline import unmodified
from cacheprefix.layout.economics import Lane, Seat, SelectorChoice, SelectorLane
from cacheprefix.layout.known_runs import RunAhead, RunCall
from cacheprefix.layout.plan import (
    AgentRequest,
    Carried,
    OwnTools,
    RequestPlan,
    RoleTold,
    asked_again,
    failed,
    list_refused,
)
from cacheprefix.layout.reflections import Reflections
from cacheprefix.layout.role_position import CountedHistory, RolePosition, merged_places
from cacheprefix.layout.team import ToolSource, Whose
from cacheprefix.layout.tool_restriction import Restriction, restrict
from cacheprefix.lazy_names import lazy
from cacheprefix.locks import Lock, RLock, once, reset_in_child
from cacheprefix.mode import Mode
from cacheprefix.profiles import NO_CALLS, cost_units, merge_usage, normalise_usage, usage_from_dict
from cacheprefix.prompt import (
    Api,
    Count,
    Decision,
    Drop,
    DropCall,
    DropResult,
    DropThinking,
    Insert,
    MessageView,
    Reason,
    ReplaceResult,
    default_counter,
    digest_of,
    dumps,
    loads,
    make_call,
    make_message,
    make_result,
    provider_tools,
    reason,
)
from cacheprefix.prompt import Role as MessageRole
from cacheprefix.session import Session
from cacheprefix.versions import outside, supported
from cacheprefix.watched_clients import (
    compacts_by,
    derived,
    headers_of,
    tapped,
    vendor_of,
    watched_client,
    watched_in_place,
    watched_stream,
)
from cacheprefix.wrapped_parts import Wrap, claimed, named, released

if TYPE_CHECKING:
    from cacheprefix.dry_run import Preview, Unsent, known_in_part, preview_of, rehearsed, unsent_client, until_sent
    from cacheprefix.layout.known_crews import AHEAD, ITEMS, CrewAhead, CrewTask, KnownCrews, Part
    from cacheprefix.toolcache import AnswerForm, Attempt, NotKeptError, Origin, looks_like_error, origin_of

# Rooms that not every adapter needs.
__getattr__, __dir__ = lazy(
    globals(),
    {
        "dry_run": "Preview Unsent known_in_part preview_of rehearsed unsent_client until_sent",
        "layout.known_crews": "AHEAD ITEMS CrewAhead CrewTask KnownCrews Part",
        "toolcache": "AnswerForm Attempt NotKeptError Origin looks_like_error origin_of",
    },
)

__all__ = [
    "AHEAD",
    "APPLICATIONS",
    "FOLLOW",
    "ITEMS",
    "LAID_OUT",
    "LONG_ROLE",
    "NEXT",
    "NO_CALLS",
    "ONE_CALL",
    "READ_TOOL_SCHEMA",
    "AdapterSession",
    "AgentRequest",
    "AnswerForm",
    "Api",
    "AskOptions",
    "Attempt",
    "BlockVar",
    "Boundary",
    "Bounded",
    "ByObject",
    "Carried",
    "Circumstances",
    "Count",
    "CountedHistory",
    "CrewAhead",
    "CrewTask",
    "Cutting",
    "Decision",
    "Drop",
    "DropCall",
    "DropResult",
    "DropThinking",
    "Flow",
    "ForkBody",
    "ForkOptions",
    "ForkResult",
    "Generations",
    "Insert",
    "KnownCrews",
    "Lane",
    "Ledger",
    "Lock",
    "MessageRole",
    "MessageView",
    "Mode",
    "NotKeptError",
    "Origin",
    "OwnTools",
    "Part",
    "Pass",
    "Preview",
    "RLock",
    "Reason",
    "Reflections",
    "ReplaceResult",
    "Request",
    "RequestPlan",
    "RestOfRequest",
    "Restriction",
    "Role",
    "RolePosition",
    "RoleTold",
    "RunAhead",
    "RunCall",
    "SearchedText",
    "Seat",
    "SelectorChoice",
    "SelectorLane",
    "SummaryRequest",
    "Tool",
    "ToolSet",
    "ToolSource",
    "ToolUse",
    "TransitionHook",
    "Unsent",
    "VolatileRole",
    "WaitingFor",
    "Waits",
    "Whose",
    "Worth",
    "Wrap",
    "adopt_declared",
    "adrive",
    "agreed",
    "allowed_choice",
    "ask_options",
    "asked_again",
    "begins",
    "bound_role",
    "check_volatile",
    "claimed",
    "compacts",
    "compacts_by",
    "condensed_body",
    "context_block",
    "cost_units",
    "current_role",
    "default_counter",
    "derived",
    "digest_of",
    "digests_of",
    "drive",
    "dumps",
    "economics",
    "failed",
    "find_text",
    "for_own_tools",
    "forces_any",
    "fork_body",
    "given_or_configured",
    "headers_of",
    "in_role",
    "inside",
    "instruction_of",
    "known_in_part",
    "list_refused",
    "loads",
    "looks_like_error",
    "majority_text",
    "make_call",
    "make_message",
    "make_result",
    "merge_json",
    "merge_usage",
    "merged_places",
    "mostly_holds",
    "named",
    "names_in",
    "names_known_to",
    "normalise_usage",
    "once",
    "origin_of",
    "overlaid",
    "plan_compaction",
    "preview_of",
    "provider_tools",
    "reason",
    "rehearsed",
    "released",
    "replay",
    "reset_in_child",
    "restrict",
    "supported",
    "tail_text",
    "tally",
    "tapped",
    "texts_said",
    "unasked",
    "unmodified",
    "unsent_client",
    "until_sent",
    "update_json",
    "usage_from_dict",
    "users_session",
    "vendor_of",
    "watched_client",
    "watched_in_place",
    "watched_stream",
    "well_formed",
    "with_volatile",
    "within",
]


def given_or_configured(session: Session | None) -> AdapterSession:
    """The session that a front door was given, as adapters use it; without one, ``Session.from_config()``.

    Every front door that may be called without a session asks here, so that the file and the variables reach it too.
    Raises ``ConfigError``, and ``SetupError`` for what is no session, before anything is wrapped.
    """
    given: object = session
    if given is not None and not isinstance(given, Session):
        raise SetupError(f"session takes a cacheprefix Session, found {type(given).__name__}")
    found = (Session.from_config() if session is None else session).adapter
    for text in outside(found.warn_once):
        found.note(text)
    return found


def names_in(option: str, given: Iterable[str] | None) -> tuple[str, ...] | None:
    """The names in an option. Raises ``SetupError`` for a text, which would be read as names of one letter."""
    if isinstance(given, str):
        raise SetupError(f"{option} takes names in a list, found a text; use {option}=[{given!r}]")
    names: object = given
    if given is not None and not isinstance(names, Iterable):
        raise SetupError(f"{option} takes names in a list, found {type(names).__name__}")
    found = None if given is None else tuple(given)
    for name in found or ():
        check_text(f"a name in {option}", name)
    return found


def check_volatile(volatile: object, role: object = "user") -> None:
    """Raise ``SetupError`` for what no request could be given texts by; front doors ask it before anything is wrapped.

    At run time what the callable raises is the application's own error, so a mistake of set-up is not to wait for it.
    """
    if volatile is not None and not callable(volatile):
        kind = type(volatile).__name__
        message = f"volatile is called for each request and gives texts by name, found {kind}; use lambda: {{...}}"
        raise SetupError(message)
    if iscoroutinefunction(volatile):
        raise SetupError("volatile is called where nothing can be awaited, found an async function: use a plain one")
    if role not in get_args(VolatileRole):
        raise SetupError(f"volatile_role is one of {', '.join(map(repr, get_args(VolatileRole)))}, found {role!r}")


def texts_said(volatile: Callable[..., Mapping[str, str]] | None, *given: object) -> dict[str, str]:
    """The texts by name that an application's ``volatile`` gives for one request; empty for None or without one.

    What it raises is the application's own error, and so is what it gives where that is no mapping: ``SetupError``.
    """
    said: object = None if volatile is None else volatile(*given)
    if said is None:
        return {}
    if not isinstance(said, Mapping):
        message = f"volatile gives texts by name, {{'time': '12:00'}} or None, and gave {type(said).__name__}"
        raise SetupError(message)
    return dict(said)


def names_known_to(function: FunctionType) -> dict[str, Any]:
    """What a function's code may name: its module's, and what it takes from around it as far as that is set yet."""
    found = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def users_session(session: AdapterSession) -> Session:
    """The session as the user has it: the very object that was made, as long as anybody holds it."""
    found: Session = session.session
    return found

"""The session: what an application makes once, composed of parts that work without it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from typing_extensions import Never, Unpack

from cacheprefix.adapter_session import AdapterSession, frozen
from cacheprefix.cache import Verdict
from cacheprefix.cache.lifetimes import AUTO, Lifetimes
from cacheprefix.cache.routing import RoutingKeys
from cacheprefix.call import Call
from cacheprefix.calls.counting import TokenCounting
from cacheprefix.calls.gating import gate_of
from cacheprefix.calls.pending import PendingCall
from cacheprefix.calls.report import Report
from cacheprefix.calls.state import SharedState
from cacheprefix.calls.tool_calls import ToolCacheOption, ToolCalls
from cacheprefix.conversation import Conversation
from cacheprefix.errors import SetupError, check_text
from cacheprefix.forks import ForkOptions, ForkResult, as_sent
from cacheprefix.history import (
    Compaction,
    Consolidate,
    ReadBudget,
    RequestBudget,
    Results,
    ToolResultBudget,
    TransitionHook,
    concatenate,
)
from cacheprefix.history import Mode as CommitMode
from cacheprefix.layout import RoleAs, SharedPrefix
from cacheprefix.mode import MODES, VARIABLE, Mode, mode_override
from cacheprefix.notices import MADE, Notices
from cacheprefix.options import Caching, Gate, History, Options, over
from cacheprefix.plugins import Plugins, look_up_installed
from cacheprefix.profiles import Profiles, Registry, default_registry, load_price_library, load_price_table
from cacheprefix.prompt import ABOUT, Api, Counter, load_vocabularies
from cacheprefix.services import Services
from cacheprefix.stores import MemoryStore, ResultStore
from cacheprefix.stores.protocol import is_shared
from cacheprefix.wire import Form

if TYPE_CHECKING:
    from cacheprefix.dry_run import PlannedRequest, Preview
    from cacheprefix.keep_alive import KeepAlive, Keeper
    from cacheprefix.toolcache import ToolResultCache

__all__ = ["Session"]


_GATE, _CACHING, _HISTORY = Gate(), Caching(), History()
_READ = ReadBudget()
_GROUPS = ("gate", "caching", "history")
"""Options that are values of several fields."""


class Session:
    """A team's shared prefix, policies, prompt trees and totals. Make one and bind it to the front doors.

    Safe to share between threads, tasks and conversations.

    Args:
        prefix: what all agents share; a text is its system text.
        mode: ``fork`` shares; ``strict`` too, and raises ``NotSharedError`` for what the user can remove; ``observe``
            changes nothing that is sent, and ``off`` does not even observe. ``CACHEPREFIX_MODE`` with either of these
            two is in force whatever this says.
        name: tells this team's agents from another's in the same process.
        budget: how much of a large tool result stands in the prompt; None for all of it.
        compaction: when and how long histories are shortened; a number is its trigger in tokens; None for never.
        history: the model's window, and where the full texts of results are kept.
        tool_cache: tools whose repeated calls are answered from before (``["read", ToolSpec(...)]``), or a
            ``ToolResultCache``; with True those that a plugin calls cacheable.
        gate: how long siblings wait for the one that writes their cold prefix; None sends all at once.
        caching: provider, tenant, rules, token counter, clock.
        plugins: objects with hooks (``docs/how-to/write-a-plugin.md``), beside those that are installed.

    Raises:
        SetupError: for options that do not exist or do not go together, with what to write instead.
        ToolClashError: where two tools of the prefix have one name and two schemas.
    """

    def __init__(
        self,
        prefix: SharedPrefix | str | None = None,
        *,
        mode: Mode = "fork",
        name: str = "",
        budget: ToolResultBudget | None = None,
        compaction: Compaction | int | None = None,
        history: History = _HISTORY,
        tool_cache: ToolCacheOption = None,
        gate: Gate | None = _GATE,
        caching: Caching = _CACHING,
        plugins: Sequence[object] = (),
        **misplaced: Never,
    ) -> None:
        _check_place(misplaced)
        _one_of("mode", mode, MODES)
        check_text("Session(name)", name)
        _check_caching(caching)
        _check_gate(gate)
        compaction = _check_history(budget, compaction, history)
        if compaction is not None:
            compaction.limits(history.request_budget)
        kept: Results = ResultStore(MemoryStore()) if history.results is None else history.results
        known = Plugins.with_builtins(plugins)
        counting = TokenCounting(caching.counter, known)
        registry, notices = (caching.profiles or default_registry()).copy(), Notices()
        known.call_all("profiles", register=registry.register)
        if caching.provider and not registry.knows(caching.provider):
            raise SetupError(
                f"Caching(provider={caching.provider!r}) names no provider and no row of rules; there are: "
                f"{', '.join(registry.names)}; leave it out for another one, or add a row for it (profiles=)"
            )
        _check_lifetime(caching.lifetime, registry)
        asked, override = mode, mode_override()
        if override is not None and mode not in ("off", override):
            mode = override
            notices.note(f"{VARIABLE}={mode} is in force in place of the program's mode={asked!r}")
            if prefix is not None and (prefix if isinstance(prefix, str) else prefix.system):
                notices.warn_once(
                    VARIABLE,
                    f"{VARIABLE}={mode} is in force, in which nothing is added to a request: the text of SharedPrefix "
                    "is sent only where the application's own messages say it too",
                )
        if mode == "off":
            notices.note("the session is off: requests go out as the application makes them, and none is observed")
        rules = Profiles(registry, caching.provider, notices.note if mode == "observe" else None)
        services = Services(counting.count, counting.for_model, rules, caching.clock, notices)
        price = _GATE.price if gate is None else gate.price
        envelope = caching.counter.envelope if caching.counter else ABOUT
        state = SharedState.fresh(services, envelope, price, caching.fork_share)
        state.lifetimes, state.routing = Lifetimes(caching.lifetime), RoutingKeys(caching.routing_keys)
        if gate and gate.store and is_shared(gate.store):
            from cacheprefix.calls.fleet_traffic import FleetTraffic  # noqa: PLC0415 - of fleets alone

            fleet = FleetTraffic(gate.store, partial(notices.failed, "traffic"))
            state.routing = RoutingKeys(caching.routing_keys, fleet)
        if isinstance(kept, ResultStore):
            kept.on_failure(notices.not_kept)
        self._adapter = AdapterSession(
            Options(mode, budget, compaction, history.request_budget, kept, caching.provider, asked, caching.role_as),
            state,
            known,
            counting,
            gate_of(gate.store, gate.limit, notices) if gate and gate.limit else None,
            ToolCalls(tool_cache, known, notices, owner=name, scope=caching.scope, allowed=mode in ("fork", "strict")),
            Session._of,
        )
        self._adapter.lead(name, caching.scope, caching.tail, frozen(known, prefix))
        self._adapter.shown(self)
        if mode != "off":
            MADE.add(name, caching.scope, self.prefix.text, notices)
        if known.overrides("after_call") or known.overrides("cache_break"):
            # Who hears of calls may ask what they cost, where nobody may wait for an import.
            load_price_library()

    @classmethod
    def _of(cls, adapter: AdapterSession) -> Session:
        """The session that is made of these parts."""
        made = object.__new__(cls)
        made._adapter = adapter
        adapter.shown(made)
        return made

    @classmethod
    def from_config(
        cls, prefix: SharedPrefix | str | None = None, *, path: str | PathLike[str] | None = None, **options: Any
    ) -> Session:
        """A session with the options of ``cacheprefix.toml``, ``[tool.cacheprefix]`` and ``CACHEPREFIX_*`` variables.

        ``options`` win over them. ``path`` names the file, else the nearest one counts (see ``cacheprefix.config``).
        Raises ``ConfigError`` with file and line.
        """
        from cacheprefix.config import load  # noqa: PLC0415 - a session made without it needs no TOML

        found = load(path)
        said = found.options()
        # Field by field: a program that gives a counter does not take back the provider that the file names.
        groups = {
            key: over(said[key], value) for key, value in options.items() if key in _GROUPS and value and said.get(key)
        }
        return found.bind(cls(prefix, **{**said, **options, **groups}))

    @property
    def adapter(self) -> AdapterSession:
        """What adapters use of it (``cacheprefix.adapter``)."""
        return self._adapter

    # ------------------------------------------------------------------ what it was made with

    @property
    def prefix(self) -> SharedPrefix:
        """The frozen prefix."""
        return self._adapter.prefix

    @property
    def mode(self) -> Mode:
        """The one in force: ``fork``, ``strict``, ``observe``, which changes nothing that is sent, or ``off``."""
        return "off" if self._adapter.off else self._adapter.mode

    @property
    def name(self) -> str:
        """Its name; ``outer/inner`` for a nested team's."""
        return self._adapter.name

    @property
    def plugins(self) -> Plugins:
        """The hooks in force."""
        return self._adapter.plugins

    @property
    def tool_calls(self) -> ToolCalls:
        """Tool calls through the session: forget a conversation's results by ``reset``, count by ``stats``."""
        return self._adapter.tool_calls

    @property
    def tool_cache(self) -> ToolResultCache | None:
        """The cache of tool results, where there is one."""
        return self._adapter.tool_cache

    def child(self, name: str, prefix: SharedPrefix | None = None, *, scope: str | None = None) -> Session:
        """A session for a nested team: its own agents and prefix, the same trees, policies and totals.

        ``scope`` is the tenant whose requests these are, this session's by default. Raises ``SetupError`` without a
        name.
        """
        check_text("Session.child(name)", name)
        check_text("scope", scope, optional=True)
        return self._of(self._adapter.child(name, prefix, scope=scope))

    # ------------------------------------------------------------------ conversations

    def conversation(
        self,
        id: str = "",  # noqa: A002 - the field's word
        *,
        scope: str | None = None,
        api: Form | None = None,
        mode: CommitMode | None = None,
        model: str = "",
        hook: TransitionHook | None = None,
        consolidate: Consolidate = concatenate,
        context_limit: int | None = None,
    ) -> Conversation:
        """The conversation of a thread or run id, made when it is new; without an id one of its own, that is not kept.

        The most recent 10,000 are kept; what must last longer belongs into the framework's own state. Without a
        framework the conversation keeps the history itself: then say in which form of messages (``api``), when a
        turn becomes history (``mode``, through ``hook``), and what durable context may have (``context_limit``).
        Raises ``SetupError`` when it has a history in another form or mode.
        """
        check_text("Session.conversation(id)", id, optional=True)
        check_text("scope", scope, optional=True)
        return self._adapter.histories.conversation(
            id,
            scope=scope,
            api=api,
            mode=mode,
            model=model,
            hook=hook,
            consolidate=consolidate,
            context_limit=context_limit,
        )

    def forget(self, id: str, scope: str | None = None) -> None:  # noqa: A002 - as above
        """Drop a conversation whose messages are gone, with all that was decided on them; the next one starts anew."""
        check_text("Session.forget(id)", id)
        check_text("scope", scope, optional=True)
        self._adapter.forget(id, scope)

    def preview(self, *requests: PlannedRequest) -> Preview:
        """What requests will look like, share and should cost, made in this order as one conversation; sends nothing.

        They go through a session made alike that has seen nothing, by the provider's rules, with no answers between
        them; this session stays as it is. For a framework's object use ``cacheprefix.preview(target, session)``.
        Raises ``SetupError`` for what is no ``PlannedRequest``.
        """
        from cacheprefix.dry_run import play  # noqa: PLC0415 - few applications ask, and it needs the rooms of bodies

        return play(self._adapter, requests)

    def read_tool(
        self, conversation: str, *, scope: str | None = None, budget: ReadBudget = _READ
    ) -> Callable[..., str]:
        """A plain function that reads a conversation's cut tool results again, to be given to its agents as a tool.

        ``read_full_result(ref, offset=0, limit=8000)``; the note of a cut result names it from then on.
        ``conversation`` is the id of the one that may read, and it reads its own results and no other's; ``budget`` is
        the most that one call returns. Adapters with ids of their own have ``read_tool(session)``, which gives a tool
        of their framework.
        """
        # Nobody sees which tools its requests carry.
        self._adapter.shared.reads = True
        check_text("conversation", conversation)
        check_text("scope", scope, optional=True)
        return self._adapter.histories.reader(lambda: self._adapter.known(conversation, scope), budget)

    # ------------------------------------------------------------------ side forks

    def fork(
        self,
        text: str,
        *,
        body: Mapping[str, Any] | PendingCall,
        api: Api,
        send: Callable[[dict[str, Any]], Any],
        **options: Unpack[ForkOptions],
    ) -> ForkResult:
        """Ask something beside a conversation, on its cached prefix, and run the fork's own tool loop.

        ``body`` is a request body of the parent (its messages, tools and settings), or its ``PendingCall``, whose
        request it extends as it was sent, also where the dictionary was changed since. One that went out past the
        session has no routing key, and OpenAI may have it elsewhere. ``send(body)`` makes one call
        and gives the response as a dict or an SDK's object. ``tool_executor(id, name, arguments)`` (or with ``state``
        as fourth argument) runs tools; without one, and when it raises, the model gets an error result.
        ``overrides`` replaces body fields; what then no longer shares raises ``UnsafeForkError`` before any call.
        ``commit`` takes the fork's messages afterwards unless the policy skips the transcript. ``scope`` is the tenant
        whose cache it is, the session's by default.
        """
        return self._adapter.side_forks.run(text, body, api, send, **options)

    async def afork(
        self,
        text: str,
        *,
        body: Mapping[str, Any] | PendingCall,
        api: Api,
        send: Callable[[dict[str, Any]], Awaitable[Any]],
        **options: Unpack[ForkOptions],
    ) -> ForkResult:
        """``fork`` with an asynchronous ``send``; the tool executor may be sync or async."""
        return await self._adapter.side_forks.arun(text, body, api, send, **options)

    def keep_alive(
        self,
        *,
        body: Mapping[str, Any] | PendingCall,
        api: Api,
        send: Callable[[dict[str, Any]], Any],
        keep: KeepAlive | None = None,
        scope: str | None = None,
    ) -> Keeper:
        """Keep a conversation's prompt in the provider's cache while it waits for a person.

        ``with session.keep_alive(body=..., api=..., send=...):`` reads ``body``, the request as last sent, each time
        before the entry expires, until the block ends or what that may cost (``KeepAlive(max_units, max_usd)``) is
        spent; ``async with`` where ``send`` is asynchronous. The reads stand in the report as the agent ``keep-alive``.
        """
        from cacheprefix.keep_alive import KEPT, QUESTION, KeepAlive, Keeper  # noqa: PLC0415 - few wait for people

        adapter, sent, keep = self._adapter, as_sent(body), keep or KeepAlive()
        if keep.max_usd is not None:
            load_price_library()
        prompt = adapter.decode(sent, api)
        profile, chosen = adapter.profile(prompt.model, api), adapter.shared.lifetimes.chosen
        ttl = next((one for one in profile.ttls if one.name == chosen), profile.default_ttl)
        run: Callable[..., Any] = adapter.side_forks.run
        if inspect.iscoroutinefunction(send):
            run = adapter.side_forks.arun
        ask = partial(run, QUESTION, sent, api, send, role="keep-alive", policy=KEPT, scope=scope)
        return Keeper(ask, profile, prompt.model, ttl, prompt.tokens, keep, adapter.clock, adapter.shared.notices)

    # ------------------------------------------------------------------ what came of it

    @property
    def calls(self) -> tuple[Call, ...]:
        """The recent calls (the newest 10,000 at least)."""
        self._adapter.shared.catch_up()
        return self._adapter.shared.totals.calls

    @property
    def last_verdict(self) -> Verdict | None:
        """What the cache did on the last finished call."""
        self._adapter.shared.catch_up()
        last = self._adapter.shared.totals.last
        return None if last is None else last.verdict

    def report(self) -> Report:
        """Tokens, cost units and money by agent, against the unmodified layout; breaks with their causes."""
        return self._adapter.report()

    @property
    def failures(self) -> Mapping[str, int]:
        """Steps at which cacheprefix failed and the application's own request went out, with counts."""
        return dict(self._adapter.shared.notices.failures)

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        """Copies of an application share the session, as they share its cache."""
        return self

    def __copy__(self) -> Session:
        """As ``__deepcopy__``."""
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise ``NotPicklableError``, which says what to do in another process."""
        self._adapter.__reduce_ex__(protocol)


def _of_kind(
    option: str,
    value: object,
    kind: type[Gate | Caching | History | Counter | ToolResultBudget | RequestBudget | Compaction | Registry],
    *,
    optional: bool = False,
) -> None:
    """Raise ``SetupError`` where an option's value is not of its class."""
    if not isinstance(value, kind) and not (optional and value is None):
        fields = ", ".join(f"{name}=..." for name in getattr(kind, "__match_args__", ()))
        message = f"Session({option}={value!r}): use {kind.__name__}({fields})" + (" or None" if optional else "")
        raise SetupError(message)


def _check_caching(caching: Caching) -> None:
    """Raise ``SetupError`` for what is no ``Caching``, or one of values that mean nothing."""
    _of_kind("caching", caching, Caching)
    check_text("Caching(scope)", caching.scope)
    _of_kind("caching.counter", caching.counter, Counter, optional=True)
    _of_kind("caching.profiles", caching.profiles, Registry, optional=True)
    _one_of("caching.tail", caching.tail, ("tail", "cards"))
    _one_of("caching.role_as", caching.role_as, get_args(RoleAs))
    if caching.fork_share is not None:
        _number("Caching(fork_share)", caching.fork_share)
        if not 0 <= caching.fork_share <= 1:
            raise SetupError(f"Caching(fork_share={caching.fork_share!r}): a share of the conversations, from 0 to 1")
    keys: object = caching.routing_keys
    if keys != "auto" and (isinstance(keys, bool) or not isinstance(keys, int) or keys < 1):
        raise SetupError(f"Caching(routing_keys={keys!r}): use a number from 1 on, or 'auto'")


def _check_lifetime(lifetime: str | None, registry: Registry) -> None:
    """Raise ``SetupError`` for a lifetime that no provider sells."""
    # Which one a session's models sell, a request says: ``begin`` notes where it is not this one.
    known = dict.fromkeys(ttl.name for profile in registry for ttl in profile.ttls)
    if lifetime is not None and lifetime != AUTO and lifetime not in known:
        raise SetupError(f"Caching(lifetime={lifetime!r}) is no provider's; use auto, or one of {', '.join(known)}")


def _check_gate(gate: Gate | None) -> None:
    """Raise ``SetupError`` for what is no ``Gate``."""
    _of_kind("gate", gate, Gate, optional=True)
    if gate is not None:
        _number("Gate(limit)", gate.limit)
        _number("Gate(price)", gate.price)


def _check_history(
    budget: ToolResultBudget | None, compaction: Compaction | int | None, history: History
) -> Compaction | None:
    """The compaction, also where its trigger alone was given. Raises ``SetupError`` for what none of these is."""
    _of_kind("budget", budget, ToolResultBudget, optional=True)
    _of_kind("history", history, History)
    _of_kind("history.request_budget", history.request_budget, RequestBudget, optional=True)
    made = Compaction(compaction) if type(compaction) is int else compaction
    _of_kind("compaction", made, Compaction, optional=True)
    return made if isinstance(made, Compaction) else None


def _number(option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SetupError(f"{option} is a number, found {value!r}")


def _check_place(misplaced: Iterable[str]) -> None:
    """Refuse options that a session does not take, and name where they belong."""
    for name in misplaced:
        kinds = ((SharedPrefix, ""), (Gate, "gate="), (Caching, "caching="), (History, "history="))
        places = (f"Session({to}{kind.__name__}({name}=...))" for kind, to in kinds if name in _names_of(kind))
        where = next(places, f"it takes {', '.join(_names_of(Session.__init__)[1:-1])}")
        raise SetupError(f"Session takes no {name}=: {where}")


def _names_of(called: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(called).parameters)


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SetupError(f"Session({option}={value!r}): use {' or '.join(repr(name) for name in allowed)}")


# What every session reads is read here, once: a session may be made in an event loop.
default_registry()
load_price_table()
load_vocabularies()
look_up_installed()

"""One team as its requests are laid out: name, shared prefix, roles, and how a role is told what it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

from cacheprefix.bounded import Bounded
from cacheprefix.errors import ToolClashError, named
from cacheprefix.layout.cards_advice import Placement
from cacheprefix.layout.fork import TailPlacement
from cacheprefix.layout.prefix import SharedPrefix, Tool, tool_of, union_tools
from cacheprefix.layout.shared_text import LEAST, find_text
from cacheprefix.layout.tail import tail_text
from cacheprefix.locks import RLock
from cacheprefix.prompt import CountTokens, Prompt, digest_of
from cacheprefix.unnamed import is_named, is_of_run

_ROLES = 1_000
"""Roles of which something is remembered: those that were made or asked last. One that comes back is a new one, and its
requests are right all the same: it counts on no others of which nobody knows."""
_LATELY = 64
"""Roles that asked last: by these it is judged whom a role may share with. A process that serves many users, each with
roles of their own, would else look through all of them with each request."""
_SCHEMAS = 8
"""Answer schemas of a role that are remembered: those that it asked with last. Some are made anew for each user."""
_NEWEST = 1_000
"""Tools that requests brought last: they stay, whoever has them, since their requests may be under way."""
_TALKS = 16
"""Conversations by which it is judged whether roles are named after users: those in which somebody asked last."""
_STRANGERS = 4
"""So many groups of them, of which none has a role in common with another, are no longer taken for one team's."""
_HEARD = "heard"
"""The section of a conversation's decisions for who asks with which answer schema."""
_APART = "apart"
"""In place of a schema: the role shares with nobody."""

NOTHING = SharedPrefix()
"""The prefix of a team that has none."""


class Whose(NamedTuple):
    """Whose tools are, where that is no conversation with decisions of its own: a run's, or a front door's."""

    id: str
    scope: str = ""


@dataclass(frozen=True, slots=True)
class ToolSource:
    """Where an adapter found tools, by which it is decided who may be shown them, and what conversations record."""

    of_run: bool = False
    """They come with a request, and not where the application is built, so that they may be made for its user: treated
    so before the first request too, and conversations record what defines them."""
    of_door: bool = False
    """One front door of several has them: requests carry them of those alone who are said to have them
    (``AdapterSession.bring_tools``), whenever they came."""
    of_code: bool = False
    """They were found in the code of an agent, which a process that makes it after its first request does not look
    into: conversations record what defines them."""
    recorded: bool = True
    """Whether their schemas are all that defines them; no conversation records others."""
    again: bool = False
    """Each request adopts its own: those are let go that no conversation which is remembered has any longer."""


MADE_WITH = ToolSource()
"""Where the application is built: with an agent, or with the session."""


class Decided(Protocol):
    """A conversation, as far as layouts are decided in it: another process reads these decisions and keeps to them."""

    id: str
    scope: str

    def decided(self, section: str, key: str) -> str | None:
        """What was decided under a key; None where nothing was."""
        ...

    def decided_keys(self, section: str) -> Sequence[str]:
        """All keys of a section, sorted."""
        ...

    def decide(self, section: str, key: str, decision: str = "") -> None:
        """Record a decision; what was decided before stays."""
        ...

    def decide_anew(self, section: str, key: str, decision: str) -> None:
        """Record a decision in place of what was decided before."""
        ...


@dataclass(slots=True)
class _Role:
    """What is known of a role by its requests."""

    digest: str
    models: set[str] = field(default_factory=set)
    """Those that it has asked."""
    schemas: Bounded[str, None] = field(default_factory=lambda: Bounded(_SCHEMAS))
    """Digests of the answer schemas that it has asked with last, the empty text for none."""
    holds: bool | None = None
    """Whether its own requests hold the shared text, by their first one; None while that is not known."""
    told: bool = False
    """Whether the shared text was added to a request of a role whose own ones do not hold it."""
    sees: bool | None = None
    """Whether it may be shown the shared text, by its last request: where that was found, it has it itself."""


@dataclass(slots=True)
class Team:
    """What all agents of one team share. Thread-safe; nested teams have one each, and one set of ``roles``."""

    name: str
    """``outer/inner`` for a nested team; empty for the outermost one that was given no name."""
    scope: str
    """The tenant whose requests these are, where a request does not say."""
    tail: TailPlacement
    prefix: SharedPrefix
    freeze: Callable[[SharedPrefix], SharedPrefix]
    """Puts the tools of a prefix in order; plugins have their say in it."""
    cards: Placement
    roles: Bounded[str, str] = field(default_factory=lambda: Bounded(_ROLES))
    """Roles that front doors were made for, in all of a tenant's teams that share totals, with their digests."""
    lock: RLock = field(default_factory=RLock)
    late: set[str] = field(default_factory=set)
    """Names of tools that came after the first request."""
    of_runs: set[str] = field(default_factory=set)
    """Names of tools that came with a request: a process that resumes its conversation does not know them before."""
    of_doors: set[str] = field(default_factory=set)
    """Names of tools that one front door of several was made with, and nobody else: a crew's."""
    of_code: set[str] = field(default_factory=set)
    """Names of tools that were found in an agent's code before it ran: a process that makes it later finds none."""
    unrecorded: set[str] = field(default_factory=set)
    """Names of tools that their schemas alone do not define."""
    resumed: set[str] = field(default_factory=set)
    """Names of those that are known by what a conversation has saved, and by no request."""
    clashing: set[str] = field(default_factory=set)
    """Names of tools that were declared with two schemas."""
    again: dict[str, None] = field(default_factory=dict)
    """Names of tools that requests bring each time, or that not all may be shown, those that came longest ago first:
    these may be let go."""
    _many: int = 2 * _NEWEST
    """So many of them are looked through for what may go."""
    parted: bool = False
    """Whether the tools of agents stay in their own conversations (``part``)."""
    mixed: bool = False
    """Whether even conversations that carried more than their own do (``part``)."""
    theirs: set[str] = field(default_factory=set)
    """Names of tools that were there before the first request, and may be made for one user all the same."""
    public: set[str] = field(default_factory=set)
    """Names of the tools that the user gave to the prefix: all may be shown them, whatever comes."""
    _declared: Bounded[Hashable, Hashable] = field(default_factory=lambda: Bounded(_ROLES))
    """What each role was made with."""
    given: SharedPrefix = field(init=False)
    """The prefix as the user gave it: without tools and text that were found in requests."""
    found: str = ""
    """The shared system text, where it was found in the agents' own and nobody gave it to the session."""
    _known: Bounded[str, _Role] = field(default_factory=lambda: Bounded(_ROLES))
    """What is known of each role by its requests."""
    _asking: Bounded[tuple[str, str], set[str]] = field(default_factory=lambda: Bounded(_TALKS))
    """The roles that asked in each conversation, by its tenant and id."""
    _everybodys: tuple[SharedPrefix | None, tuple[int, ...], tuple[str, ...]] = (None, (), ())
    """Names of the tools that all may be shown, and by what that was found."""
    _named: SharedPrefix | None = None
    """The prefix as it was before its tools grew."""

    def __post_init__(self) -> None:
        self.given = self.prefix
        self.public = set(self.prefix.tool_names)

    def inherit(self, outer: Team) -> None:
        """Take over what a nested team's prefix holds of what was found in the requests of the one around it."""
        self.given, self.found, self.late = outer.given, outer.found, set(outer.late)
        self.of_runs, self.of_doors, self.resumed = set(outer.of_runs), set(outer.of_doors), set(outer.resumed)
        self.unrecorded, self.again = set(outer.unrecorded), dict(outer.again)
        self.parted, self.theirs, self.public = outer.parted, set(outer.theirs), set(outer.public)
        self.mixed = outer.mixed

    def owner(self, scope: str | None) -> tuple[str, str]:
        """Whose conversations these are: the team's name, and the scope given or the team's own."""
        return self.name, self.scope if scope is None else scope

    def agent(self, name: str) -> str:
        """An agent's name in reports."""
        return f"{self.name}/{name}" if self.name else name

    def role(self, name: str) -> str:
        """A role's name among those of all teams."""
        return f"{self.name}/{name}"

    @property
    def alone(self) -> bool:
        """Whether no more than one role has joined or was named: then nobody is there to share a prefix with."""
        return max(len(self.roles), len(self.given.roles)) <= 1

    @property
    def versions(self) -> set[str]:
        """Names of tools that runs brought in more than one version: each may speak of whom it was made for."""
        return self.clashing & self.of_runs

    @property
    def key(self) -> str:
        """What the team is known by; it stays when the union grows, as most prompts then do."""
        return self._lasting.key

    @property
    def _lasting(self) -> SharedPrefix:
        """The prefix that names the team."""
        if self._named is not None:
            return self._named
        # What runs bring another process knows in another order, or not yet.
        lasting = tuple(tool for tool in self.prefix.tools if getattr(tool, "name", None) not in self.of_runs)
        return self.prefix if len(lasting) == len(self.prefix.tools) else replace(self.prefix, tools=lasting)

    def key_of(self, crew: str) -> str:
        """The name under which a crew's requests are routed; without a name of the ``crew``'s own, the prefix's.

        Crews share what the user gave to the prefix. Without that they have nothing in common. Empty where nothing is
        known to be shared: that is so of all applications that share nothing.
        """
        # Money: a provider has one machine for a key, up to some requests a minute.
        if crew and not (self.given.text or self.given.tools):
            return f"cacheprefix-{digest_of(crew)}"
        return "" if self.key == NOTHING.key else self._lasting.route

    def made_as_before(self, role: Hashable, what: Hashable) -> bool | None:
        """Note what an agent is made of; whether one of its role was made of the same before, None for the first."""
        with self.lock:
            known = self._declared.get(role)
            self._declared[role] = what
        return None if known is None else known == what

    def hears(self, conversation: Decided, role: str) -> bool:
        """Note who asks in a conversation; whether roles seem to be named after users, by whom has asked lately.

        In a team's conversations the same roles ask again and again. Each user's own ask in that user's alone.
        """
        if not (is_named(conversation.id) or is_of_run(conversation.id)):
            return False
        with self.lock:
            here = self._asking.of((conversation.scope, conversation.id), set)
            new = role not in here
            here.add(role)
            return new and len(self._groups()) >= _STRANGERS

    def _groups(self) -> list[set[str]]:
        """The roles of conversations, those together of which one asked in both."""
        groups: list[set[str]] = []
        for roles in self._asking.values():
            common = [group for group in groups if group & roles]
            groups = [*(group for group in groups if not group & roles), roles.union(*common)]
        return groups

    def part(self) -> None:
        """Show a tool that agents were made with to no other conversation than those whose own requests have it.

        The tools that the user gave to the prefix stay everybody's.
        """
        with self.lock:
            # Privacy: where conversations have no role in common, roles may be named after users, and what one carries
            # may be other users'.
            self.mixed = len(self._groups()) > 1
            self.theirs |= set(self.prefix.tool_names) - self.public
            self.parted = True

    @property
    def apart(self) -> set[str]:
        """Names of tools that not all may be shown: they came late, with a run, of one front door, or of one user."""
        return self.late | self.of_runs | self.of_doors | self.theirs

    def is_apart(self, name: str) -> bool:
        """Whether a name is among those of ``apart``."""
        return name in self.late or name in self.of_runs or name in self.of_doors or name in self.theirs

    @property
    def everybodys(self) -> tuple[str, ...]:
        """Names of the tools that all may be shown: those of the union that are not ``apart``."""
        # These only ever grow as long as the prefix is the same.
        now = (len(self.late), len(self.of_runs), len(self.of_doors), len(self.theirs))
        with self.lock:
            prefix, then, names = self._everybodys
            if prefix is not self.prefix or then != now:
                names = tuple(name for name in self.prefix.tool_names if not self.is_apart(name))
                self._everybodys = self.prefix, now, names
            return names

    def adopt_tools(
        self,
        tools: Iterable[Any],
        render: Callable[[Any], Mapping[str, Any]],
        late: Callable[[str], None] | None,
        *,
        grows: bool = False,
        source: ToolSource = MADE_WITH,
    ) -> tuple[Tool, ...]:
        """The union of the prefix's tools and ``tools``, frozen.

        ``late`` is told of tools that come after the first request (None before it): they stay outside, since they
        would change every prompt from its beginning. With ``grows`` they come in all the same: which conversations
        carry them is ``ToolSets``' to decide. Raises ``ToolClashError`` when one name has two schemas, but for what is
        known from a saved conversation alone: the code may be newer.
        """
        given = [tool if isinstance(tool, Tool) else tool_of(tool, render) for tool in tools]
        with self.lock:
            replaced = self.resumed.intersection(tool.name for tool in given)
            prefix = self.prefix
            if replaced:
                left = (tool for tool in prefix.tools if not (isinstance(tool, Tool) and tool.name in replaced))
                prefix = replace(prefix, tools=tuple(left))
            unfrozen = prefix.unfrozen
            if unfrozen:
                prefix = prefix.frozen(render)
                self.public.update(prefix.tool_names)
            try:
                union = prefix.with_tools(given, render)
            except ToolClashError as error:
                self.clashing.add(error.name)
                # Privacy: of two versions each may be made for one user.
                self.theirs |= {error.name} - self.public
                raise
            self.resumed -= replaced
            added = sorted({tool.name for tool in given if prefix.tool(tool.name) is None})
            self.of_runs.update(added if source.of_run else ())
            self.of_doors.update(added if source.of_door else ())
            self.of_code.update(added if source.of_code else ())
            self.unrecorded.update(() if source.recorded else added)
            comes_late = bool(added) and not unfrozen and late is not None
            if comes_late:
                self.late.update(added)
            if comes_late and grows:
                self._named, self.prefix = self._lasting, union
            elif comes_late and late is not None:
                late(
                    f"tools {', '.join(map(named, added))} came after the first request and stay outside the shared "
                    "union, so that what follows them is not shared: give all tools to SharedPrefix(tools=...)"
                )
            elif added or unfrozen:
                self.prefix = union
            self._comes_again(tool.name for tool in given if source.again or self.is_apart(tool.name))
            return tuple(self.prefix.tools)

    def contradicts(self, tools: Iterable[Any], render: Callable[[Any], Mapping[str, Any]]) -> str:
        """The name of a tool that the union has with another schema, so that none can join; else empty."""
        given = [tool if isinstance(tool, Tool) else tool_of(tool, render) for tool in tools]
        with self.lock:
            prefix = self.prefix.frozen(render) if self.prefix.unfrozen else self.prefix
            known = prefix.among({tool.name for tool in given} - self.resumed)
        try:
            union_tools((*known, *given))
        except ToolClashError as error:
            return error.name
        return ""

    def resume_tools(self, tools: Iterable[Tool]) -> None:
        """Add tools that a saved conversation carries; those of a name that is known stay out."""
        with self.lock:
            news = [tool for tool in tools if self.prefix.tool(tool.name) is None]
            names = {tool.name for tool in news}
            if not news or self.prefix.unfrozen:
                return
            self._named, self.prefix = self._lasting, self.prefix.with_tools(news)
            self.resumed |= names
            self.of_runs |= names
            # Whose they are, their conversation says: others carry them once they bring them.
            self.late |= names
            self._comes_again(tool.name for tool in news)

    def _comes_again(self, names: Iterable[str]) -> None:
        """Note tools that whoever has them brings each time."""
        for name in names:
            self.again.pop(name, None)
            self.again[name] = None

    @property
    def crowded(self) -> bool:
        """Whether so many tools came for single conversations that some may be needed by nobody any longer."""
        return len(self.again) >= self._many

    def let_go(self, held: Collection[str]) -> None:
        """Drop the tools that came for single conversations, but for the newest and those ``held``.

        Whoever has one brings it again, or has it beside the union. A process that serves each user's own tools, or
        makes agents with tools for each, would else hold those of all.
        """
        with self.lock:
            old = list(self.again)[:-_NEWEST]
            gone = {name for name in old if name not in held and self.is_apart(name)}
            for name in gone:
                del self.again[name]
            self._many = 2 * max(_NEWEST, len(self.again))
            if gone:
                left = tuple(tool for tool in self.prefix.tools if getattr(tool, "name", None) not in gone)
                self._named, self.prefix = self._lasting, replace(self.prefix, tools=left)
                for noted in (
                    self.late, self.of_runs, self.of_doors, self.of_code, self.unrecorded, self.resumed, self.clashing,
                    self.theirs,
                ):  # fmt: skip
                    noted.difference_update(gone)

    def adopt_system(self, text: str, *, with_context: bool = False) -> None:
        """Share a text that was found in the agents' own prompts, where the user gave none.

        With ``with_context`` durable context alone does not count as given: the adapter says it elsewhere too.
        """
        with self.lock:
            taken = self.prefix.system or self.prefix.roles if with_context else self.prefix.text
            if not taken:
                self.prefix = self.freeze(replace(self.prefix, system=text))
                self.found = self.prefix.system

    @property
    def _told(self) -> str:
        """The shared system text, where the user gave it and it is more than a remark."""
        text = "" if self.found else self.prefix.system
        return text if len(text) >= LEAST else ""

    def asked(self, role: str, own: Prompt, sent: Prompt) -> None:
        """Look whether a role's first request holds the shared text as the application made it, or was given it.

        Not every request is: a selector's question may be asked behind what was said alone.
        """
        told, known = self._told, self._of(role)
        if told and known.holds is None:
            known.holds = _holds(own, told)
        if told and not known.holds and not known.told:
            known.told = _holds(sent, told)

    def note_sees(self, role: str, *, sees: bool) -> None:
        """Note whether a role may be shown the shared text, with its newest request."""
        self._of(role).sees = sees

    def sees(self, role: str) -> bool:
        """Whether it is known that a role may be shown the shared text.

        Of a text that the user gave for all it is. One that was found in others' requests is shown to those alone that
        have it, and who has not asked yet may lack it.
        """
        known = self._known.get(role)
        return not self.found or (known is not None and bool(known.sees))

    def _newest(self) -> Iterable[_Role]:
        """The roles that asked last."""
        return islice(reversed(self._known.values()), _LATELY)

    def _of(self, role: str) -> _Role:
        """What is known of a role, which is the youngest now."""
        with self.lock:
            return self._known.of(role, lambda: _Role(digest_of(self.role(role))))

    def told_more(self, model: str, count: CountTokens, dearer: Collection[str] = ()) -> str:
        """What the user should know where roles' own requests do not hold the shared text; empty where they do.

        Where some do, of those alone that are among the ``dearer`` ones.
        """
        told = self._told
        with self.lock:
            held = {role: one.holds for role, one in self._known.items() if one.holds is not None}
            lacking = [role for role, one in self._known.items() if one.told]
            spared = len(lacking) + sum(held.values()) < len(held)
        if any(held.values()):
            lacking = [role for role in lacking if role in dearer]
        if not told or not lacking:
            return ""
        added = f"SharedPrefix(system=...), {count(told, model):,} tokens, stands in "
        roles = ", ".join(map(named, lacking))
        if any(held.values()):
            return (
                f"{added}other roles' own requests and not in those of {roles}: it was added to them, and they cost "
                "more by that. Leave an agent that need not read it out of the session: do not decorate or wrap it"
            )
        whose = f"those of {roles}" if spared else "each"
        return (
            f"{added}no role's own requests: it was added to {whose}, and what they cost unmodified is reckoned "
            "without it. It is for what the roles' own prompts have in common: say it in them too if they are to have "
            "it, or leave it out"
        )

    def other_model(self, role: str, model: str) -> bool:
        """Note which model a role asks; whether all others, two at least, ask one and the same other model."""
        me = self._of(role)
        with self.lock:
            me.models.add(model)
            others = [one.models for one in self._newest() if one is not me and one.models]
        # One that asks several, as with a router's fallbacks, has no other model than one of these.
        alike = all(asked == others[0] and len(asked) == 1 for asked in others)
        return len(others) > 1 and alike and model not in others[0]

    def others_with(self, conversation: Decided, role: str, schema: str, asked: Iterable[str] = ()) -> int:
        """Note with which answer schema a role asks; how many others may ask with the same, and share with it.

        ``asked`` are those that have asked in the conversation, by their names among all teams: a process that took it
        up may not have met them.
        Of roles that nobody has heard yet, none is expected to have just this schema, and each to have none. One that
        was heard without a shared text that it must hold itself shares with nobody.
        """
        known, asks = self._of(role), digest_of(schema) if schema else ""
        me = known.digest
        with self.lock:
            known.schemas[asks] = None
            lately = list(self._newest())
            heard = {(each.digest, one) for each in lately for one in each.schemas}
            if self.found:
                heard |= {(each.digest, _APART) for each in lately if each.sees is False}
        if is_named(conversation.id):
            heard = _heard_in(conversation, (me, asks), heard)
        names = {name for name, _ in heard} - {me}
        left = {name for name, one in heard if one == _APART}
        alike = len({name for name, one in heard if one == asks} & names - left)
        if schema:
            return alike
        # Where all that were heard ask without a schema, others may come that nobody knows of.
        mine = self.role("")
        roles = {*self.roles.values(), *(digest_of(one) for one in asked if one.startswith(mine))}
        return max(alike + len(roles - names - {me}), alike == len(names - left))

    def tail_for(
        self,
        role: str,
        instruction: str,
        *,
        tools: Sequence[str] | None = None,
        volatile: Mapping[str, str] | None = None,
        sent: bool = True,
    ) -> str:
        """The text that makes a request this role's: the only thing that differs between forks.

        ``sent`` is False for one in the application's own layout, which the advice on cards does not go by.
        """
        card = self.tail == "cards" and self.prefix.roles.get(role) == instruction
        if sent and not card:
            self.cards.told(role, instruction)
        return tail_text(role, instruction, card=card, tools=tools, volatile=volatile)


def _holds(prompt: Prompt, text: str) -> bool:
    """Whether a text stands in a prompt, outside of its tools."""
    return any(find_text(text, one.text) is not None for one in prompt.sections if one.tier != "tools")


def known_roles() -> Bounded[str, str]:
    """Roles that front doors were made for, by name, with their digests; none so far."""
    return Bounded(_ROLES)


def _heard_in(conversation: Decided, own: tuple[str, str], heard: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Which roles ask with which schema, as far as a conversation goes by it: pairs of digests.

    What this process has heard counts when the conversation begins, and from then on what is asked in it, so that a
    process that takes it up goes by the same. Without schemas and outliers nothing is recorded.
    """
    known = conversation.decided_keys(_HEARD)
    begun = known or any(conversation.decided_keys(section) for section in ("lanes", "shares"))
    news = {one for one in heard if one[1] and (not begun or (one[0] == own[0] and one[1] in (own[1], _APART)))}
    if known or news:
        news.add(own)
    for entry in sorted(".".join(one) for one in news):
        if entry not in known and len(known) < _ROLES:
            conversation.decide(_HEARD, entry)
    recorded = (entry.partition(".") for entry in conversation.decided_keys(_HEARD))
    return {own, *((name, one) for name, _, one in recorded)}

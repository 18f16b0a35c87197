"""Which tools a role's requests carry: those of all, or its own where reading the others' costs more than that saves.

Providers put tools before everything else, so requests share only what carries the same ones. With the union a role
reads the others' tools in each request; without, it reads nothing of what they wrote, and pays what they say itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from cacheprefix.bounded import Bounded
from cacheprefix.errors import BodyError, SetupError
from cacheprefix.layout.cost_model import CachePrices
from cacheprefix.layout.economics import (
    CALLS,
    REPLY,
    grown,
    newcomers_pay,
    readers,
    union_gains,
    union_pays,
    union_starts,
)
from cacheprefix.layout.prefix import Tool, tool_of
from cacheprefix.layout.role_position import NO_TOOLS, Anew, Outrun, has_schema, lane_of
from cacheprefix.layout.team import Decided, Team, Whose
from cacheprefix.layout.worth_sharing import rules_in
from cacheprefix.locks import Lock
from cacheprefix.prompt import digest_of, loads
from cacheprefix.services import Services
from cacheprefix.unnamed import common_key, is_named, is_of_run

_KNOWN = 4
"""Messages from which on their own length counts."""
_TALKS = 10_000
_KITS = 1_000
_LATELY = 16
"""Conversations by which it is judged whether each role has some of its own."""
_LANES = "lanes"
"""The section of a conversation's decisions that says what each role's requests carry: ``_UNION`` or ``_OWN``, by the
digest of its model and name. A role that went over to the union later is beside that, by the digest of these and
``_UNION``; and by the digest of a model alone, that a request to it has carried the union."""
_UNION, _OWN = "union", "own"
_UNIONS = "unions"
"""The section of a conversation's decisions that says which tools it carries, where more came after it began."""
_TOOLS = "tools"
"""The section that says which version of each tool it carries, by its name behind a digest of the conversation and its
tenant (``_recorded``): what defines it (``Tool.saved``) where another process may not know that, else a digest."""
_KITS_OF = "kits"
"""The section that says which tools requests with a role's own carried: others with the very same share with them."""


class ToolSet(NamedTuple):
    """The tools that a role's requests carry, and who can read them."""

    tools: tuple[str, ...]
    """Names of the tools of the union in them, in its order; tools that the union has not stand behind those."""
    shares: bool
    """Whether another role's requests may begin like them; where not, the application's own layout costs least."""
    name: str = ""
    """What sets this tool set apart from the union."""
    alone: bool = False
    """Whether it goes on as a fork although nobody else has these tools."""
    peers: bool = False
    """Whether others carry the very same tools, also those that the union has not."""


@dataclass(frozen=True, slots=True)
class ToolsAsked:
    """What is known of a request whose tools are to be chosen."""

    own: Sequence[str]
    """Names of the role's own tools."""
    spoken: Callable[[], Sequence[int]]
    """Counts the tokens of each message that the request shares with others."""
    fans_out: bool = False
    """Whether others of the role are sent beside it."""
    text: int = 0
    """Tokens of the role's own text."""
    paid: Callable[[], int] = lambda: 0
    """Tokens that the application's own requests of the conversation would have paid in full so far."""
    outrun: Callable[[str, bool], Outrun] = lambda _lane, _units: Outrun()
    """How far its own requests are behind those with the tools of all, by the name of its own tool set and whether
    whole requests are kept only."""
    forked: Callable[[str], bool] = lambda _lane: False
    """Whether its last request with its own tools was a fork, by the name of that tool set."""
    schema: str = ""
    """Names the schema that its answers follow; those with another one read nothing of it."""
    others: int = 1
    """Roles that may share with this one."""
    anew: Callable[[], Anew] = Anew
    """What other roles pay once more if the tools grow that the conversation's requests carry."""
    pays_anew: Callable[[int, bool], None] = lambda _cost, _grows: None
    """Takes note that it carries the tools of all on a guess, at such a cost, and whether they grew."""
    cached: bool = False
    """Whether the application marks its own requests for the cache."""
    heard: Callable[[], int] = lambda: 0
    """Counts the roles that have asked in the conversation."""
    hears_itself: bool = True
    """Whether the application's own requests hold what the role itself said."""
    joint: bool = True
    """False where nobody else reads what is said in the conversation."""
    mutual: bool = False
    """As in ``OwnTools``."""
    foreign: frozenset[str] = frozenset()
    """Names of own tools whose namesakes in the union this tenant's requests may not carry."""


@dataclass(slots=True)
class _Talk:
    """Which tools the requests of one conversation have carried."""

    joined: set[tuple[str, str]] = field(default_factory=set)
    """Models and roles whose requests carry the union."""
    own: dict[tuple[str, ...], set[tuple[str, str]]] = field(default_factory=dict)
    """Tools, and those whose requests carried nothing else."""
    union: tuple[str, ...] = ()
    """The shared tools that there were when it began, or to which they grew."""
    carried: set[str] = field(default_factory=set)
    """Teams in which requests of a role that is alone have carried them."""
    first: set[tuple[str, str]] = field(default_factory=set)
    """Models, and the role that was the first to ask, with tools that others carry only where they bring them too."""

    @property
    def roles(self) -> set[tuple[str, str]]:
        """Models and roles that have asked in it."""
        return self.joined.union(*self.own.values())


class ToolSets:
    """The tool sets of the roles of each conversation. Thread-safe, bounded."""

    def __init__(self) -> None:
        self._talks: Bounded[tuple[str, str], _Talk] = Bounded(_TALKS)
        # The shared tools that requests of a tenant to a model have carried, in whichever conversation.
        self._sent: Bounded[tuple[str, str, tuple[str, ...]], bool] = Bounded(_TALKS)
        # By whose requests brought them (``_owner``): versions of tools that not all may be shown.
        self._brought: Bounded[tuple[str, str], Bounded[tuple[str, str], bool]] = Bounded(_TALKS)
        # Runs that are over and front doors that are gone.
        self._over: deque[str] = deque()
        self._lock = Lock()

    def bring(
        self, team: Team, who: Decided | Whose | str, names: Collection[str], differ: Collection[str] = ()
    ) -> frozenset[str]:
        """Note which tools that not all may be shown a conversation's own requests have, or a tenant's.

        Gives the names of those that ``differ`` from the union's tool of their name, where that may be somebody else's.
        """
        apart, owner = _apart(team, names), _owner(who)
        with self._lock:
            self._forget()
            # Privacy: who declares a tool otherwise has another one of that name; the union's may speak of a tenant.
            for tool in apart:
                if tool.name not in differ and owner is not None:
                    self._brought.of(owner, lambda: Bounded(_KITS))[tool.version] = True
            theirs = {tool.name for tool in apart}.intersection(differ).difference(self._shown(team, who))
            return frozenset(theirs | team.versions.intersection(names, differ))

    def open_to(self, team: Team, who: Decided | Whose | str) -> tuple[str, ...]:
        """The shared tools that a conversation's requests may carry, or all of a tenant's."""
        # Privacy: of several versions each conversation carries its own alone.
        return tuple(name for name in self._shown(team, who) if name not in team.versions)

    def _shown(self, team: Team, who: Decided | Whose | str) -> tuple[str, ...]:
        """The shared tools that are everybody's, and those that the conversation or its tenant brought."""
        # Privacy: a tool that came while requests were under way may be made for one user, its description too. Another
        # version that comes in its place may be another user's.
        owner = _owner(who)
        with self._lock:
            self._forget()
            brought = self._brought.get(owner, ()) if owner is not None else ()
        apart = _apart(team, [name for name, _ in tuple(brought)])
        mine = [tool.name for tool in apart if tool.version in brought]
        return _in_order(team, {*team.everybodys, *mine}) if mine else team.everybodys

    def part(self, team: Team) -> None:
        """From now on no tool of a team's agents is everybody's.

        Conversations go on with what they carry, unless their roles have nothing in common.
        """
        team.part()
        if not team.mixed:
            self._go_on(team)

    def _go_on(self, team: Team) -> None:
        """Let each conversation keep the tools that it carries."""
        here = f"{team.name}/"
        with self._lock:
            self._forget()
            for (scope, conversation), talk in self._talks.items():
                owner = _owned(scope, conversation)
                carries = team.name in talk.carried or any(role.startswith(here) for _, role in talk.joined)
                if owner is None or not carries:
                    continue
                brought = self._brought.of(owner, lambda: Bounded(_KITS))
                for tool in team.prefix.tools:
                    if isinstance(tool, Tool) and tool.name in talk.union:
                        brought[tool.version] = True

    def forget(self, conversation: str) -> None:
        """Forget which tools the requests of a conversation that has no tenant brought, before anybody asks for them.

        Takes no lock: Python lets a front door go wherever it is, also in a thread that holds another one.
        """
        self._over.append(conversation)

    def _forget(self) -> None:
        """Forget what was brought in what is over."""
        while self._over:
            self._brought.pop(("", self._over.popleft()), None)

    def let_go(self, team: Team) -> None:
        """Drop a team's tools that requests bring each time, once they are many, but for those that are remembered.

        These are tools that a conversation or tenant brought, has carried, or keeps for a role alone.
        """
        if not team.crowded:
            return
        with self._lock:
            self._forget()
            held = {name for brought in self._brought.values() for name, _ in brought}
            for (_, conversation), talk in self._talks.items():
                # Privacy: of what those without names have in common each is shown only what it brought itself.
                held.update(talk.union if conversation else (), *talk.own)
        team.let_go(held)

    def resume(self, team: Team, conversation: Decided) -> None:
        """Make known which tools a conversation's requests have carried by its own record, to its tenant alone."""
        recorded = _recorded(conversation)
        if not recorded:
            return
        news = [name for name, saved in recorded.items() if _defines(saved) and team.prefix.tool(name) is None]
        made = [tool for tool in (_recorded_tool(name, recorded[name]) for name in news) if tool is not None]
        team.resume_tools(made)
        self.bring(team, conversation, recorded, _versions_in(team, conversation)[1])

    def settled(self, key: tuple[str, str], role: tuple[str, str]) -> bool | None:
        """Whether a role's requests carry the union; None before it has asked."""
        with self._lock:
            talk = self._of(key)
            if role in talk.joined:
                return True
            return False if any(role in roles for roles in talk.own.values()) else None

    def settle(self, key: tuple[str, str], role: tuple[str, str], tools: tuple[str, ...], *, joins: bool) -> bool:
        """Note the tool set of a role; whether another one of the same model carries the very same ``tools``."""
        with self._lock:
            talk = self._of(key)
            if joins:
                talk.joined.add(role)
                for roles in talk.own.values():
                    roles.discard(role)
                return True
            if len(talk.own) >= _KITS:
                talk.own.clear()
            alike = talk.own.setdefault(tools, set())
            alike.add(role)
            return any(each[0] == role[0] and each != role for each in alike)

    def _of(self, key: tuple[str, str]) -> _Talk:
        """What is held of a conversation; new where nothing is."""
        return self._talks.of(key, _Talk)

    def union(self, team: Team, conversation: Decided, brought: Collection[str] | None = None) -> tuple[str, ...]:
        """The shared tools that a conversation's requests carry: those that there were when it began.

        Tools that came later would change its prompts from their beginning; ``choose`` says where that pays. With
        ``brought``, the tools of a role that carries them and has nobody to share with, they grow by those alone.
        """
        recorded = [conversation.decided(_UNIONS, key) for key in conversation.decided_keys(_UNIONS)]
        # Privacy: this process may know another's tool of a recorded name.
        same, others = _versions_in(team, conversation)
        with self._lock:
            talk = self._of((conversation.scope, common_key(conversation.id)))
            shown = {*self.open_to(team, conversation), *same, *(brought or ())} - others
            if recorded:
                longest = max((one or "" for one in recorded), key=len).split("\n")
                talk.union = tuple(name for name in longest if name in shown)
            elif not (talk.joined or talk.carried):
                talk.union = _in_order(team, shown)
            talk.carried.update(() if brought is None else (team.name,))
            carried = {*talk.union, *(brought or ())}
            talk.union = _in_order(team, carried)
            # Privacy: conversations without names go by one set, in which tools of another may stand.
            union = tuple(name for name in talk.union if name in shown)
        # One that is alone sends its own tools, which another process has from itself.
        if brought is not None and not team.alone:
            self._keep(team, conversation, union)
        return union

    def _keep(self, team: Team, conversation: Decided, union: tuple[str, ...]) -> None:
        """Note and record what a conversation carries, so that another process carries the same."""
        with self._lock:
            self._of((conversation.scope, common_key(conversation.id))).union = union
        entry = digest_of(*union)
        if conversation.decided(_UNIONS, entry) is None:
            conversation.decide(_UNIONS, entry, "\n".join(union))
        if not _saved_by(conversation):
            return
        recorded = _recorded(conversation)
        for tool in team.prefix.among(set(union) - team.public - team.unrecorded):
            # Another process may make these agents after its first request, each for a tenant, and then show their
            # tools to nobody who did not carry the very same.
            name = tool.name
            brought = name in team.of_runs or name in team.theirs or name in team.of_code
            brought = brought or _defines(recorded.get(name, ""))
            version = tool.saved if brought else tool.version[1]
            # Another version is newer code's: the one before is carried no more, and would grow each saved state.
            if recorded.get(name) != version:
                conversation.decide_anew(_TOOLS, _mine(conversation) + name, version)
        for name in team.theirs.intersection(recorded).difference(union) if team.mixed else ():
            # Privacy: what it carries no more, since it may be another user's, no process gives it back.
            if recorded[name] and not _defines(recorded[name]):
                conversation.decide_anew(_TOOLS, _mine(conversation) + name, "")

    def choose(
        self, team: Team, services: Services, conversation: Decided, role: str, model: str, asked: ToolsAsked
    ) -> ToolSet:
        """The tool set of a role.

        A role keeps the tool set of its first request in a conversation, or its layout would change; but one that has
        kept its own carries the union once others did so later than it last asked, and it reads more by that. One that
        does not carry the union, or has a tool that the union has not, shares with those of the very same tools alone.
        The decision is recorded in the conversation, so that another process takes it up.

        A role whose tools came after the conversation began grows what it carries, where that costs less. The role's
        own first request is cold in any case, and others read what that wrote: the price is what they read of its
        tools from then on. What the conversation carries is recorded.
        """
        offer = self._offer(team, services, conversation, role, model, asked)
        # Money: where nobody names the conversation, no other role carries tools that a request brought, and the own
        # layout is read as well.
        apart = _owner(conversation) is None and not offer.mine <= {*offer.began, *self.open_to(team, conversation)}
        apart = apart and offer.read_without_us
        # Others with the very same tools share them all the same, and may be yet to come.
        begins = apart and self._begins(offer)
        joins = not apart and offer.mine <= set(offer.union) and self._joins(offer)
        alike = self.settle(offer.talk, offer.key, tuple(sorted(offer.mine)), joins=joins)
        if joins:
            with self._lock:
                self._sent[offer.sent] = True
            return ToolSet(offer.union, shares=True)
        # Those that are sent beside it carry the very same tools, which need not be another role's.
        peers = _found_alike(conversation, offer.key, offer.mine) or (alike and not offer.told) or asked.fans_out
        shares = peers or begins
        # Money: it goes on as it began, also where nobody has its tools any more: its own layout would be cold.
        alone = not shares and asked.forked(offer.lane)
        mine = tuple(name for name in offer.everything if name in offer.mine)
        return ToolSet(mine, shares or alone, offer.lane, alone, peers)

    def _offer(
        self, team: Team, services: Services, conversation: Decided, role: str, model: str, asked: ToolsAsked
    ) -> _Offer:
        """What a role may carry: the tools that the conversation began with, grown where the role's own came later."""
        mine, key = frozenset(asked.own), (lane_of(model, asked.schema), team.role(role))
        began = self.union(team, conversation)
        if _owner(conversation) is None and _carries(conversation, key) == _UNION:
            # Nothing is kept there of what requests brought, so this one's own tools are those that it carries.
            began = _in_order(team, {*began, *(mine - asked.foreign)})
        with self._lock:
            # Privacy: of tools that came later only those that this tenant's requests may carry.
            may = {*self.open_to(team, conversation), *began, *(mine - asked.foreign)}
            if conversation.decided_keys(_UNIONS):
                # What runs brought to other conversations no other process need know.
                may = {name for name in may if name not in team.of_runs or name in mine or name in began}
        everything = _in_order(team, may)
        return _Offer(
            team=team,
            services=services,
            conversation=conversation,
            model=model,
            key=key,
            asked=asked,
            mine=mine,
            began=began,
            union=began if mine <= set(began) else everything,
            everything=everything,
        )

    def _joins(self, offer: _Offer) -> bool:
        """Whether a role carries the union, of which its own tools are a part; what is decided is recorded."""
        conversation, union, began = offer.conversation, offer.union, offer.began
        entry, moved = _entry(offer.key), _entry(offer.key, _UNION)
        recorded = _carries(conversation, offer.key)
        if recorded:
            before: bool | None = recorded == _UNION
        elif offer.began_bare:
            before = False
        else:
            before = None if offer.told else self.settled(offer.talk, offer.key)
        if before is None:
            joins = self._joins_at_first(offer)
        elif before:
            # It goes on with what it carries. Money: more of it only where that pays.
            joins = not offer.grows or (offer.pays() and self._guesses(offer))
        else:
            # Money: it leaves its own tools where it gains by that. Tools that nobody has carried yet are cold,
            # whatever others have sent without them.
            joins = not offer.grows and offer.gains() and offer.pays()
            if joins:
                conversation.decide(_LANES, moved, _UNION)
                _note_carried(offer)
        if offer.grows or (joins and (union or not offer.team.alone)):
            self._keep(offer.team, conversation, union if joins else began)
        # A join is recorded even where a role's tools are those of all: its next request may carry none.
        if not recorded and (union or not joins):
            conversation.decide(_LANES, entry, _UNION if joins else _OWN)
            if joins:
                _note_carried(offer)
        return joins

    def _joins_at_first(self, offer: _Offer) -> bool:
        """Whether a role carries the union from its first request in a conversation on."""
        if offer.alike:
            return True  # It has all of these tools: carrying them costs nothing.
        # A provider's rule: an answer's schema stands before the tools, so that who alone has it reads nothing of
        # what others wrote.
        if not offer.asked.others or not offer.pays():
            return False
        # Money: where others carry them already, they are read from the cache.
        if not offer.grows and self._carried(offer):
            return True
        # Money: nobody has carried them, so that this request would write the others' tools. Where peers have the very
        # same tools as this role, it reads theirs and writes no others'.
        return not self._has_peers(offer) and not self._in_vain(offer) and self._guesses(offer)

    def _in_vain(self, offer: _Offer) -> bool:
        """Whether a conversation begins with tools that were never sent together, in a team that shares none.

        Where each role has conversations of its own, it would pay for the tools of all others in each of them.
        """
        # A conversation that goes on goes by its own record: another process may have taken it up.
        if offer.asked.heard() or offer.asked.paid():
            return False
        with self._lock:
            if offer.sent in self._sent:
                return False
            newest = islice(reversed(self._talks.items()), _LATELY)
            scope = offer.talk[0]
            lately = [talk.roles for key, talk in newest if key[0] == scope and key != offer.talk]
        return all(len(roles) < 2 for roles in lately) and any(roles and roles != {offer.key} for roles in lately)

    def _begins(self, offer: _Offer) -> bool:
        """Whether a role is the first that has asked a model where nobody names the conversation, now or before."""
        with self._lock:
            talk = self._of(offer.talk)
            # Money: it goes on as it began, also where nobody with its tools comes: its own layout would be cold.
            if all(one[0] != offer.key[0] for one in talk.roles):
                talk.first.add(offer.key)
            return offer.key in talk.first

    def _has_peers(self, offer: _Offer) -> bool:
        """Whether another role of the same model carries just the tools that this one has."""
        with self._lock:
            peers = self._of(offer.talk).own.get(tuple(sorted(offer.mine)), ())
            here = any(one[0] == offer.key[0] and one != offer.key for one in peers)
        return (here and not offer.told) or _alike(offer.conversation, offer.key, offer.mine)

    @staticmethod
    def _guesses(offer: _Offer) -> bool:
        """Whether a role carries the union although nobody has sent that yet; what it costs is noted."""
        starts = offer.starts()
        if starts:
            offer.asked.pays_anew(offer.cost(), offer.grows)
        return starts

    def _carried(self, offer: _Offer) -> bool:
        """Whether requests of a conversation have carried the tools of all with this model and answer schema."""
        with self._lock:
            if not offer.told and any(one == offer.key[0] for one, _ in self._of(offer.talk).joined):
                return True
        return offer.conversation.decided(_LANES, _entry((offer.key[0], ""))) == _UNION


def _apart(team: Team, names: Iterable[str]) -> list[Tool]:
    """Those of the union's tools of these names that not all may be shown (``Team.apart``)."""
    return [tool for tool in team.prefix.among(names) if team.is_apart(tool.name)]


def _in_order(team: Team, names: Iterable[str]) -> tuple[str, ...]:
    """Those of these names that the union has, in its order."""
    return tuple(tool.name for tool in team.prefix.among(names))


def _owner(who: Decided | Whose | str) -> tuple[str, str] | None:
    """Whose a tool is that a request brings: its tenant's, or where none is named, the conversation's.

    None where nobody names the conversation either, and no run: two users who say the same would be taken for one.
    """
    return _owned(who, "") if isinstance(who, str) else _owned(who.scope, who.id)


def _owned(scope: str, conversation: str) -> tuple[str, str] | None:
    """``_owner`` of a tenant's conversation, by its id."""
    if scope:
        return scope, ""
    return ("", conversation) if is_named(conversation) or is_of_run(conversation) else None


def _saved_by(conversation: Decided) -> bool:
    """Whether a conversation's record defines tools: for another process it must have a name."""
    return bool(conversation.scope) or is_named(conversation.id)


def _versions_in(team: Team, conversation: Decided) -> tuple[set[str], set[str]]:
    """Names of the tools of runs that a conversation has carried just as the union has them, and only otherwise."""
    recorded = _recorded(conversation)
    if not recorded:
        return set(), set()
    # What was declared where the application is built is everybody's, in each version.
    tools = _apart(team, recorded)
    # Privacy: where roles may be named after users, what agents were made with goes to those alone who bring it.
    known = [tool for tool in tools if not (team.mixed and not _defines(recorded[tool.name]))]
    carried = {tool.name for tool in known if recorded[tool.name] in (tool.saved, tool.version[1])}
    return carried, {tool.name for tool in tools} - carried


def _recorded(conversation: Decided) -> dict[str, str]:
    """Which versions of tools a conversation has carried, by their names."""
    if not _saved_by(conversation):
        return {}
    # Privacy: decisions of another conversation may stand in its record, as where LangGraph's cache of a node gives one
    # tenant what it kept of another's run. What they define may speak of that tenant.
    mine = _mine(conversation)
    keys = [key for key in conversation.decided_keys(_TOOLS) if key.startswith(mine)]
    return {key.removeprefix(mine): conversation.decided(_TOOLS, key) or "" for key in keys}


def _mine(conversation: Decided) -> str:
    """What keys begin with of tools that this very conversation has carried."""
    return f"{digest_of(conversation.scope, common_key(conversation.id))}."


def _defines(recorded: str) -> bool:
    """Whether a record of a tool's version is what defines it."""
    return recorded.startswith("{")


def _recorded_tool(name: str, saved: str) -> Tool | None:
    """The tool ``name`` as ``saved``, a conversation's record, defines it; None where that defines none of the name."""
    try:
        found = loads(saved)
        tool = tool_of(found) if isinstance(found, dict) else None
    except (BodyError, SetupError):
        return None
    if tool is None or tool.name != name:
        return None
    # Of a record in another form than tools are saved in only name, description and parameters are sent.
    return tool if tool.saved == saved and "function" in found else replace(tool, native=None)


def _note_carried(offer: _Offer) -> None:
    """Record that a request to a model carries the tools of all, whoever sends it: another process may not know it."""
    entry = _entry((offer.key[0], ""))
    if offer.conversation.decided(_LANES, entry) is None:
        offer.conversation.decide(_LANES, entry, _UNION)


def _carries(conversation: Decided, key: tuple[str, str]) -> str | None:
    """What a conversation's decisions say that a role's requests carry: ``_UNION`` or ``_OWN``; None where nothing."""
    return conversation.decided(_LANES, _entry(key, _UNION)) or conversation.decided(_LANES, _entry(key))


def _entry(key: tuple[str, str], *more: str) -> str:
    """Where it is recorded what a role carries; of those with an answer's schema, the lane stands before a dot."""
    entry = digest_of(*key, *more)
    return f"{digest_of(key[0])}.{entry}" if has_schema(key[0]) else entry


def _found_alike(conversation: Decided, key: tuple[str, str], mine: Collection[str]) -> bool:
    """Whether a conversation's decisions say that another role carried the very same tools; records that this one did.

    In the process that saved them ``settle`` knows it, but no other one does.
    """
    known, own = conversation.decided_keys(_KITS_OF), _kit(key, mine)
    if own not in known and len(known) < _KITS:
        conversation.decide(_KITS_OF, own, _entry(key, _UNION))
    return _alike(conversation, key, mine)


def _alike(conversation: Decided, key: tuple[str, str], mine: Collection[str]) -> bool:
    """Whether a conversation's decisions say that another role carried the very same tools."""
    own = _kit(key, mine)
    kit = own.partition(".")[0]
    others = [one for one in conversation.decided_keys(_KITS_OF) if one.partition(".")[0] == kit and one != own]
    # One that went over to the tools of all since then sends nothing that begins like these.
    moved = (conversation.decided(_KITS_OF, one) or "" for one in others)
    return any(conversation.decided(_LANES, one) != _UNION for one in moved)


def _kit(key: tuple[str, str], mine: Collection[str]) -> str:
    """Where it is recorded that a role carried just its own tools: what all with the same tools share, and the role."""
    return f"{digest_of(key[0], *sorted(mine))}.{_entry(key)}"


@dataclass(frozen=True, slots=True)
class _Offer:
    """The tools of all, held against a role's own: whether it carries them. Each answer counts tokens anew."""

    team: Team
    services: Services
    conversation: Decided
    model: str
    """The model that the role asks."""
    key: tuple[str, str]
    """The model, with an answer's schema (``lane_of``), and the role's name in its team."""
    asked: ToolsAsked
    mine: frozenset[str]
    """The role's own tools."""
    began: tuple[str, ...]
    """Those that the conversation's requests carry so far."""
    union: tuple[str, ...]
    """Those that the role would carry: the same, or where it has others, all that its requests may carry."""
    everything: tuple[str, ...]
    """All that its requests may carry, in the order of the shared prefix."""

    @property
    def talk(self) -> tuple[str, str]:
        """Where the conversation's tool sets are held."""
        return self.conversation.scope, common_key(self.conversation.id)

    @property
    def sent(self) -> tuple[str, str, tuple[str, ...]]:
        """The tenant, the model with an answer's schema, and the tools that it would carry."""
        return self.conversation.scope, self.key[0], self.union

    @property
    def told(self) -> bool:
        """Whether the record of the conversation alone says what its roles carry.

        What was decided of a named conversation is in its record, but for joins where nobody has any tools: this
        process may know of what was taken back since.
        """
        return is_named(self.conversation.id) and bool(self.began)

    @property
    def grows(self) -> bool:
        """Whether the role would carry other tools than the conversation's requests have carried so far."""
        return self.union != self.began

    @property
    def alike(self) -> bool:
        """Whether all requests carry just the role's own tools."""
        return self.mine == set(self.union) and not self.grows

    @property
    def lane(self) -> str:
        """The name of the role's own tool set."""
        return "\0".join(sorted(self.mine)) or NO_TOOLS

    @property
    def began_bare(self) -> bool:
        """Whether a role without tools was a fork without any, where the conversation's requests carry some now."""
        return bool(self.union) and not self.mine and self.asked.forked(self.lane)

    @property
    def read_without_us(self) -> bool:
        """Whether the provider reads of the application's own requests all that it would of forks with these tools."""
        rules = rules_in(self.conversation, self.services, self.model)
        if rules.markers is None:
            return True
        # A provider's rule: where marks decide, the application's own may have none, and one that the provider sets
        # itself stands at the end: what other conversations begin with is read behind a mark of ours, if long enough.
        begins = self._count(self.team.prefix.text) + self._tokens(self.mine)
        return CachePrices.of(rules, cached=self.asked.cached).keeps_own and begins < rules.min_tokens

    def pays(self) -> bool:
        """Whether reading others' tools costs less than sharing saves (``union_pays``)."""
        said, rules = self.asked.spoken(), self.services.profile(self.model)
        others = readers(max(1, self.asked.others), read=rules.read, hears_itself=self.asked.hears_itself)
        opening = self._count(self.team.prefix.text) + sum(said)
        # Money: where nobody else reads what is said, each request of a turn reads others' tools for the opening alone.
        calls = CALLS if self.mine and not self.asked.joint else 1
        return union_pays(
            # What is added is foreign to all others.
            foreign=max(self._foreign, self._tokens(set(self.union) - set(self.began))),
            opening=opening // calls,
            reply=sum(said) / len(said) if len(said) >= _KNOWN else REPLY,
            others=others if self.asked.joint else 0,
            read=rules.read,
            whole=rules.match == "unit",
        )

    def starts(self) -> bool:
        """Whether the first to carry them loses little by it, should nobody follow (``union_starts``)."""
        rules, asked = self.services.profile(self.model), self.asked
        anew, write, whole = asked.anew().before + self._anew(), rules.default_ttl.write, rules.match == "unit"
        # Without sharing nothing is kept there at all, so that others' tools are the smaller part of what is at stake.
        keeps_own = CachePrices.of(rules, cached=asked.cached).keeps_own
        # Where whole requests are kept, newcomers read nothing at first: there a tenth alone decides.
        if (
            keeps_own
            and not whole
            and not newcomers_pay(
                foreign=self._foreign,
                shared=self._count(self.team.prefix.text) + sum(asked.spoken()),
                newcomers=self._newcomers(),
                read=rules.read,
                write=write,
                anew=anew,
            )
        ):
            return False
        return union_starts(
            foreign=self._foreign, opening=self._sent, before=asked.paid(), write=write, whole=whole, anew=anew
        )

    def _newcomers(self) -> int:
        """Roles that may be yet to come: those that are known of, else as many as would bring the tools of all."""
        bring = len(set(self.union) - self.mine) // max(1, len(self.mine))
        known = bring if self.team.alone else self.asked.others
        return max(1, known - self.asked.heard())

    def cost(self) -> int:
        """What it costs to be the first to carry them."""
        return round(self._added * self.services.profile(self.model).default_ttl.write + self._anew())

    def _anew(self) -> float:
        """What is paid once more where it brings tools that the conversation has not carried so far (``grown``)."""
        rules = self.services.profile(self.model)
        if not self.grows:
            return 0.0
        return grown(
            texts=self.asked.anew().texts,
            sent=self._sent,
            read=rules.read,
            write=rules.default_ttl.write,
            keeps_own=CachePrices.of(rules, cached=self.asked.cached).keeps_own,
        )

    @property
    def _foreign(self) -> int:
        """Tokens of the tools that a role would carry and does not have: this one, or those whom it needs to join."""
        return max(self._added, self._tokens(self.mine) if self.asked.mutual and self._added else 0)

    @property
    def _added(self) -> int:
        """Tokens of the tools that the role would carry and does not have."""
        return self._tokens(set(self.union) - self.mine)

    @property
    def _sent(self) -> int:
        """Tokens of its request as the application made it."""
        return self._opening() + sum(self.asked.spoken())

    def gains(self) -> bool:
        """Whether a role that kept its own gains by them from this request on (``union_gains``)."""
        rules = rules_in(self.conversation, self.services, self.model)
        found, said = self.asked.outrun(self.lane, rules.match == "unit"), self.asked.spoken()
        missed = sum(said[found.end : found.line])
        if not missed:
            return False
        # What the provider keeps of the role's last request is paid anew behind other tools.
        kept = found.kept and self._opening() + sum(said[: found.end]) >= rules.min_tokens
        return union_gains(
            foreign=self._added,
            missed=missed,
            read=rules.read,
            text=self.asked.text if kept else 0,
            before=0 if self.began_bare else self.asked.paid(),
            others=max(1, self.asked.others),
        )

    def _opening(self) -> int:
        """Tokens of what stands before the conversation in the role's own layout."""
        return self._count(self.team.prefix.text) + self._tokens(self.mine) + self.asked.text

    def _tokens(self, names: Collection[str]) -> int:
        """Tokens of the shared tools of these names."""
        return sum(self._count(tool.schema.decode()) for tool in self.team.prefix.among(names))

    def _count(self, text: str) -> int:
        return self.services.count(text, self.model)

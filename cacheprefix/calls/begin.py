"""Begins one model request, before it is sent: decode, mark, expect; and what is done when its answer ends."""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cacheprefix.cache import Breakpoint, Observation, SentBy, mark, plan_breakpoints
from cacheprefix.cache.breakpoints.plan import carries
from cacheprefix.cache.lifetimes import AUTO, offered
from cacheprefix.cache.verdict import Way
from cacheprefix.call import Call
from cacheprefix.calls.arms import comparable
from cacheprefix.calls.gating import AnyGate
from cacheprefix.calls.pending import PendingCall, Started
from cacheprefix.calls.report import units_of
from cacheprefix.calls.state import SharedState
from cacheprefix.conversation import Conversation
from cacheprefix.effects import Flow, adrive, drive
from cacheprefix.errors import named
from cacheprefix.layout import FOLLOW, ForkPolicy, Pass, Worth, said_with_authority
from cacheprefix.layout.baseline import Own, Times
from cacheprefix.layout.plan import UNASKED, RequestPlan
from cacheprefix.layout.team import NOTHING, Team
from cacheprefix.layout.worth_sharing import learn_scale
from cacheprefix.plugins import Plugins
from cacheprefix.profiles import Amount, Profile, Ttl, Usage, cost_units, money, normalise_usage
from cacheprefix.prompt import Api, Layout, Prompt, Reason, chain, dumps_sorted, lane_key, reason
from cacheprefix.prompt.reasons import LEFT_ALONE, Unsure
from cacheprefix.prompt.sections import digest, with_sections
from cacheprefix.services import in_our_tokens
from cacheprefix.wire import redecode

if TYPE_CHECKING:
    from cacheprefix.calls.pending import Fail, Finish, First

Boundary = Callable[[Prompt], int | None] | int | None
"""Leading sections that siblings share, or what finds their number in the decoded prompt."""
Headers = Mapping[str, Any]
"""Of one request, by name; what is no string is left out."""
_FURTHER = "a further conversation"
"""What stands for one in a dry run."""
_Gate = tuple[bytes, Worth]
"""By what siblings find one another, and what waiting gains them."""
Original = Callable[[Prompt], Prompt | None] | None
"""Gives, from the prompt before it was marked, the prompt as the application made it: one without sections where the
application would have sent nothing, None where it is not known."""


def unasked(prompt: Prompt) -> Prompt:
    """The original of a request that the application would not have sent: what it costs is a cost of ours alone."""
    return replace(prompt, sections=())


@dataclass(frozen=True, slots=True)
class Request:
    """A request that is about to be sent."""

    body: Mapping[str, Any]
    api: Api
    agent: str = ""
    conversation: str | Conversation = ""
    boundary: Boundary = None
    """How many leading sections its siblings share."""
    original: Original = None
    """For the estimate of what it would have cost unmodified; None where the body is the application's own."""
    headers: Headers | None = None
    """That it goes out with; those that the provider's cache knows are looked at."""
    provider: str | None = None
    """Names the profile, where the model's name does not tell."""
    policy: ForkPolicy | None = None
    scope: str | None = None
    """The tenant whose request it is; None for the team's."""
    rewrite: bool = True
    """False to only observe it."""
    repeated: bool = False
    """For a layout that nobody may share: where the provider keeps only what is marked, it is marked as far as an
    earlier request began with it, so that a call that stays the only one pays for no write."""
    last: bool = False
    """Whether it is known that none will begin like it: then it reads what stands, and writes nothing."""
    continues: bool = False
    """Whether a request that begins like this one will follow."""
    passes: bool = False
    """Whether none is expected to go on behind its boundary, whatever stands there: nothing of that is written."""
    fronts: bool = False
    """Whether the role's text stands in front of all that is said, for its requests of later conversations to read."""
    trailing: bool = False
    """Whether text for this one alone will be put behind it."""
    layout: Layout | None = None
    """None for a request that no role makes, which is only observed."""
    reasons: tuple[Reason, ...] = ()
    tail: str = ""
    """The role's text as it stands in the body, in a message of the user's."""
    said_as: str = "user"
    """Under which role of the API that message is to be sent."""
    decided: Conversation | None = None
    """Where its layout is decided, if not in its own conversation: what the provider counts is learned there too."""
    placed: tuple[str, str] | None = None
    """The tenant and the conversation whose later requests go by where its role's text stands (``RequestPlan``)."""

    def laid_out(self, plan: RequestPlan[Any]) -> Request:
        """The same, with what its plan says of it."""
        tail = plan.text if plan.forks else ""
        told = replace(self, layout=plan.layout, reasons=plan.reasons, tail=tail, said_as=plan.said_as)
        rewrite = self.rewrite or plan.routed
        return replace(told, last=plan.last, fronts=plan.fronts, rewrite=rewrite, placed=plan.placed)


@dataclass(frozen=True, slots=True)
class _Sender:
    """Whose request it is, and when it goes out."""

    talk: tuple[str, str]
    """The tenant, and the id of the conversation."""
    now: float
    crew: str = ""
    """The name of those whose layout is decided together; empty where that is the conversation's own."""


@dataclass(frozen=True, slots=True)
class _Going:
    """A request as it goes out."""

    held: Conversation | None
    """Its conversation, where that is held here."""
    sender: _Sender
    kin: str | None
    """As in ``SentBy``."""
    agent: str
    profile: Profile
    """The provider's rules, in its own tokens."""
    laid: Mapping[str, Any]
    """The body before it was marked."""
    given: Prompt
    """The same, decoded."""
    body: Mapping[str, Any]
    """The body that is sent."""
    prompt: Prompt
    """The same, decoded."""
    ours: bool
    """Whether we chose where its marks stand: the application set none, or nobody shares it."""


@dataclass(frozen=True, slots=True)
class _Came:
    """How far a request in the application's own layout begins as an earlier one did."""

    limit: int
    """Sections that both begin with."""
    goes_on: bool
    """Whether those reach beyond the system text and the tools."""
    pays: bool
    """Whether its role's requests are known to be gone on from, or it is not known yet."""


@dataclass(frozen=True, slots=True)
class _Marking:
    """What is known of a request that decides where its breakpoints stand; see ``plan_breakpoints``."""

    boundary: int | None = None
    """Leading sections that siblings share."""
    skip_tail: bool = False
    """Whether nothing goes on behind the boundary, so that writing it would be paid for in vain."""
    continues: bool = False
    """Whether a request that begins like this one will follow."""
    trailing: bool = False
    """Whether text for this one alone will be put behind it."""
    places: Sequence[Breakpoint] | None = None
    """The breakpoints, where they are known already."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Begins the requests of one team, and takes in what came of them. Thread-safe."""

    team: Team
    state: SharedState
    plugins: Plugins
    forks: bool
    """False for a session that only observes."""
    off: bool = False
    """True where not even observing is wanted."""
    waits: bool = False
    """Whether a gate decides which of them wait for a sibling."""

    def begin(self, asked: Request, leave: Pass = FOLLOW) -> PendingCall:
        """Observe and, in ``fork`` mode, mark; on any failure of ours the body goes out as it came."""
        if self.off:
            leave.release(ok=False)
            return PendingCall(asked.body)
        state, observation = self.state, None
        state.catch_up()
        try:
            going = self._going(asked)
            self._foresee(going, asked.layout if self.forks else None)
            self.plugins.call_all("before_call", prompt=going.prompt)
            held = going.held
            events, epoch = ((), 0) if held is None else (held.events_for(going.agent), held.ledger.epoch)
            scope, talk = going.sender.talk
            # Without us it would have gone out before it waited.
            arrived = going.sender.now - leave.waited
            own, known = self._own(asked, going.given, Own(going.given, scope, going.agent, talk, arrived))
            made = None if own is None or own.prompt is going.given else own.prompt
            # Money: to go beside a sibling was our own decision, as waiting for it would have cost more than it saves.
            beside = self.forks and self.waits and asked.layout is not None
            way: Way = "observe" if not self.forks else "by hand" if asked.layout is None else "fork"
            by = SentBy(
                scope, going.agent, talk, going.kin, events=events, spared=going.ours, beside=beside, made=made, way=way
            )
            observation = state.model.begin(going.prompt, going.profile, by, at=going.sender.now)
            started = self._started(asked, going, observation, epoch=epoch, own=own, known=known)
            if own is not None:
                state.notices.attempt("estimate", partial(state.unmodified.sent, own, observation), None)
        except Exception as error:
            state.notices.failed("begin", error)
            # Nothing of ours is written by it, so that siblings need not wait and the next one leads.
            leave.release(ok=False)
            if observation is not None:
                begun = observation
                state.notices.attempt("fail", lambda: state.model.fail(begun), None)
            return PendingCall(asked.body, None, *self._reports(leave, asked.agent), leave=leave)
        except BaseException:
            leave.release(ok=False)
            raise
        state.catch_up()
        return PendingCall(going.body, started, *self._reports(leave, asked.agent), leave=leave, unmarked=going.laid)

    def _going(self, asked: Request) -> _Going:
        """A request decoded, its conversation found, and marked where it may be and that gains something."""
        state, services, team = self.state, self.state.services, self.team
        owner = team.owner(asked.scope)
        held, talk = self._held(asked, owner)
        now = services.clock()
        laid = self._spoken(asked)
        given, profile = self._read(laid, asked.api, asked.headers, asked.provider)
        agent = team.agent(asked.agent)
        if not talk and asked.agent:
            # Privacy: a request without a name joins a conversation only where it says all that was said there.
            talk = state.find(owner, given.digests[given.head :])
        sender = _Sender((owner[1], talk), now, "" if asked.decided is None else asked.decided.id)
        # A conversation that the user keeps out of the roll-out, and a role that got dearer, are left alone; and what
        # the provider is to refuse is refused by the words that the application wrote.
        left = UNASKED in asked.reasons or any(one.why in LEFT_ALONE for one in asked.reasons)
        marks = self.forks and not left
        # Money: what nobody shares is marked only where it comes again, or its write is paid for in vain.
        needs = marks and profile.markers is not None and not profile.implicit_breakpoint
        again = needs and asked.repeated
        # Marks are placed by the provider's rules in our own tokens; what is expected goes by its own.
        rules = in_our_tokens(profile, services.scale(given.model))
        body, prompt = laid, given
        came: _Came | None = None
        if needs and (again or (asked.rewrite and asked.layout == "own")):
            # Money: a role whose own requests were not gone on from writes only what an earlier one began with, too.
            came = self._came(given, rules, sender, agent)
            again = again or not came.pays
        if again and came is not None:
            body, prompt = self._marked_again(laid, given, rules, sender, asked, came)
        elif marks and asked.rewrite:
            limit = asked.boundary(given) if callable(asked.boundary) else asked.boundary
            if asked.fronts and limit is not None:
                limit += 1  # later conversations begin with the role's text too
            skip = asked.passes or (asked.policy is not None and asked.policy.skip_cache_write)
            marking = _Marking(limit, skip, asked.continues, asked.trailing)
            body, prompt = self._marked(laid, given, rules, marking, sender)
        return _Going(
            held=held,
            sender=sender,
            kin=state.unnamed.kin(owner, talk),
            agent=agent,
            profile=profile,
            laid=laid,
            given=given,
            body=body,
            prompt=prompt,
            ours=again or (marks and asked.rewrite and not given.marked and given.top_marker is None),
        )

    def _started(
        self, asked: Request, going: _Going, observation: Observation, *, epoch: int, own: Own | None, known: bool
    ) -> Started:
        """What is to be known of a request when its answer ends; ``own`` is it as the application made it."""
        (_, talk), now = going.sender.talk, going.sender.now
        totals, read = observation.record.totals, observation.outlook.read
        self.state.cards.sent(asked.agent, going.prompt.sections, totals, read)
        if asked.original is not None and own is not None and own.prompt.sections:
            self.team.asked(asked.agent, own.prompt, going.prompt)
        layout, reasons = self._why(asked)
        return Started(
            prompt=going.prompt,
            profile=going.profile,
            observation=observation,
            agent=going.agent,
            conversation=talk,
            purpose=asked.policy.purpose if asked.policy else "",
            started_at=now,
            own=own,
            known=known,
            held=going.held,
            decided=asked.decided,
            epoch=epoch,
            layout=layout,
            reasons=reasons,
            tail=asked.tail,
            noted=asked.placed is not None,
        )

    def _read(
        self, body: Mapping[str, Any], api: Api, headers: Headers | None, provider: str | None = None
    ) -> tuple[Prompt, Profile]:
        """A body with those of its headers that part the provider's cache, and the rules for it.

        Privacy: no other header is kept; some hold keys.
        """
        state = self.state
        prompt = state.decode(body, api)
        profile = state.services.profile(prompt.model, api, provider)
        told = {name.lower(): value for name, value in (headers or {}).items() if isinstance(value, str) and value}
        known = {name: told[name] for name in profile.headers if name in told}
        return (state.decode(body, api, headers=known) if known else prompt), profile

    def _spoken(self, asked: Request) -> Mapping[str, Any]:
        """The body with the role's text said as its plan says; where no such message may stand there, as a user's."""
        if asked.said_as == "user" or not asked.tail or not asked.rewrite:
            return asked.body
        found = said_with_authority(asked.body, asked.api, asked.tail, asked.said_as)
        if found is None:
            self.state.notices.note(
                f"the text of role {asked.agent!r} is said as a user's in some requests: it stands before all that was "
                "said, among other text, or where the provider takes no message of the application's"
            )
        return asked.body if found is None else found

    def _held(self, asked: Request, owner: tuple[str, str]) -> tuple[Conversation | None, str]:
        """The conversation that a request belongs to, where it is known, and its id."""
        talk = asked.conversation
        if isinstance(talk, str):
            return self.state.conversations.get((*owner, talk)), talk
        return talk, talk.id

    def _why(self, asked: Request) -> tuple[Layout, tuple[Reason, ...]]:
        """The layout of a request, and why."""
        if not self.forks:
            return "observed", (reason("observe_mode"),)
        if asked.layout is None:
            return "observed", asked.reasons or (reason("outside_fork"),)
        return asked.layout, asked.reasons

    def _foresee(self, going: _Going, layout: Layout | None) -> None:
        """Say once what in a request will keep the cache from hitting, before anything is paid for it."""
        note, talk = self.state.notices.note, going.sender.talk[1]
        look = partial(self.state.preflight.look, agent=going.agent, talk=talk, note=note, layout=layout)
        self.state.notices.attempt("lint", lambda: look(going.prompt), None)

    def gate_key(
        self,
        body: Mapping[str, Any],
        api: Api,
        boundary: Boundary,
        scope: str | None,
        *,
        streams: bool | None,
        headers: Headers | None = None,
    ) -> tuple[_Gate, ...]:
        """What siblings of a request wait for together, and what that is worth; empty where waiting gains nothing.

        First those of its conversation, which share all of it, then those of others, which share its system text and
        tools and nothing that was said. Without a boundary it is in the application's own layout.
        """
        if not self.forks:
            return ()
        prompt, profile = self._read(body, api, headers)
        profile = in_our_tokens(profile, self.state.services.scale(prompt.model))
        limit = boundary(prompt) if callable(boundary) else boundary
        if boundary is None:
            limit = _kept_by_itself(prompt, profile)
        gating, streams = self.state.gating, bool(body.get("stream")) if streams is None else streams
        shared = prompt.totals[min(limit, len(prompt.sections)) - 1] if limit and prompt.sections else 0
        # Asked twice, since what is warm takes longer to find out.
        if not limit or gating.worth(profile, prompt.model, cold=shared, streams=streams) is None:
            return ()
        where = self.team.scope if scope is None else scope
        marked = prompt if boundary is None else self._marked(body, prompt, profile, _Marking(limit), None)[1]
        warm = self.state.model.expect(marked, profile, scope=where, at=self.state.services.clock()).tokens
        worth = gating.worth(profile, prompt.model, cold=shared - warm, warm=warm, streams=streams)
        if worth is None:
            return ()
        lane = lane_key(prompt, profile.settings, provider=profile.provider, scope=where)
        digests, head = chain(prompt, profile.settings), prompt.head
        if boundary is None and profile.match != "block":
            head = max((at + 1 for at in prompt.marked if at < head), default=0)
        whole = (lane + digests[limit - 1], worth)
        # Who keeps whole requests only has nothing for a conversation that goes on otherwise.
        if not 0 < head < limit or profile.match == "unit":
            return (whole,)
        cold = prompt.totals[head - 1] - warm
        other = gating.worth(profile, prompt.model, cold=cold, warm=warm, streams=streams)
        return (whole,) if other is None else (whole, (lane + digests[head - 1], other))

    def _marked(
        self,
        body: Mapping[str, Any],
        prompt: Prompt,
        profile: Profile,
        marking: _Marking,
        sender: _Sender | None,
    ) -> tuple[Mapping[str, Any], Prompt]:
        """The body with breakpoints, lifetime and routing key; the very same objects when nothing is to be added.

        ``sender`` is None for a request that is only looked at.
        """
        lifetime = None if sender is None else self._lifetime(prompt, profile, sender)
        chosen = marking.places
        if chosen is None:
            chosen = self.plugins.call_first("place_breakpoints", prompt=prompt, profile=profile)
        if chosen is None:
            chosen = plan_breakpoints(
                prompt,
                profile,
                boundary=marking.boundary,
                skip_tail=marking.skip_tail,
                continues=marking.continues,
                trailing=marking.trailing,
                # OpenAI takes one lifetime a request, which is a setting of it (``_settings``).
                lifetime=None if profile.markers == "openai" else lifetime,
            )
        marked: Mapping[str, Any] = mark(body, prompt.api, prompt, chosen) if chosen else body
        added = self._settings(marked, prompt, profile, lifetime, sender)
        if added:
            marked = {**marked, **added}
        if marked is body:
            return body, prompt
        if not chosen:
            settings = {name: dumps_sorted(value, name) for name, value in added.items()}
            return marked, prompt.with_settings({**prompt.settings, **settings})
        places = [one.section for one in chosen if one.section >= 0]
        again = redecode(prompt, marked, places, self.state.services.count)
        if again is not None:
            return marked, again
        decoded = self.state.decode(marked, prompt.api)
        return marked, _with_headers(decoded, prompt)

    def _lifetime(self, prompt: Prompt, profile: Profile, sender: _Sender) -> Ttl | None:
        """The lifetime for what a request writes; None for the provider's default."""
        lifetimes = self.state.lifetimes
        found = lifetimes.choose(
            profile, prompt.api, model=prompt.model, talk=sender.talk, tokens=prompt.tokens, now=sender.now
        )
        if found is None and lifetimes.chosen not in (None, AUTO):
            on_offer = ", ".join(ttl.name for ttl in offered(profile, prompt.api))
            self.state.notices.note(
                f"lifetime {lifetimes.chosen!r} is none that {profile.name} has here ({on_offer}): its default counts"
            )
        return found

    def _settings(
        self, body: Mapping[str, Any], prompt: Prompt, profile: Profile, lifetime: Ttl | None, sender: _Sender | None
    ) -> dict[str, Any]:
        """What a request of OpenAI's says beside its content: the lifetime, and the key that routes it."""
        added: dict[str, Any] = {}
        if not prompt.api.startswith("openai"):
            return added
        if lifetime is not None and profile.markers == "openai":
            # One lifetime for all of a request's marks, its implicit one included; what the application says stays.
            options = {"ttl": lifetime.name, **(body.get("prompt_cache_options") or {})}
            if options != body.get("prompt_cache_options"):
                added["prompt_cache_options"] = options
        elif lifetime is not None and "prompt_cache_retention" in profile.settings.keys() - body.keys():
            added["prompt_cache_retention"] = lifetime.name
        key = profile.routing_key or ""
        if key and not key.startswith("header:") and key not in body:
            name = self.team.key_of("" if sender is None else sender.crew)
            if not name and profile.rate_per_key is not None and self.state.routing.keys == "auto":
                # Money: the provider finds the machine by the beginning of the text itself; one key for all that have
                # nothing in common would be more than it serves.
                return added
            added[key] = name or NOTHING.key
            if sender is not None:
                added[key], said = self.state.routing.key(added[key], profile, talk=sender.talk, now=sender.now)
                if said:
                    self.state.notices.note(said)
        return added

    def _came(self, prompt: Prompt, profile: Profile, sender: _Sender, agent: str) -> _Came:
        """How far a request in the application's own layout begins as an earlier one did, which is noted."""
        (scope, talk), now = sender.talk, sender.now
        known = self.state.model.expect(prompt, profile, scope=scope, at=now)
        limit, standing = (bisect_right(prompt.totals, tokens) for tokens in (known.shared_tokens, known.tokens))
        whose, goes_on = (scope, agent, prompt.model), limit > prompt.head
        depth = self.state.own_marks.sent(whose, talk, goes_on=goes_on, life=profile.default_ttl.seconds, now=now)
        # Money: where what came before is in the cache, only what was said since is written.
        little = standing > prompt.head
        return _Came(limit, goes_on, pays=little or self.state.own_marks.pays(whose, depth, profile))

    def _marked_again(
        self,
        body: Mapping[str, Any],
        prompt: Prompt,
        profile: Profile,
        sender: _Sender,
        asked: Request,
        came: _Came,
    ) -> tuple[Mapping[str, Any], Prompt]:
        """A body marked where it begins as an earlier one did, and at its end where it goes on from that.

        The first time nobody knows whether it will come again, and a write that nobody reads is paid for in vain. The
        ``last`` one, and one that none has gone on from in other conversations, is marked where something stands: a
        provider reads only up to a mark, and behind it nothing is written.
        """
        scope, now = sender.talk[0], sender.now
        if asked.last or (came.goes_on and not came.pays):
            if prompt.marked or prompt.top_marker is not None:
                return body, prompt  # the application's own marks read
            standing = self.state.model.standing(prompt, profile, scope=scope, at=now)
            found = next((at for at in reversed(standing) if carries(prompt, at)), None)
            places = () if found is None else (Breakpoint(found),)
            return self._marked(body, prompt, profile, _Marking(places=places), sender)
        if not came.limit:
            return body, prompt
        goes_on = came.goes_on
        marking = _Marking(came.limit, skip_tail=not goes_on, continues=goes_on, trailing=asked.trailing)
        return self._marked(body, prompt, profile, marking, sender)

    def _own(self, asked: Request, given: Prompt, own: Own) -> tuple[Own | None, bool]:
        """The request as the application made it, and whether it is known.

        What is left alone is entered too: the application's later requests would have read what it wrote. A session
        that only observes changes nothing, and a fork that the application asked for itself stands for none else.
        """
        if asked.original is None:
            return (own if self.forks and asked.layout != "fork" else None), True
        original = asked.original
        prompt = self.state.notices.attempt("estimate", lambda: original(given), None)
        return (None, False) if prompt is None else (own._replace(prompt=_with_headers(prompt, given)), True)

    def _reports(self, leave: Pass, agent: str) -> tuple[Finish, Fail, First]:
        """What a turn calls when its answer ends, fails, and begins; each lets waiting siblings go."""
        state, gating, went = self.state, self.state.gating, time.monotonic()
        gating.leads(agent, leave)

        def released(turn: PendingCall) -> None:
            """Let siblings go: what they wait for is written; and learn how long they had to wait for it."""
            gating.led(agent, leave)
            leave.release(ok=True)
            seen = turn.seen
            if seen is not None:
                # A request for no answer ends when others would see a first token.
                streamed = turn.first_token_at is not None or seen.purpose == "prewarm"
                gating.pace.took(seen.prompt.model, time.monotonic() - went, streamed=streamed)

        def finished(turn: PendingCall, raw: Any, at: float | None, diagnostics: Any) -> Call | None:
            """The answer is complete: judge it, let siblings go, and tell plugins; None where it is judged later."""
            put_off, call = state.in_step(turn.seen), None
            try:
                if not put_off:
                    call = self._finished(turn, raw, at, diagnostics)
            finally:
                if turn.seen is None or turn.first_token_at is None or turn.seen.profile.readable != "first_token":
                    released(turn)
            if put_off:
                ended = state.services.clock() if at is None else at
                state.afterwards(self._judge_late, turn, raw, ended, diagnostics)
            elif call is not None:
                # Behind the release: a plugin may take its time, and siblings wait for none.
                self._tell(call, leave)
            state.catch_up()
            return call

        def failed(turn: PendingCall) -> None:
            """There will be no answer: nothing was written, so that the next sibling leads."""
            try:
                if state.in_step(turn.seen):
                    state.afterwards(self._failed, turn)
                else:
                    self._failed(turn)
            finally:
                leave.release(ok=False)
            state.catch_up()

        def begun(turn: PendingCall, at: float | None) -> None:
            """The answer has begun, at ``at`` by the session's clock."""
            seen = turn.seen
            turn.first_token_at = when = state.services.clock() if at is None else at
            if seen is not None:
                state.notices.attempt("first token", lambda: state.model.first_token(seen.observation, when), None)
                self._note_begun(seen, when)
                # A provider's rule: where what is written can be read from the first token on, nobody waits longer.
                if seen.profile.readable == "first_token":
                    released(turn)

        return finished, failed, begun

    def _failed(self, turn: PendingCall) -> None:
        """Note that a request got no answer, and expect nothing of it."""
        state, seen = self.state, turn.seen
        if seen is None:
            return
        state.totals.unanswered += turn.sent
        state.failed(seen.conversation)
        if turn.sent and seen.noted:
            state.positions.unanswered(*seen.placed)
        elif not turn.sent:  # a store of answers had one: it was answered all the same
            state.positions.answered(*seen.placed)
        state.notices.attempt("fail", lambda: state.model.fail(seen.observation), None)
        state.notices.attempt("estimate", lambda: state.unmodified.failed(seen.observation), None)
        state.notices.attempt("refused", partial(self._learn_refused, turn.body, sys.exc_info()[1]), None)

    def _learn_refused(self, body: Mapping[str, Any], error: BaseException | None) -> None:
        """Send no more lists of allowed tools to a model whose endpoint refuses them, and say so."""
        model, choice = str(body.get("model", "")), body.get("tool_choice")
        listed = isinstance(choice, Mapping) and choice.get("type") == "allowed_tools"
        # OpenAI takes a list; a gateway that serves a model by OpenAI's name may not, which only its answer tells.
        if listed and _refuses_lists(error) and self.state.services.takes_lists(model):
            self.state.without_lists[model] = True
            said = (
                f"the endpoint of {model!r} refused tool_choice 'allowed_tools', by which a fork keeps a role to its "
                "own tools: from now on they are named in the role's text. Caching(provider='unknown') sends none"
            )
            self.state.notices.note(said)
            self.state.notices.warn_once(f"lists {model}", said)

    def asked_again(self, seen: Started) -> Call:
        """What a request of a dry run comes to in a further conversation, whose messages are other ones; not counted.

        It is laid out as it was. What stands before the messages may be in the cache, in either layout.
        """
        state, record, now = self.state, seen.observation.record, self.state.services.clock()
        prompt, own = _said_elsewhere(seen.prompt, seen.tail), seen.own
        by = SentBy(record.scope, seen.agent, _FURTHER)
        observation = state.model.begin(prompt, seen.profile, by, at=now)
        if own is not None:
            theirs = _said_elsewhere(own.prompt, seen.tail)
            own = own._replace(prompt=theirs, conversation=_FURTHER, arrived=now)
            state.unmodified.sent(own, observation)
        again = replace(seen, prompt=prompt, observation=observation, own=own, conversation=_FURTHER, started_at=now)
        return self._record(again, None, None, now, None)

    def _note_begun(self, seen: Started, when: float) -> None:
        """Note that the answer to a request has begun, for the estimate of others that begin before it has ended."""
        begun = partial(self.state.unmodified.begun, seen.observation, seen.started_at, when)
        self.state.notices.attempt("estimate", begun, None)

    def _finished(self, turn: PendingCall, raw: Any, at: float | None, diagnostics: Any) -> Call | None:
        """What came of a request, entered into the totals, the roles' costs and its conversation.

        ``raw`` is the usage as the provider reported it; None where we did not know the request, or judging it failed.
        """
        seen = turn.seen
        if seen is None:
            return None
        state = self.state
        state.positions.answered(*seen.placed)
        ended = state.services.clock() if at is None else at
        record = partial(self._record, seen, turn.first_token_at, raw, ended, diagnostics)
        call = state.notices.attempt("finish", record, None)
        if call is None:
            return None
        call = replace(call, cut=True) if turn.cut else call
        state.totals.remember(call)
        if state.rehearsed is not None:
            state.rehearsed.append(seen)
        # Money: a role whose forks cost more by the provider's own counts goes back to its own layout, and where there
        # is nothing to compare those with, by the estimate.
        scope, unmodified = seen.observation.record.scope, call.unmodified_units
        returned = dict(state.arms.take(call, scope))
        if unmodified is not None and comparable(call, seen.prompt, None if seen.own is None else seen.own.prompt):
            returned |= state.arms.weigh((scope, call.conversation), call.agent, call.units, unmodified)
        for agent, why in returned.items():
            state.notices.note(f"role {agent!r} goes back to its own layout: {why.said}")
        # On record from now on, wherever a conversation goes on.
        for talk in (seen.held, seen.decided) if self.forks else ():
            if talk is not None:
                learn = partial(learn_scale, talk, seen.prompt, call.usage.input_tokens)
                state.notices.attempt("counts", learn, None)
        if seen.layout == "own":
            state.own_marks.ended((scope, seen.agent, seen.prompt.model), seen.conversation, ended)
        if seen.held is not None:
            seen.held.answered(seen.agent, seen.prompt.model, seen.epoch, _cold_after(seen.prompt, seen.profile, ended))
        return call

    def _judge_late(self, turn: PendingCall, raw: Any, at: float, diagnostics: Any) -> None:
        """Judge a request that ended in the middle of one of our steps, now that this step is done."""
        turn.call = self._finished(turn, raw, at, diagnostics)
        if turn.call is not None:
            self._tell(turn.call, turn.leave)

    def _tell(self, call: Call, leave: Pass) -> None:
        """Tell the gate, plugins and the application what came of a call."""
        self.state.gating.answered(leave, call.usage.cache_read_tokens)
        self.plugins.call_all("after_call", call=call, verdict=call.verdict)
        if call.verdict.alarm:
            self.plugins.call_all("cache_break", verdict=call.verdict)

    def _record(
        self,
        seen: Started,
        first_token_at: float | None,
        raw: Any,
        ended: float,
        diagnostics: Any,
    ) -> Call:
        """A finished request: its usage in one shape, the verdict on it, and what it cost in either layout."""
        usage = raw if isinstance(raw, Usage) else normalise_usage(raw, seen.prompt.api, profile=seen.profile)
        verdict = self.state.model.finish(seen.observation, usage, ended, diagnostics=diagnostics)
        expectation = seen.observation.expectation
        units = units_of(usage, expectation.usage, seen.profile)
        times = Times(seen.started_at, first_token_at, ended)
        unmodified, unsure = self._unmodified(seen, usage, units, times)
        return Call(
            index=verdict.index,
            agent=seen.agent,
            conversation=seen.conversation,
            model=named(seen.prompt.model),
            profile=seen.profile,
            input_tokens=seen.prompt.tokens,
            shared_tokens=expectation.shared_tokens,
            first_of_agent=self.state.totals.first_of(seen.agent),
            usage=usage,
            verdict=verdict,
            unmodified_units=unmodified,
            unsure=dict(unsure),
            units=units,
            # Looked up when somebody asks: the table of prices may have to be loaded.
            paid=Amount(partial(money, usage, seen.prompt.model, seen.profile, at=seen.started_at)),
            started_at=seen.started_at,
            first_token_at=first_token_at,
            ended_at=ended,
            purpose=seen.purpose,
            prefix=self.team.prefix.key,
            layout=seen.layout,
            reasons=seen.reasons,
        )

    def _unmodified(
        self, seen: Started, usage: Usage, units: float, times: Times
    ) -> tuple[float | None, Mapping[Unsure, float]]:
        """Cost units of the request as the application made it, and by how many they may be off.

        None where that is not known at all.
        """
        own = seen.own
        unmodified: float | None = units
        unsure: Mapping[Unsure, float] = {}
        if own is None:
            unmodified = units if seen.known else None
        else:
            estimate = self.state.unmodified.usage
            found = self.state.notices.attempt("estimate", lambda: estimate(own, seen.observation, usage, times), None)
            unmodified, unsure = (None, {}) if found is None else (cost_units(found.usage, seen.profile), found.unsure)
            # It went out as the application made it, and so did all before it, of which the estimate may not know.
            if any(one.why == "began_without_us" for one in seen.reasons):
                unmodified, unsure = units, {}
        # Money: by rules that nobody named, of reads that nobody tells, all of it is a guess.
        if unmodified is not None and not seen.profile.known and usage.cache_read_tokens is None:
            unsure = {"rules": unmodified}
        return unmodified, unsure


def _refuses_lists(error: BaseException | None) -> bool:
    """Whether a provider's error is about the ``tool_choice`` that it was sent."""
    # A framework may raise an error of its own from the SDK's, as Agent Framework does.
    for one in (error, getattr(error, "__cause__", None)):
        if getattr(one, "status_code", None) in (400, 422):
            return any(name in str(one) for name in ("tool_choice", "allowed_tools"))
    return False


def _said_elsewhere(prompt: Prompt, tail: str) -> Prompt:
    """The prompt of another conversation, which begins with other words of as many tokens; its role's text stays.

    Behind that nothing can be read of this conversation, whatever stands there.
    """
    role = prompt.last_of(tail)
    at = next((at for at in range(prompt.head, len(prompt.sections)) if at != role), None)
    if at is None:
        return prompt
    one = prompt.sections[at]
    data = _FURTHER.encode() + one.data
    other = replace(one, data=data, digest=digest(one.tier, one.kind, one.head, data))
    return with_sections(prompt, (*prompt.sections[:at], other, *prompt.sections[at + 1 :]))


def _with_headers(prompt: Prompt, sent: Prompt) -> Prompt:
    """Another form of the request ``sent``, which goes out with the same headers."""
    kept = {name: value for name, value in sent.settings.items() if name.startswith("header:")}
    return prompt.with_settings({**prompt.settings, **kept}) if kept else prompt


def _kept_by_itself(prompt: Prompt, profile: Profile) -> int:
    """How many leading sections of a request in the application's own layout the provider keeps for another one."""
    # The provider's rule: where marks decide, nothing behind the application's last one is kept.
    if profile.markers is None or profile.implicit_breakpoint:
        return len(prompt.sections)
    return max(prompt.marked, default=-1) + 1


def _cold_after(prompt: Prompt, profile: Profile, ended: float) -> float | None:
    """When the provider has forgotten a request for certain, in seconds of the clock; None where it promises nothing.

    The end of the answer plus the longest lifetime of its marks.
    """
    marks = (prompt.sections[index].marker for index in prompt.marked)
    names = {marker.ttl for marker in marks if marker is not None}
    lives = [profile.ttl(name).seconds for name in names or {None}]
    known = [life for life in lives if life is not None]
    return ended + max(known) if known and len(known) == len(lives) else None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Lets the requests of one team wait for a sibling that writes what they share. Thread-safe.

    What is given back goes to ``begin``, which releases those that wait.
    """

    requests: Requests
    gate: AnyGate | None
    """None sends all at once."""

    def queue(
        self,
        body: Mapping[str, Any],
        api: Api,
        *,
        boundary: Boundary,
        scope: str | None = None,
        streams: bool | None = None,
        headers: Headers | None = None,
        plan: RequestPlan[Any] | None = None,
    ) -> Pass:
        """Wait in this thread until a sibling that is writing the same cold prefix has begun to answer.

        Returns at once where nothing is gained: the prefix is warm or short, nobody writes it, the provider lets
        parallel requests share, or the sibling is expected to take longer than the saving is worth. A ``boundary`` of
        None is for the application's own layout: as much as the provider keeps of it. ``streams`` says that this
        request's own answer, should it lead, will let the others go with its first token; by default it does where
        the body asks for a stream. ``plan`` is its own, which is ``unsent`` where the caller is cancelled.
        """
        gates = self._gates(body, api, boundary, scope, streams=streams, headers=headers)
        try:
            return self.follow(*gates)
        except BaseException:
            self.unsent(plan)
            raise

    async def aqueue(
        self,
        body: Mapping[str, Any],
        api: Api,
        *,
        boundary: Boundary,
        scope: str | None = None,
        streams: bool | None = None,
        headers: Headers | None = None,
        plan: RequestPlan[Any] | None = None,
    ) -> Pass:
        """``queue`` without blocking the event loop."""
        gates = self._gates(body, api, boundary, scope, streams=streams, headers=headers)
        try:
            return await self.afollow(*gates)
        except BaseException:
            self.unsent(plan)
            raise

    def unsent(self, plan: RequestPlan[Any] | None) -> None:
        """A request that was laid out is never begun: what comes later goes by it no more than by a refused one."""
        if plan is not None and plan.placed is not None:
            self.requests.state.positions.unanswered(*plan.placed)

    def worth(self, model: str, api: Api, *, cold: int, streams: bool = False) -> Worth | None:
        """What a request gains by waiting for a sibling that writes ``cold`` tokens; None where that is nothing.

        For ``follow``, in adapters that must wait before the body is made.
        """
        state = self.requests.state
        return state.gating.worth(state.services.profile(model, api), model, cold=cold, streams=streams)

    def follow(self, *gates: tuple[bytes, Worth]) -> Pass:
        """Lead all that share a cold part, or wait for who leads, as far as that is worth it.

        ``gates`` name the parts, the longest one first: only who leads there waits for those who share less.
        """
        return drive(self._following(gates))

    async def afollow(self, *gates: tuple[bytes, Worth]) -> Pass:
        """``follow`` without blocking the event loop."""
        return await adrive(self._following(gates))

    def _following(self, gates: Sequence[_Gate]) -> Flow[Pass]:
        """Enter the gates, the longest part first, up to the first one at which another leads and was waited for."""
        leave, keys = FOLLOW, list[bytes]()
        for key, worth in gates:
            try:
                entered = FOLLOW if self.gate is None else (yield from self.gate.entering(key, worth))
            except BaseException:
                leave.release(ok=False)
                raise
            keys.append(key)
            leave = leave.within(entered) if leave.leader else entered
            if not leave.leader:
                break
        return self.requests.state.gating.came_through(leave, *keys)

    def followed(self, leave: Pass, agent: str, model: str, *, expected: bool = False) -> bool:
        """Whether a leader's whole answer is to be received as a stream, so that siblings go with its first token.

        It is where one waits for it, is ``expected`` (by who knows the framework), came when the agent led the last
        time, or may wait in another process. Else one is looked for, for ``LINGER`` seconds; where none comes, those
        who come later go by how long whole answers take.
        """
        return drive(self._followed(leave, agent, model, expected=expected))

    async def afollowed(self, leave: Pass, agent: str, model: str, *, expected: bool = False) -> bool:
        """``followed`` without blocking the event loop."""
        return await adrive(self._followed(leave, agent, model, expected=expected))

    def _followed(self, leave: Pass, agent: str, model: str, *, expected: bool) -> Flow[bool]:
        """Whether a sibling that waits would gain by this answer's first token, so that it is to be streamed."""
        if not leave.leader:
            return False
        gating = self.requests.state.gating
        if expected or gating.awaited(leave, agent) or (yield from leave.joining()):
            return True
        return not gating.goes_whole(leave, model)

    def _gates(
        self,
        body: Mapping[str, Any],
        api: Api,
        boundary: Boundary,
        scope: str | None,
        *,
        streams: bool | None,
        headers: Headers | None,
    ) -> tuple[_Gate, ...]:
        """What siblings wait for together, and what that is worth; empty where waiting gains nothing or at a fault."""

        def found() -> tuple[_Gate, ...]:
            return self.requests.gate_key(body, api, boundary, scope, streams=streams, headers=headers)

        return () if self.gate is None else self.requests.state.notices.attempt("gate", found, ())

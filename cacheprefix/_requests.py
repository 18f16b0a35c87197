"""One request through a session: decode, mark, expect, and afterwards the verdict."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cacheprefix._condense import cold_after
from cacheprefix._foresight import Foresight
from cacheprefix._lanes import Lanes
from cacheprefix._places import Places
from cacheprefix.cache import Breakpoint, CacheModel, mark, plan_breakpoints
from cacheprefix.calls.gating import PRICE, Gating
from cacheprefix.calls.pending import PendingCall, Seen
from cacheprefix.calls.report import Call, Totals, units_of
from cacheprefix.errors import named
from cacheprefix.layout.cards_advice import Placement
from cacheprefix.locks import RLock
from cacheprefix.notices import Notices
from cacheprefix.profiles import Profile, Usage, money, normalise_usage
from cacheprefix.prompt import ABOUT, Api, Envelope, Prompt, chain, dumps_sorted, lane_key
from cacheprefix.unnamed import Owner, Unnamed, common_key
from cacheprefix.wire import Memo, redecode

if TYPE_CHECKING:
    from cacheprefix.conversation import Conversation
    from cacheprefix.layout import ForkPolicy, Pass, Worth
    from cacheprefix.session import Session

Boundary = Callable[[Prompt], int | None] | int | None
Original = Callable[[Prompt], Prompt | None] | None


@dataclass(slots=True)
class Shared:
    """What a session and its children have in common."""

    model: CacheModel
    unmodified: CacheModel
    totals: Totals
    notices: Notices
    memo: Memo
    conversations: OrderedDict[tuple[str, str, str], Conversation]
    sharing: set[tuple[str, str, str]]
    lock: RLock
    roles: set[str] = field(default_factory=set)
    """Roles that front doors were made for."""
    foresight: Foresight = field(default_factory=Foresight)
    placement: Placement = field(default_factory=Placement)
    places: Places = field(default_factory=Places)
    lanes: Lanes = field(default_factory=Lanes)
    gating: Gating = field(default_factory=Gating)
    unnamed: Unnamed = field(default_factory=Unnamed)

    def find(self, owner: Owner, said: Sequence[Hashable], run: object = None) -> str:
        """The id of a request's conversation that has no name; those that make room for it are let go."""
        found, gone = self.unnamed.find(owner, said, run=run)
        for each in gone:
            self.let_go(*each)
        return found

    def let_go(self, owner: Owner, conversation: str) -> None:
        """Forget a conversation that nobody comes back to."""
        with self.lock:
            self.conversations.pop((*owner, conversation), None)
        self.places.forget(owner[1], conversation)
        self.model.let_go(conversation)

    @classmethod
    def fresh(
        cls,
        clock: Callable[[], float],
        count: Callable[[str, str], int],
        envelope: Envelope = ABOUT,
        gate_price: float = PRICE,
    ) -> Shared:
        """That of a session that has seen nothing yet."""
        model, unmodified = (CacheModel(clock=clock, count=count, envelope=envelope) for _ in range(2))
        gating = Gating(gate_price)
        return cls(model, unmodified, Totals(), Notices(), Memo(), OrderedDict(), set(), RLock(), gating=gating)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the adapter hands it in; the fields are those of ``Session.begin``."""

    body: Mapping[str, Any]
    api: Api
    agent: str
    conversation: str
    boundary: Boundary
    original: Original
    headers: Mapping[str, str] | None
    provider: str | None
    policy: ForkPolicy | None
    scope: str
    rewrite: bool
    repeated: bool = False
    held: Conversation | None = None
    continues: bool = False
    trailing: bool = False


def begin(session: Session, asked: Asked, leave: Pass) -> PendingCall:
    """Observe and, in ``fork`` mode, mark; on any failure of ours the body goes out as it came."""
    observation = None
    try:
        now = session.clock()
        sent = asked.body
        prompt = session.decode(sent, asked.api, headers=asked.headers)
        profile = session.profile(prompt.model, asked.api, asked.provider)
        given = prompt
        again = asked.repeated and profile.markers is not None and not profile.implicit_breakpoint
        # What goes out unmarked is in the unmodified cache, too, where the application marks it itself.
        original = asked.original or ((lambda _: given) if again else None)
        if again:
            sent, prompt = _marked_again(session, sent, prompt, profile, asked, now)
        elif asked.rewrite:
            limit = asked.boundary(prompt) if callable(asked.boundary) else asked.boundary
            skip = asked.policy is not None and asked.policy.skip_cache_write
            sent, prompt = _marked(
                session, sent, prompt, profile, limit, skip=skip, continues=asked.continues, trailing=asked.trailing
            )
        agent = f"{session.name}/{asked.agent}" if session.name else asked.agent
        owner, talk = (session.name, asked.scope), asked.conversation
        if not talk and asked.agent:
            talk = session.shared.find(owner, given.digests[given.head :])
        kin = session.shared.unnamed.kin(owner, talk)
        _foresee(session, prompt, profile, agent, talk, now)
        session.plugins.call_all("before_call", prompt=prompt)
        held = asked.held
        events, epoch = ((), 0) if held is None else (held.events_for(agent), held.ledger.epoch)
        observation = session.shared.model.begin(
            prompt, profile, scope=asked.scope, agent=agent, session=talk, at=now, events=events,
            spared=again, kin=kin,
        )  # fmt: skip
        session.shared.placement.sent(asked.agent, prompt.sections, observation.outlook.sections)
        expected = _estimate(session, asked, original, prompt, profile, agent, now)
        expected = None if again and prompt is given and asked.original is None else expected
        purpose = asked.policy.purpose if asked.policy else ""
        seen = Seen(prompt, profile, observation, agent, talk, purpose, now, expected, held, epoch)
    except Exception as error:
        session.shared.notices.failed("begin", error)
        # Nothing of ours is written by it, so that siblings need not wait and the next one leads.
        leave.release(ok=False)
        if observation is not None:
            begun = observation
            session.attempt("fail", lambda: session.shared.model.fail(begun), None)
        return PendingCall(asked.body, None, *_reports(session, leave, asked.agent))
    except BaseException:
        leave.release(ok=False)
        raise
    return PendingCall(sent, seen, *_reports(session, leave, asked.agent))


def _foresee(session: Session, prompt: Prompt, profile: Profile, agent: str, talk: str, now: float) -> None:
    look = session.shared.foresight.look
    session.attempt("lint", lambda: look(session, prompt, profile, agent=agent, talk=talk, now=now), None)


def gate_key(
    session: Session, body: Mapping[str, Any], api: Api, boundary: Boundary, scope: str | None, *, streams: bool | None
) -> tuple[bytes, Worth] | None:
    """What siblings of a request wait for together, and what that is worth; None where waiting gains nothing."""
    if session.mode != "fork":
        return None
    prompt = session.decode(body, api)
    profile = session.profile(prompt.model, api)
    limit = boundary(prompt) if callable(boundary) else boundary
    gating, streams = session.shared.gating, bool(body.get("stream")) if streams is None else streams
    shared = prompt.totals[min(limit, len(prompt.sections)) - 1] if limit and prompt.sections else 0
    # Asked twice, since what is warm takes longer to find out.
    if not limit or gating.worth(profile, prompt.model, cold=shared, streams=streams) is None:
        return None
    where = session.scope if scope is None else scope
    _, marked = _marked(session, body, prompt, profile, limit)
    warm = session.shared.model.expect(marked, profile, scope=where, at=session.clock()).tokens
    worth = gating.worth(profile, prompt.model, cold=shared - warm, warm=warm, streams=streams)
    if worth is None:
        return None
    lane = lane_key(prompt, profile.settings, provider=profile.provider, scope=where)
    return lane + chain(prompt, profile.settings)[limit - 1], worth


def _marked(
    session: Session,
    body: Mapping[str, Any],
    prompt: Prompt,
    profile: Profile,
    limit: int | None,
    *,
    skip: bool = False,
    continues: bool = False,
    trailing: bool = False,
) -> tuple[Mapping[str, Any], Prompt]:
    """The body with breakpoints and routing key; the very same objects when nothing is to be added."""
    chosen: Sequence[Breakpoint] | None = session.plugins.call_first(
        "place_breakpoints", prompt=prompt, profile=profile
    )
    if chosen is None:
        chosen = plan_breakpoints(
            prompt, profile, boundary=limit, skip_tail=skip, continues=continues, trailing=trailing
        )
    marked: Mapping[str, Any] = mark(body, prompt.api, prompt, chosen) if chosen else body
    key = profile.routing_key or ""
    if key and not key.startswith("header:") and prompt.api.startswith("openai") and key not in body:
        marked = {**marked, key: session.prefix.key}
    if marked is body:
        return body, prompt
    if not chosen:
        return marked, prompt.with_settings({**prompt.settings, key: dumps_sorted(session.prefix.key, key)})
    places = [one.section for one in chosen if one.section >= 0]
    again = redecode(prompt, marked, places, session.count)
    if again is not None:
        return marked, again
    decoded = session.decode(marked, prompt.api)
    kept = {name: value for name, value in prompt.settings.items() if name.startswith("header:")}
    return marked, replace(decoded, settings={**decoded.settings, **kept}) if kept else decoded


def _marked_again(
    session: Session, body: Mapping[str, Any], prompt: Prompt, profile: Profile, asked: Asked, now: float
) -> tuple[Mapping[str, Any], Prompt]:
    """A body marked where it begins as an earlier one did, and at its end where it goes on from that.

    The first time nobody knows whether it will come again, and a write that nobody reads is paid for in vain.
    """
    known = session.shared.model.expect(prompt, profile, scope=asked.scope, at=now).shared_tokens
    limit = bisect_right(prompt.totals, known)
    if not limit:
        return body, prompt
    goes_on = limit > prompt.head
    return _marked(session, body, prompt, profile, limit, skip=not goes_on, continues=goes_on, trailing=asked.trailing)


def _estimate(
    session: Session, asked: Asked, original: Original, sent: Prompt, profile: Profile, agent: str, now: float
) -> Usage | None:
    """What the request would have used as the application made it; None when that is the request itself."""
    if original is None:
        return None
    prompt = session.attempt("estimate", lambda: original(sent), None)
    if prompt is None:
        return None
    model = session.shared.unmodified
    talk = common_key(asked.conversation)
    observation = model.begin(prompt, profile, scope=asked.scope, agent=agent, session=talk, at=now)
    model.finish(observation, None, now)
    expected: Usage = observation.expectation.usage
    return expected


def _reports(session: Session, leave: Pass, agent: str) -> tuple[Any, Any, Any]:
    """What a turn calls when its answer ends, fails, and begins; each lets waiting siblings go."""
    gating, went = session.shared.gating, time.monotonic()

    def released(turn: PendingCall) -> None:
        gating.led(agent, leave)
        leave.release(ok=True)
        seen, begun = turn.seen, turn.first_token_at is not None
        if seen is not None:
            # A request for no answer ends when others would see a first token.
            gating.pace.took(seen.prompt.model, time.monotonic() - went, streamed=begun or seen.purpose == "prewarm")

    def finished(turn: PendingCall, raw: Any, at: float | None, diagnostics: Mapping[str, Any] | None) -> Call | None:
        try:
            call = _finished(session, turn, raw, at, diagnostics)
        finally:
            if turn.seen is None or turn.first_token_at is None or turn.seen.profile.readable != "first_token":
                released(turn)
        if call is not None:
            gating.answered(leave, call.usage.cache_read_tokens)
        return call

    def failed(turn: PendingCall) -> None:
        seen = turn.seen
        try:
            if seen is not None:
                session.attempt("fail", lambda: session.shared.model.fail(seen.observation), None)
        finally:
            leave.release(ok=False)

    def begun(turn: PendingCall, at: float | None) -> None:
        seen = turn.seen
        turn.first_token_at = when = session.clock() if at is None else at
        if seen is not None:
            session.attempt("first token", lambda: session.shared.model.first_token(seen.observation, when), None)
            if seen.profile.readable == "first_token":
                released(turn)

    return finished, failed, begun


def _finished(
    session: Session, turn: PendingCall, raw: Any, at: float | None, diagnostics: Mapping[str, Any] | None
) -> Call | None:
    seen = turn.seen
    if seen is None:
        return None
    ended = session.clock() if at is None else at
    call = session.attempt("finish", lambda: _record(session, seen, turn.first_token_at, raw, ended, diagnostics), None)
    if call is None:
        return None
    session.shared.totals.remember(call)
    if seen.held is not None:
        seen.held.answered(seen.agent, seen.prompt.model, seen.epoch, cold_after(seen.prompt, seen.profile, ended))
    session.plugins.call_all("after_call", call=call, verdict=call.verdict)
    if call.verdict.alarm:
        session.plugins.call_all("cache_break", verdict=call.verdict)
        alarm = session.on_break
        if alarm is not None:
            session.attempt("on_break", lambda: alarm(call.verdict), None)
    return call


def _record(
    session: Session,
    seen: Seen,
    first_token_at: float | None,
    raw: Any,
    ended: float,
    diagnostics: Mapping[str, Any] | None,
) -> Call:
    usage = raw if isinstance(raw, Usage) else normalise_usage(raw, seen.prompt.api, profile=seen.profile)
    verdict = session.shared.model.finish(seen.observation, usage, ended, diagnostics=diagnostics)
    expectation = seen.observation.expectation
    units = units_of(usage, expectation.usage, seen.profile)
    plain = seen.unmodified
    return Call(
        index=verdict.index,
        agent=seen.agent,
        conversation=seen.conversation,
        model=named(seen.prompt.model),
        profile=seen.profile,
        input_tokens=seen.prompt.tokens,
        shared_tokens=expectation.shared_tokens,
        first_of_agent=session.shared.totals.first_of(seen.agent),
        usage=usage,
        verdict=verdict,
        unmodified_units=units if plain is None else units_of(plain, plain, seen.profile),
        units=units,
        money=money(usage, seen.prompt.model, seen.profile, at=seen.started_at),
        started_at=seen.started_at,
        first_token_at=first_token_at,
        ended_at=ended,
        purpose=seen.purpose,
        prefix=session.prefix.key,
    )

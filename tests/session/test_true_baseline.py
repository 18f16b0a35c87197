"""What the report says that a team had cost unmodified, beside what it costs, about where a provider's minimum lies."""

from __future__ import annotations

import base64
import random
from dataclasses import replace
from math import inf

import pytest

from benchmarks._table import counter
from benchmarks.role_plans import Plan, asked, own_body, profile_of, session_for
from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.bodies import Role, fork_body
from cacheprefix.calls.begin import Request
from cacheprefix.layout import FOLLOW, Pass
from cacheprefix.layout.baseline import unmodified
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import ESTIMATE, IMAGE_TOKENS
from cacheprefix.server import ProviderCache
from cacheprefix.wire import decode

HANDBOOK = "Every claim names its source and the page on which it stands. " * 100
ASKED = [("openai", False), ("openai-5.6", False), ("anthropic", False), ("anthropic", True)]
PICTURE = {
    "type": "image_url",
    "image_url": {"url": f"data:image/png;base64,{base64.b64encode(bytes(9_000)).decode()}"},
}


def usage_of(outcome, rules):
    """As the provider reports it."""
    read, written, total = outcome.read_tokens, outcome.written_tokens, outcome.input_tokens
    if rules == "anthropic":
        plain = total - read - written
        return {"input_tokens": plain, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}
    more = {"cache_write_tokens": written} if rules == "openai-5.6" else {}
    return {"prompt_tokens": total, "prompt_tokens_details": {"cached_tokens": read, **more}}


def spent(plan, rules, factor, session=None, *, image=0):
    """Cost units of a plan where the provider counts ``factor`` tokens for one of ours, and so many for an image.

    Without a session in the application's own layout. With an image the first message is one.
    """
    api = "anthropic" if rules == "anthropic" else "openai-chat"
    count, profile, units = counter(factor), profile_of(rules), 0.0
    cache = ProviderCache(profile, count=count)
    for number, one in enumerate(asked(plan)):
        first, *rest = one.history
        content = [{"type": "text", "text": first["content"]}, PICTURE] if image else first["content"]
        seen = one._replace(history=[{**first, "content": content}, *rest])
        body, turn = own_body(plan, seen, rules, api), None
        if session is not None:
            turn = fork_body(session.adapter, body, api, Role(f"role{one.who}", conversation=one.talk)).begin()
            body = turn.body
        prompt = decode(body, api, count=count)
        more = image - IMAGE_TOKENS
        sections = [replace(part, tokens=part.tokens + more * (part.kind == "image")) for part in prompt.sections]
        serving = cache.begin(replace(prompt, sections=tuple(sections)), number * 2.0)
        serving.ended(number * 2.0 + 1.0)
        if turn is not None:
            turn.finish(usage_of(serving.outcome, rules))
        units += serving.outcome.cost_units(profile)
    return units


def share(plan, rules, factor, *, image=0):
    """The report's unmodified cost as a share of the true one, and the report."""
    session = session_for(plan, rules)
    spent(plan, rules, factor, session, image=image)
    assert not session.failures
    report = session.report()
    known, truth = report.total.unmodified_units, spent(plan, rules, factor, image=image)
    return None if known is None else known / truth, report


def near_the_minimum(number, rules, factor, *, marked=False):
    """A plan whose handbook, with a role's text or without, is about as long as the minimum by the provider's count."""
    chance = random.Random(f"{rules} {marked} {factor} {number}")
    roles = tuple(chance.choice((20, 80, 300)) for _ in range(chance.randint(1, 4)))
    turns = [(who, chance.choice((15, 60, 200))) for _ in range(chance.randint(1, 4)) for who in range(len(roles))]
    book = round(1_024 / factor * chance.uniform(0.9, 1.1)) - chance.choice((0, roles[0]))
    first = chance.random() < 0.5
    shape = chance.choice(("shared", "fan-out", "private"))
    return Plan(book, roles, tuple(turns), shape=shape, book_first=first, marked=marked)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.7, 1.0, 1.4])
@pytest.mark.parametrize(("rules", "marked"), ASKED)
def test_the_report_is_true_or_says_that_it_is_not_known(rules, marked, factor):
    """Whether the provider counts as we do, more or less, and whether the application marks its own requests."""
    told = [share(near_the_minimum(n, rules, factor, marked=marked), rules, factor)[0] for n in range(6)]
    assert [one for one in told if one is not None] == pytest.approx([1.0] * (6 - told.count(None)), abs=0.02)
    assert told.count(None) <= 1


def test_a_beginning_that_may_reach_the_minimum_or_not_is_said_to_be_unknown():
    """731 of our tokens are 1,023 of the provider's or 1,024: each of the roles' first requests hangs on it."""
    plan = Plan(731, (148, 690, 29, 234), tuple((n % 4, 50) for n in range(8)), shape="private", book_first=True)
    found, report = share(plan, "openai", 1.4)
    assert found is None
    assert "unmodified is unknown where more than 2 % of it hangs on" in str(report)


def test_what_hangs_on_the_minimum_is_no_matter_where_little_does():
    """In a long run the first requests are less than a fiftieth of it."""
    plan = Plan(731, (29, 234), tuple((n % 2, 400) for n in range(60)), shape="private", book_first=True)
    assert share(plan, "openai", 1.4)[0] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("image", [300, 5_000])
def test_the_minimum_is_the_texts_where_images_count_otherwise(image):
    """By an average over text and image what stands before the image is far from it."""
    plan = Plan(1_250, (40, 60), tuple((n % 2, 150) for n in range(24)), book_first=True)
    assert share(plan, "openai", 1.0, image=image)[0] == pytest.approx(1, abs=0.02)


BOOK = "\n".join(f"{at}. {HANDBOOK[:62]}" for at in range(90))


def count_of(figure):
    """How a provider counts for which a digit is so much of a letter."""

    def count(text, _model):
        return round((len(text) + (figure - 1) * sum(map(str.isdigit, text))) / 4)

    return count


def figures(item, lines=330):
    """A text of figures."""
    return "".join(f"{at * 7919 + item:09} to {at * item:07}\n" for at in range(lines))


def said_in(role, said, book=f"\n\n{BOOK}"):
    """A request of a role that has the handbook."""
    return [{"role": "system", "content": f"You are the {role}.{book}"}, {"role": "user", "content": said}]


def test_a_request_to_which_a_routing_key_alone_was_added_costs_unmodified_what_it_cost():
    """Nothing of it is estimated, not even how many blocks were read at a provider that counts otherwise."""
    rules, units = profile_of("openai"), 0.0
    session = Session(SharedPrefix(system="Be brief."), caching=Caching(provider="openai", counter=ESTIMATE))
    cache = ProviderCache(rules, count=count_of(0.6))
    for number in range(12):
        body = {"model": "gpt-5.2", "messages": said_in("reader", figures(number // 2, 80 * (number % 2 + 1)))}
        own = decode(body, "openai-chat", count=ESTIMATE)
        turn = session.adapter.begin(Request(body, "openai-chat", agent="reader", original=lambda _, own=own: own))
        assert turn.body.keys() - body.keys() == {"prompt_cache_key"}
        serving = cache.begin(decode(turn.body, "openai-chat", count=count_of(0.6)), number * 2.0)
        serving.ended(number * 2.0 + 1.0)
        turn.finish(usage_of(serving.outcome, "openai"))
        units += serving.outcome.cost_units(rules)
    assert session.report().total.unmodified_units == pytest.approx(units, rel=1e-9)
    assert not session.failures


def of_words_and_figures(figure, book, roles):
    """The true unmodified cost and the report's: eight documents, read by one role, and others are asked beside it."""
    rules, truth = profile_of("openai"), 0.0
    sent, own = (ProviderCache(rules, count=count_of(figure)) for _ in range(2))
    session = Session(SharedPrefix(system=book.strip()), caching=Caching(provider="openai", counter=ESTIMATE))
    for number in range(8 * len(roles)):
        role, item = roles[number % len(roles)], number // len(roles)
        said = f"The contract:\n{figures(item)}" if role == "reader" else f"Is contract {item} signed?"
        body = {"model": "gpt-5.2", "messages": said_in(role, said, book)}
        turn = fork_body(session.adapter, body, "openai-chat", Role(role, conversation=str(item))).begin()
        for cache, asked_for in ((sent, turn.body), (own, body)):
            serving = cache.begin(decode(asked_for, "openai-chat", count=count_of(figure)), number * 2.0)
            serving.ended(number * 2.0 + 1.0)
            if cache is sent:
                turn.finish(usage_of(serving.outcome, "openai"))
            else:
                truth += serving.outcome.cost_units(rules)
    assert not session.failures
    return truth, session.report().total


@pytest.mark.parametrize("roles", [("reader", "checker"), ("reader",)], ids=["two", "one"])
@pytest.mark.parametrize("book", [f"\n\n{BOOK}", f" {BOOK.replace(chr(10), ' ')}"], ids=["paragraphs", "in a line"])
@pytest.mark.parametrize("figure", [0.6, 0.8, 1.3])
def test_texts_that_count_apart_have_the_count_that_the_provider_read_them_at(figure, book, roles):
    """By a whole request's ratio a handbook in front of figures is far off, and nobody knows if it was kept."""
    truth, found = of_words_and_figures(figure, book, roles)
    assert found.unmodified_units == pytest.approx(truth, rel=0.02)


def overlapping():
    """Six streams, each begun behind the first token of the one before and ended before it: true and reported units."""
    rules, now = replace(profile_of("vllm"), min_tokens=16), [0.0]
    registry = default_registry().copy()
    registry.register(rules)
    caching = Caching(provider="vllm", profiles=registry, counter=ESTIMATE, clock=lambda: now[0])
    session, truth, served = Session(SharedPrefix(system=HANDBOOK), caching=caching), [], []
    caches = ProviderCache(rules), ProviderCache(rules)
    for number in range(6):
        said = [{"role": "system", "content": f"{HANDBOOK} You are {number % 2}."}, {"role": "user", "content": "Go."}]
        body = {"model": "m", "stream": True, "messages": said}
        turn = fork_body(session.adapter, body, "openai-chat", Role(str(number % 2), conversation="one")).begin()
        sent = [decode(one, "openai-chat") for one in (turn.body, body)]
        servings = [cache.begin(prompt, now[0]) for cache, prompt in zip(caches, sent, strict=True)]
        truth.append(servings[1].outcome.cost_units(rules))
        served.append((turn, servings))
        now[0] += 1.0
        for serving in servings:
            serving.begun(now[0])
        turn.first_token()
        now[0] += 1.0
    for turn, servings in reversed(served):
        now[0] += 1.0
        for serving in servings:
            serving.ended(now[0])
        turn.finish(usage_of(servings[0].outcome, "vllm"))
    assert not session.failures
    return sum(truth), session.report().total.unmodified_units


def test_a_request_that_began_behind_anothers_first_token_reads_what_that_wrote():
    """Although it ended before: the report says what they would have cost in the order in which they were sent."""
    truth, reported = overlapping()
    assert reported == pytest.approx(truth, rel=0.02)


def fan_out(*rounds):
    """Siblings of two roles with whole answers that end in any order: the true units, and the report.

    A round tells after how many seconds what one wrote can be read, if not with its answer; how many seconds lie
    between two siblings; and whether the others waited until the first one was answered.
    """
    rules, now, chance = profile_of("openai"), [0.0], random.Random(1)
    caching = Caching(provider="openai", counter=ESTIMATE, clock=lambda: now[0])
    session, truth = Session(SharedPrefix(system=HANDBOOK), caching=caching), 0.0
    caches = ProviderCache(rules), ProviderCache(rules)

    def answered(turn, servings, *which):
        for one in which:
            servings[one].ended(now[0])
        turn.finish(usage_of(servings[0].outcome, "openai"))

    for text, (opens, apart, waited) in enumerate(rounds):
        began, under_way = now[0], []
        for number in range(6):
            said = [{"role": "system", "content": f"You are {number % 2}. {HANDBOOK}"}]
            said += [{"role": "user", "content": f"{text}. " * 600}, {"role": "user", "content": f"Part {number}."}]
            body = {"model": "gpt-5.2", "messages": said}
            waits = waited and number
            if waits == 1:
                now[0] += 5.0
                answered(*under_way[0], 0)
            leave = Pass(waited=now[0] - began) if waits else FOLLOW
            role = Role(str(number % 2), conversation=f"{text}")
            turn = fork_body(session.adapter, body, "openai-chat", role).begin(leave)
            sent = [decode(one, "openai-chat") for one in (turn.body, body)]
            servings = [cache.begin(prompt, now[0]) for cache, prompt in zip(caches, sent, strict=True)]
            truth += servings[1].outcome.cost_units(rules)
            for serving in servings if opens < apart else ():
                serving.begun(now[0] + opens)
            under_way.append((turn, servings))
            now[0] += apart * chance.uniform(0.5, 1)
        for turn, servings in chance.sample(under_way, 6):
            now[0] += 1.0
            answered(turn, servings, *(0, 1)[bool(turn.call) :])
    assert not session.failures
    return truth, session.report()


AT_ONCE, IN_TIME = (0.001, 0.01), (inf, 0.01)
"""Siblings sent together, of which each reads what the last one wrote, as beside a simulated provider that takes no
time; and none does, as beside all others."""


@pytest.mark.parametrize(
    "rounds",
    [
        [(*IN_TIME, False)] * 6,
        [(*AT_ONCE, False)] * 6,
        [(*AT_ONCE, False), *[(*AT_ONCE, True)] * 5],
        [(*IN_TIME, True)] * 6,
        # Each is sent behind the first token of the last one: that says nothing of those that are sent together.
        [(1.0, 3.0, False), *[(*IN_TIME, True)] * 5],
        [(*AT_ONCE, False), (*IN_TIME, False), *[(*IN_TIME, True)] * 4],
    ],
    ids=["in time", "at once", "at once, then waited", "waited", "apart, then waited", "at once, then in time"],
)
def test_siblings_that_read_what_another_was_writing_would_have_done_so_unmodified(rounds):
    """Those that waited go by what the last ones that had not waited did."""
    truth, report = fan_out(*rounds)
    assert report.total.unmodified_units == pytest.approx(truth, rel=0.02)


def test_what_siblings_had_read_that_waited_is_unknown_where_others_showed_another_rule():
    """They wrote nothing side by side; without such siblings, or with some that keep it, the published rule holds."""
    found, (truth, known) = (
        fan_out((*AT_ONCE, True), (*AT_ONCE, False))[1],
        fan_out((*IN_TIME, True), (*IN_TIME, False)),
    )
    assert found.total.unmodified_units is None
    assert "a simulated provider that takes no time" in str(found)
    assert known.total.unmodified_units == pytest.approx(truth, rel=0.02)


def test_who_waited_in_vain_had_read_nothing_of_a_sibling_unmodified():
    """By then that was being answered, so that what was sent read it; without us it had been sent before."""
    rules, now = profile_of("openai"), [0.0]
    caching = Caching(provider="openai", counter=ESTIMATE, clock=lambda: now[0])
    session, cache, turns = Session(SharedPrefix(system=HANDBOOK), caching=caching), ProviderCache(rules), []
    for number in range(3):
        said = [{"role": "system", "content": f"You look. {HANDBOOK}"}, {"role": "user", "content": f"{number}?"}]
        body = {"model": "gpt-5.2", "messages": said}
        role = Role("one", conversation="a")
        turn = fork_body(session.adapter, body, "openai-chat", role).begin(Pass(waited=now[0]) if number else FOLLOW)
        serving = cache.begin(decode(turn.body, "openai-chat"), now[0])
        turns.append((turn, serving))
        if not number:
            now[0] += 0.3
            serving.begun(now[0] - 0.02)
    for turn, serving in turns:
        now[0] += 0.1
        serving.ended(now[0])
        turn.finish(usage_of(serving.outcome, "openai"))
    assert not session.failures
    assert all(call.usage.cache_read_tokens for call in session.calls[1:])
    assert all(call.unmodified_units > 0.9 * call.usage.input_tokens for call in session.calls)


@pytest.mark.parametrize("fails", [True, False])
def test_nothing_is_read_of_a_request_that_failed(fails):
    """The last of three siblings sent together reads what the first one wrote; unmodified, only of its own role's."""
    rules, now = profile_of("openai"), [0.0]
    caching = Caching(provider="openai", counter=ESTIMATE, clock=lambda: now[0])
    session, cache, turns = Session(SharedPrefix(system=HANDBOOK), caching=caching), ProviderCache(rules), []
    for number, role in enumerate(("one", "two", "two")):
        said = [{"role": "system", "content": f"You are {role}. {HANDBOOK}"}, {"role": "user", "content": f"{number}?"}]
        body = {"model": "gpt-5.2", "messages": said}
        turn = fork_body(session.adapter, body, "openai-chat", Role(role, conversation="a")).begin()
        if fails and number == 1:
            turn.fail()
            continue
        serving = cache.begin(decode(turn.body, "openai-chat"), now[0])
        serving.begun(now[0])
        turns.append((turn, serving))
        now[0] += 0.01
    for turn, serving in turns:
        turn.finish(usage_of(serving.outcome, "openai"))
    assert not session.failures
    last = session.calls[-1]
    assert last.usage.cache_read_tokens
    assert (last.unmodified_units > 0.9 * last.usage.input_tokens) == fails


def test_a_question_that_a_roles_text_opened_opens_its_message_without_it():
    """As in the application's own request, from which its later ones go on."""

    def asked(*texts):
        content = [{"type": "text", "text": text} for text in texts]
        body = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": content}]}
        return decode(body, "anthropic")

    made = unmodified(asked("You read.", "What is step 1?"), system=[], tools=[], tail="You read.", count=ESTIMATE)
    assert made.digests == asked("What is step 1?").digests
    assert made.tokens == asked("What is step 1?").tokens


def test_tenants_have_one_cache_as_long_as_nobody_missed_what_another_one_sent():
    """The first tenant's requests are forks: they begin otherwise, and what another reads nothing of says nothing."""
    now = [1_000.0]
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(clock=lambda: now[0]))

    def asked(scope, role, *, read, forks):
        text = {"role": "system", "content": f"You are the {role}. {HANDBOOK}"}
        own = {"model": "gpt-5.2", "messages": [text, {"role": "user", "content": f"I am {scope}."}]}
        sent = {**own, "messages": [{"role": "system", "content": HANDBOOK}, own["messages"][1]]} if forks else own
        original = (lambda _: decode(own, "openai-chat")) if forks else None
        turn = session.adapter.begin(
            Request(sent, "openai-chat", agent=role, conversation=scope, scope=scope, original=original, layout="own")
        )
        now[0] += 1.0
        usage = {"prompt_tokens": turn.seen.prompt.tokens, "prompt_tokens_details": {"cached_tokens": read}}
        turn.finish(usage)
        now[0] += 1.0
        return session.calls[-1]

    roles = [f"worker {number}" for number in range(6)]
    for role in roles:
        asked("anna", role, read=0 if role == roles[0] else 1_536, forks=True)
    calls = [asked("bert", role, read=0, forks=False) for role in roles]
    assert all(call.unmodified_units < 0.2 * call.units for call in calls)
    # What bert sent is there for others: who reads nothing of that has a cache of its own.
    calls = [asked("carl", role, read=0, forks=False) for role in roles]
    assert [call.unmodified_units < 0.2 * call.units for call in calls] == [True] * 3 + [False] * 3


RESTARTED = Plan(1_500, (400, 400, 400), tuple((n % 3, 60) for n in range(6)), shape="private")


def restarted(rules, *, again=6):
    """What a second process's calls had really cost unmodified, and its report.

    The first one has played the same team, unmodified and forked, each against a cache of its own.
    """
    api, profile = "anthropic" if rules == "anthropic" else "openai-chat", profile_of(rules)
    caches = [ProviderCache(profile), ProviderCache(profile)]
    number, truth, reports = 0, 0.0, []
    plan = replace(RESTARTED, turns=tuple((n % 3, 60) for n in range(again)), marked=rules == "anthropic")
    for process in range(2):
        session, truth = session_for(plan, rules), 0.0
        for one in asked(plan):
            number += 1
            seen = one._replace(history=[{"role": "user", "content": f"Question {process}."}, *one.history])
            body = own_body(plan, seen, rules, api)
            turn = fork_body(session.adapter, body, api, Role(f"role{one.who}", conversation=one.talk)).begin()
            outcomes = []
            for cache, sent in zip(caches, (body, turn.body), strict=True):
                serving = cache.begin(decode(sent, api), number * 2.0)
                serving.ended(number * 2.0 + 1.0)
                outcomes.append(serving.outcome)
            turn.finish(usage_of(outcomes[1], rules))
            truth += outcomes[0].cost_units(profile)
        assert not session.failures
        reports.append(session.report())
    return truth, reports


@pytest.mark.parametrize("rules", ["openai", "openai-5.6", "anthropic"])
def test_what_a_process_before_had_left_unmodified_is_unknown(rules):
    """Its agents' own beginnings would be in the cache too, which the second session has never seen."""
    truth, (before, after) = restarted(rules)
    assert before.total.unmodified_units is not None
    known = after.total.unmodified_units
    assert known is None or known == pytest.approx(truth, rel=0.02)
    assert known is not None or "what another process had sent before" in str(after)

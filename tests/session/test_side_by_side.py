"""Agents whose histories differ in part: none is dearer for what others alone have said, run or been told.

Played against a prompt cache in this process, beside the application's own requests in a cache of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from benchmarks.role_plans import words
from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.bodies import Role, fork_body
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import ProviderCache
from cacheprefix.wire import decode

HANDBOOK = words(3_000, "book")
TASK = {"role": "user", "content": words(400, "task")}


class Asked(NamedTuple):
    """One request: a role, what is said to it, and in which conversation."""

    role: str
    said: Sequence[dict[str, Any]]
    talk: str = "one"
    note: str = ""
    """What its own text ends with in this request."""


def tool(name, tokens=160):
    """A tool of a role's."""
    form = {"type": "object", "properties": {"q": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": words(tokens, name), "parameters": form}}


def round_of_tools(role, number, tokens=600):
    """A call of a role's own tool and its result, which no other role is shown."""
    call = {"id": f"{role}{number}", "type": "function", "function": {"name": role, "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": call["id"], "content": words(tokens, f"found{role}{number}")}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}, result]


def said(number, tokens=60):
    """What everybody is shown."""
    return {"role": "user", "content": words(tokens, f"said{number}")}


def costs(rules, requests, *, tools=(), tool_named="", text=60, found=0, read=0.1, front=True, book=3_000):
    """Cost units unmodified and forked.

    ``tools`` are those roles that bring one of their own with each request, or all one of the same name; ``found`` the
    tokens of documents behind each system text; ``front`` says that the handbook, of ``book`` tokens, stands in front
    of the role's text.
    """
    profile = replace(default_registry().get(rules), read=read)
    registry = default_registry().copy()
    registry.register(profile)
    handbook = words(book, "book")
    session = Session(
        SharedPrefix(system=handbook), caching=Caching(provider=rules, counter=ESTIMATE, profiles=registry)
    )
    caches, sums = [ProviderCache(profile), ProviderCache(profile)], [0.0, 0.0]
    for number, one in enumerate(requests):
        parts = [handbook, f"You are the {one.role}. {words(text, one.role)}{one.note}"]
        system = "\n\n".join(parts if front else parts[::-1])
        system += f"\n\n{words(found, f'doc{number}')}" if found else ""
        given = {"model": "gpt-5.2", "messages": [{"role": "system", "content": system}, *one.said]}
        given |= {"tools": [tool(tool_named or one.role)]} if one.role in tools else {}
        turn = fork_body(session.adapter, given, "openai-chat", Role(one.role, conversation=one.talk)).begin()
        for at, body in enumerate((given, turn.body)):
            serving = caches[at].begin(decode(body, "openai-chat"), number * 2.0)
            serving.ended(number * 2.0 + 1.0)
            sums[at] += serving.outcome.cost_units(profile)
        turn.finish(None)
    assert session.failures == {}
    return sums


def own_rounds(names):
    """Each role in turn runs its own tool six times and answers; nobody is shown another's rounds."""
    answers: list[dict[str, Any]] = []
    for name in names:
        own: list[dict[str, Any]] = []
        for number in range(6):
            yield Asked(name, [TASK, *answers, *own])
            own += round_of_tools(name, number)
        answers.append(said(name))
    # The first one goes on with all that it has run.
    rounds = [message for number in range(6) for message in round_of_tools(names[0], number)]
    for number in range(6):
        yield Asked(names[0], [TASK, *rounds, *answers, *map(said, range(number))])


def test_tools_of_a_late_role_do_not_take_from_another_what_it_alone_has_run():
    """The first has read 4,000 tokens of its own results, which nobody sends once more in front of others' tools."""
    own, forked = costs("vllm", own_rounds(("planner", "critic", "writer")), tools=("planner", "critic", "writer"))
    assert forked <= 1.01 * own


def test_a_role_with_its_own_tools_follows_no_others_that_never_sent_what_it_has_said():
    """However many messages others' requests hold: they are not those of its own."""
    requests = list(own_rounds(("planner", "critic", "writer")))
    own, forked = costs("vllm", requests, tools=("critic", "writer"))
    assert forked <= 1.01 * own


@pytest.mark.parametrize("rules", ["openai", "deepseek"])
def test_tools_that_nobody_else_may_carry_part_a_conversation_without_a_name(rules):
    """Each carries its own, which is no sharing: its requests keep what the provider has of them."""
    names = ("planner", "critic", "writer")
    requests = [one._replace(talk="") for one in own_rounds(names)]
    own, forked = costs(rules, requests, tools=names)
    assert forked <= 1.01 * own


@pytest.mark.parametrize("text", [60, 1_500])
def test_so_they_do_on_a_provider_of_marks_where_the_shared_text_is_too_short_to_be_read_alone(text):
    """GPT-5.6 reads their own layouts by itself. All are shown what each has run, in turns."""
    names, history, requests = ("planner", "critic"), [said("task")], []
    for turn in range(3):
        for name in names:
            history.append(said(f"{turn}{name}"))
            for number in range(3):
                requests.append(Asked(name, list(history), ""))
                history += round_of_tools(name, f"{turn}{number}", 150)
    own, forked = costs("openai-5.6", requests, tools=names, text=text, book=300)
    assert forked <= 1.01 * own


def test_roles_with_tools_that_nobody_else_may_carry_read_a_long_shared_text_in_conversations_without_a_name():
    """GPT-5.6 reads what other conversations begin with behind a mark alone, and no application's own has one there."""
    names, requests = ("planner", "critic"), []
    for number in range(6):
        task = said(f"item{number}", 80)
        requests += [Asked(name, [task, *(said(f"{number}{turn}") for turn in range(2))], "") for name in names]
    own, forked = costs("openai-5.6", requests, tools=names)
    assert forked <= 0.5 * own


@pytest.mark.parametrize("rules", ["openai", "openai-5.6", "deepseek"])
def test_roles_that_all_bring_the_same_tools_share_them_in_a_conversation_without_a_name(rules):
    """From the first request on: the first to ask writes what the others read."""
    requests = [Asked("abc"[number % 3], [TASK, *map(said, range(number))], "") for number in range(12)]
    own, forked = costs(rules, requests, tools="abc", tool_named="search")
    assert forked <= 0.98 * own


@pytest.mark.parametrize("text", [60, 900])
@pytest.mark.parametrize("rules", ["openai", "vllm"])
def test_what_is_said_for_one_request_alone_hides_nothing_of_what_stands_before(rules, text):
    """Documents that are looked up for each request stand behind the conversation, and are gone in the next one."""
    history, requests = [TASK], []
    for number in range(12):
        requests.append(Asked("ab"[number % 3 == 2], [*history, said(f"looked{number}", 300)]))
        history.append(said(number))
    own, forked = costs(rules, requests, text=text)
    # Nobody knows before its second request that a message comes no second time: each role's text is paid once more.
    assert forked <= 1.02 * own + 2 * text


@pytest.mark.parametrize("alike", [False, True], ids=["other answers", "the same answers"])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("rules", ["openai", "vllm"])
def test_a_team_that_begins_anew_again_and_again_reads_its_roles_texts(rules, named, alike):
    """Sixteen short conversations, under names of their own or one: a long text in front of each is paid once more.

    Handoffs and routers answer the same in each, whatever was asked.
    """
    requests = []
    for number in range(16):
        talk, history = f"talk{number}" if named else "one", [said(f"item{number}", 80)]
        for name in ("planner", "critic", "writer"):
            requests.append(Asked(name, list(history), talk))
            history.append(said(name if alike else f"{number}{name}", 80))
    text = 1_000
    own, forked = costs(rules, requests, text=text)
    # Nobody knows before the second conversation that there is one: each role's text is paid once more there.
    assert forked <= own + 3 * (text + 300)


@pytest.mark.parametrize("rules", ["openai", "vllm"])
def test_a_second_conversation_reads_texts_that_were_long_beside_the_first_ones_task(rules):
    """Three helpers are each asked about an item, and once more about all answers; then about the next item."""
    names, sums = ("planner", "critic", "writer"), []
    for many in (1, 2):
        requests = []
        for number in range(many):
            task = said(f"item{number}", 100)
            answers = [said(f"{number}{name}", 300) for name in names]
            talk = f"talk{number}"
            requests += [Asked(name, [task], talk) for name in names]
            requests += [Asked(name, [task, *answers], talk) for name in names]
        sums.append(costs(rules, requests, text=1_000))
    for own, forked in sums:
        assert forked <= 1.01 * own


@pytest.mark.parametrize("preamble", [[], [said("preamble", 200)]], ids=["another task", "the same preamble"])
@pytest.mark.parametrize("rules", ["openai", "vllm"])
def test_a_conversation_that_is_forgotten_and_begun_anew_reads_its_roles_texts(rules, preamble):
    """As ``team.reset()`` has it: each task is another conversation of the same name, and no going back."""
    profile = default_registry().get(rules)
    registry = default_registry().copy()
    registry.register(profile)
    session = Session(
        SharedPrefix(system=HANDBOOK), caching=Caching(provider=rules, counter=ESTIMATE, profiles=registry)
    )
    text, names = words(2_000, "text"), ("planner", "critic")
    for name in names:
        session.adapter.join(name)
    sums, caches = [0.0, 0.0], [ProviderCache(profile, count=ESTIMATE.count) for _ in range(2)]
    for number in range(8):
        for name in names:
            system = {"role": "system", "content": f"{HANDBOOK}\n\n{name}{text}"}
            asked = {"model": "gpt-5.2", "messages": [system, *preamble, said(f"task{number}", 60)]}
            turn = fork_body(session.adapter, asked, "openai-chat", Role(name, conversation="team")).begin()
            for side, (cache, sent) in enumerate(zip(caches, (asked, turn.body), strict=True)):
                serving = cache.begin(decode(sent, "openai-chat", count=ESTIMATE.count), number * 2.0)
                serving.ended(number * 2.0 + 1.0)
                sums[side] += serving.outcome.cost_units(profile)
            turn.finish(None)
        session.forget("team")
    own, forked = sums
    # The second task pays each text once more where the first did not send it in front of what was said.
    assert forked <= own + 2_100 * len(names)


@pytest.mark.parametrize("rules", ["openai", "vllm"])
def test_texts_that_are_in_front_on_a_guess_go_behind_a_conversation_that_grows(rules):
    """A wave of six roles with long answers: the second one shares them as if the texts had never been in front."""
    names = ("planner", "critic", "writer", "tester", "editor", "clerk")
    task, answers = said("item", 20), [said(name, 900) for name in names]
    requests = [Asked(name, [task]) for name in names] + [Asked(name, [task, *answers]) for name in names]
    own, forked = costs(rules, requests, text=600)
    assert forked <= 0.55 * own


@pytest.mark.parametrize("rules", ["openai", "vllm"])
def test_documents_in_a_system_text_leave_its_beginning_where_the_provider_reads_it(rules):
    """The role's text is another one in each request, and begins with the same instructions."""
    own, forked = costs(
        rules, [Asked("reader", [TASK, *map(said, range(n))]) for n in range(12)], text=4_000, found=300
    )
    # Nobody knows before the second request that the text changes: what stands before that is paid once more.
    assert forked <= 1.02 * own + 3_000 + 4_000


NOTES = {
    "once": lambda number: "\nBe brief now." if number > 4 else "",
    "each time": lambda number: f"\nIt is {number} o'clock on day {number}.",
    "a plan": lambda number: f"\n{words(200, f'plan{number // 3}')}",
    "back and forth": lambda number: "\nBe brief now." if number % 4 > 1 else "",
}


@pytest.mark.parametrize("front", [True, False])
@pytest.mark.parametrize("note", NOTES)
@pytest.mark.parametrize("rules", ["openai", "vllm"])
@pytest.mark.parametrize(("roles", "text"), [("a", 300), ("a", 1_000), ("abc", 1_000)])
def test_a_text_that_changes_at_its_end_is_never_dearer(rules, note, front, roles, text):
    """What the application adds to a role's text in a run: read where it stood, as far as both are the same."""
    requests: list[Asked] = []
    for number in range(16):
        history = [TASK, *(said(each, 250) for each in range(number))]
        requests.append(Asked(roles[number // 4 % len(roles)], history, note=NOTES[note](number)))
    own, forked = costs(rules, requests, text=text, front=front)
    assert forked <= own


@pytest.mark.parametrize("rules", ["openai", "vllm"])
def test_a_text_that_changes_in_each_conversation_is_not_paid_in_two_layouts(rules):
    """With the handbook behind the role's text: the application's own layout reads nothing of what forks have sent."""
    requests: list[Asked] = []
    for talk in range(3):
        history = [said(f"{talk}begins", 100)]
        for number in range(8):
            requests.append(Asked("ab"[number > 0], list(history), f"talk{talk}", NOTES["once"](number + 2)))
            history.append(said(f"{talk}of{number}", 500 if number else 60))
    own, forked = costs(rules, requests, tools=("b",), text=1_000, front=False)
    # Nobody knows before the second conversation that there is one: each role's text is paid once more there.
    assert forked <= own + 2 * 1_300


@pytest.mark.parametrize("rules", ["openai", "vllm"])
@pytest.mark.parametrize("same", [True, False])
def test_documents_that_later_conversations_ask_for_too_are_read_there(rules, same):
    """Looked up for each question, and long beside what is said: in front of it from a second question's on."""
    requests: list[Asked] = []
    for talk in range(4):
        history: list[dict[str, Any]] = []
        for question in range(4):
            found = f"\n{words(1_700, f'doc{question}of{0 if same else talk}')}"
            for role in "ab":
                history.append(said(f"{talk}a{question}{role}", 20))
                requests.append(Asked(role, list(history), f"talk{talk}", found))
    own, forked = costs(rules, requests, text=10)
    # Nobody knows it of the first question's: each role pays them once more in the second conversation. Where no other
    # one asks for them, the later ones read what was said.
    assert forked <= (own + 2 * 1_900 if same else 0.99 * own)


def with_documents(rules, talks, *, resumed=False, front=True, rounds=1):
    """Cost units unmodified and forked of three roles with the same documents in a round, and the bodies that are sent.

    The documents stand in front of each role's text or behind it. With ``resumed`` each request is another process's.
    """
    profile, names = default_registry().get(rules), ("planner", "critic", "writer")

    def begun():
        return Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider=rules, counter=ESTIMATE))

    session, caches, sums, bodies = begun(), [ProviderCache(profile), ProviderCache(profile)], [0.0, 0.0], []
    for number in range(talks * rounds * len(names)):
        talk, name = divmod(number, rounds * len(names))[0], names[number % len(names)]
        at = number % (rounds * len(names))
        if resumed and at:
            record = session.conversation(f"talk{talk}").dumps()
            session = begun()
            session.conversation(f"talk{talk}").restore(record)
        parts = [words(800, f"doc{number // len(names)}-"), f"You are the {name}. {words(300, name)}"]
        system = "\n\n".join((HANDBOOK, *(parts if front else parts[::-1])))
        heard = [said(f"{talk}of{each}", 100) for each in range(at + 1)]
        given = {"model": "gpt-5.2", "messages": [{"role": "system", "content": system}, *heard]}
        turn = fork_body(session.adapter, given, "openai-chat", Role(name, conversation=f"talk{talk}")).begin()
        bodies.append(turn.body)
        for each, body in enumerate((given, turn.body)):
            serving = caches[each].begin(decode(body, "openai-chat"), number * 2.0)
            serving.ended(number * 2.0 + 1.0)
            sums[each] += serving.outcome.cost_units(profile)
        turn.finish(None)
        assert session.failures == {}
    return *sums, bodies


@pytest.mark.parametrize("rules", ["openai", "vllm"])
@pytest.mark.parametrize("front", [True, False])
def test_documents_of_a_round_are_read_where_the_application_has_them(rules, front):
    """Behind the handbook and in front of each role's text, or behind both: short conversations, one after another."""
    own, forked, _ = with_documents(rules, talks=8, front=front)
    # Nobody knows it before the first one: the documents, or the roles' texts, are paid once more in it.
    assert forked <= 1.02 * own + 3 * 800


def test_documents_in_a_growing_conversation_are_left_for_what_was_said():
    """Once more was said than the documents have, forks read more: they are the cheaper ones soon."""
    own, forked, bodies = with_documents("openai", talks=1, rounds=8)
    assert forked < own
    texts = [str(body["messages"][0]["content"]) for body in bodies]
    forks = [text == HANDBOOK for text in texts]
    assert forks[0]
    assert not any(forks[1:6])
    assert all(forks[18:])


def test_a_conversation_with_documents_that_others_take_up_sends_what_one_process_sends():
    """How the texts began is in its record, and which layout they go by."""
    assert (
        with_documents("openai", talks=1, rounds=6)[2] == with_documents("openai", talks=1, rounds=6, resumed=True)[2]
    )


def test_own_layouts_among_forks_go_where_those_go():
    """By the same routing key: each reads the handbook that the others wrote."""
    *_, bodies = with_documents("openai", talks=2)
    assert len({body["prompt_cache_key"] for body in bodies}) == 1


def test_where_marks_decide_later_conversations_read_the_roles_text_too():
    """On Claude the text stands in front of what is said, and a mark behind it, from the second conversation on."""
    profile = default_registry().get("anthropic")
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE))
    cache, reads = ProviderCache(profile), []
    for number in range(4):
        for name in ("planner", "critic"):
            given = {
                "model": "claude-sonnet-4-6",
                "max_tokens": 100,
                "system": f"{HANDBOOK}\n\nYou are the {name}. {words(1_000, name)}",
                "messages": [said(f"item{number}", 80)],
            }
            turn = fork_body(session.adapter, given, "anthropic", Role(name, conversation=f"{name}{number}")).begin()
            serving = cache.begin(decode(turn.body, "anthropic"), number * 2.0)
            serving.ended(number * 2.0 + 1.0)
            reads.append(serving.outcome.read_tokens)
            turn.finish(None)
    assert session.failures == {}
    # The first conversation has the text behind what is said, the second writes it in front, later ones read it.
    assert max(reads[:4]) < 3_500
    assert min(reads[4:]) > 4_000


@pytest.mark.parametrize("first", ["planner", "newcomer"])
def test_a_role_that_joins_in_another_process_goes_by_what_the_conversations_first_one_found(first):
    """Whether its text stands in front: that process has met nobody, and must send what the one before had sent."""
    session, seen = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai", counter=ESTIMATE)), []

    def asks(session, name, talk, *heard):
        system = f"{HANDBOOK}\n\nYou are the {name}. {words(900, name)}"
        given = {"model": "gpt-5.2", "messages": [{"role": "system", "content": system}, *heard]}
        turn = fork_body(session.adapter, given, "openai-chat", Role(name, conversation=talk)).begin()
        turn.finish(None)
        return turn.body

    for name in ("planner", "writer"):
        asks(session, name, "before", said(f"asked before of {name}"))
    # Long enough beside the texts that none is in front on a guess.
    asks(session, first, "one", said("asked now", 300))
    record = session.conversation("one").dumps()
    heard = said("asked now", 300), said("answered", 300)
    seen.append(asks(session, "writer", "one", *heard))
    other = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai", counter=ESTIMATE))
    other.conversation("one").restore(record)
    asks(other, "checker", "elsewhere", said("asked elsewhere"))
    seen.append(asks(other, "writer", "one", *heard))
    assert seen[0] == seen[1]
    in_front = "You are the writer" in str(seen[0]["messages"][1]["content"])
    assert in_front == (first == "planner")
    assert session.failures == other.failures == {}

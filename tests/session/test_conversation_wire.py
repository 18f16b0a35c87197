"""A conversation without a framework, on the wire: what the provider receives and what its cache does."""

import asyncio
import itertools
import json

import pytest
from conversation_loops import MODEL, RULES, SYSTEM, Loop, script

from cacheprefix import CacheprefixWarning, Compaction, History, RequestBudget, ToolResultBudget
from cacheprefix.adapter import Request
from cacheprefix.errors import BudgetError, StateError
from cacheprefix.history import Built, trim_tool_outputs
from cacheprefix.plugins import CacheprefixPluginWarning
from cacheprefix.server import SimulatedProvider
from cacheprefix.wire import apply, views_of

KINDS = ["openai-chat", "openai-responses", "anthropic"]
WORDS = " ".join(f"word{n}" for n in range(400))


@pytest.fixture(params=KINDS)
def loop(request):
    """``loop(...)`` makes a loop against one provider of the kind."""
    made = []
    with SimulatedProvider(rules=RULES[request.param], script=script) as provider:

        def make(**options):
            made.append(Loop(request.param, provider, **options))
            return made[-1]

        make.provider = provider
        make.kind = request.param
        yield make
        for one in made:
            one.close()


def prompts(loop):
    """What arrived, decoded."""
    return [record.prompt for record in loop.provider.requests]


def digests(prompt, without=b"\0\0"):
    """The sections of a request, but for those that hold a text."""
    return [section.digest for section in prompt.sections if without not in section.data]


def only_grows(lists):
    """Whether each list begins with the whole of the one before it."""
    return all(after[: len(before)] == before for before, after in itertools.pairwise(lists))


def text_of(record):
    """A request's body as text."""
    return record.body.decode()


def test_each_request_begins_with_the_whole_request_before_it(loop):
    """Plain turns and tool loops only append, and the provider reads what it wrote."""
    one = loop()
    one.say("hello")
    one.say("use the tool please")
    assert only_grows([digests(prompt) for prompt in prompts(loop)])
    assert [verdict.cause for verdict in one.verdicts] == ["cold_start", "hit", "hit", "hit"]


def test_volatile_text_stands_behind_everything_cached_and_is_never_stored(loop):
    """Also inside a tool loop: each request's stable part extends the one before, and the cache hits."""
    one = loop()
    for number in range(3):
        one.say(f"use the tool, turn {number}", volatile=f"It is {number} o'clock.")
    assert "o'clock" not in one.conversation.dumps()
    assert only_grows([digests(prompt, without=b"o'clock") for prompt in prompts(loop)])
    assert all(b"o'clock" in prompt.sections[-1].data for prompt in prompts(loop))
    assert {verdict.cause for verdict in one.verdicts[1:]} <= {"hit"}
    last = loop.provider.requests[-1]
    assert last.outcome.read_tokens >= 0.9 * prompts(loop)[-2].tokens


def test_zones_change_only_together_with_a_compaction(loop):
    """A zone set in the middle of a conversation waits; the request after a compaction shows it."""
    one = loop(compaction=Compaction(900_000, 4_000))
    one.conversation.set_zone("project", "Project text one.")
    one.say("hello")
    one.conversation.set_zone("project", "Project text two.")
    for number in range(12):
        one.say(f"{WORDS} {number}")
    assert "Project text one." in text_of(loop.provider.requests[-1])
    assert one.conversation.compact(force=True)
    one.say("and now?")
    assert "Project text two." in text_of(loop.provider.requests[-1])
    assert "Project text one." not in text_of(loop.provider.requests[-1])


def test_an_agent_cycle_commits_through_its_hook_when_the_answer_has_come(loop):
    """While the loop runs the model sees whole outputs; the next turn sees what the hook left."""
    one = loop(conversation={"mode": "agent_cycle", "hook": trim_tool_outputs(2)})
    lines = "\n".join(f"line {n}" for n in range(30))
    one.say("use the tool", result=lines)
    one.say("and now?")
    during, after = loop.provider.requests[2], loop.provider.requests[3]
    assert "line 3\\n" in text_of(during)
    assert "line 3\\n" not in text_of(after)
    assert "28 earlier lines cut" in text_of(after)


def test_manual_commits_wait_until_they_are_told(loop):
    """In manual mode the turn stays open over several answers."""
    one = loop(conversation={"mode": "manual", "hook": trim_tool_outputs(1)})
    one.say("use the tool", result="a\nb\nc")
    assert "earlier lines cut" not in json.dumps(one.conversation.build_messages())
    one.conversation.commit()
    assert "earlier lines cut" in json.dumps(one.conversation.build_messages())


def test_a_compaction_is_named_as_the_cause_and_is_no_alarm(loop):
    """The request after a due compaction loses its history in the cache, and the verdict says why."""
    trigger = 12_000
    one = loop(compaction=Compaction(trigger, keep_turns=2, horizon=1_000))
    for number in range(40):
        one.say(f"{WORDS} {number}")
        if one.conversation.ledger.epoch:
            break
    one.say("and now?")
    verdict = next(v for v in one.verdicts if v.cause == "compacted")
    assert not verdict.alarm
    assert one.verdicts[-1].cause == "hit"
    assert all(prompt.tokens < trigger + 1_500 for prompt in prompts(loop))


def test_a_cold_cache_is_compacted_before_the_trigger_is_reached(loop):
    """When the lifetime has passed a rewrite costs nothing more; while it lasts nothing is touched."""
    now = [0.0]
    one = loop(compaction=Compaction(12_000, keep_turns=2), clock=lambda: now[0])
    while one.conversation.statistics().tokens < 10_000:
        one.say(WORDS)
    assert one.conversation.ledger.epoch == 0
    assert one.conversation.plan().reason == "none"
    now[0] = 100_000.0
    assert one.conversation.plan().reason == "cold"
    one.conversation.build()
    assert one.conversation.ledger.epoch == 1


def test_an_impossible_request_budget_says_by_how_much(loop):
    """The system text alone is above the window, so no request goes out."""
    one = loop(history=History(request_budget=RequestBudget(1_000, reserve=200)))
    one.conversation.append({"role": "user", "content": "hello"})
    with pytest.raises(BudgetError) as caught:
        one.call()
    assert caught.value.over_by > 0
    assert not loop.provider.requests


def test_no_request_is_above_a_possible_budget(loop):
    """History goes as it must, volatile text is counted, and the loop runs on."""
    budget = RequestBudget(6_000, reserve=1_000)
    one = loop(history=History(request_budget=budget))
    for number in range(12):
        one.say(f"{WORDS} {number}", volatile="the time")
    tools = 60
    assert max(prompt.tokens for prompt in prompts(loop)) <= budget.room + tools
    assert one.conversation.ledger.epoch >= 1


def test_another_process_with_another_budget_builds_the_same_bytes(loop):
    """A saved conversation continues on the same prefix, whatever its results would be cut to now."""
    one = loop(budget=ToolResultBudget(200))
    one.say("use the tool", result=WORDS)
    saved = one.conversation.dumps()
    assert SYSTEM[:40] not in saved
    other = loop(budget=ToolResultBudget(5_000))
    other.conversation.restore(saved)
    assert json.dumps(other.conversation.build_messages()) == json.dumps(one.conversation.build_messages())
    other.say("go on")
    assert only_grows([digests(prompt) for prompt in prompts(loop)])
    assert loop.provider.requests[-1].outcome.read_tokens > 0


def test_a_state_of_another_system_text_is_refused(loop):
    """The prefix is held by digest and checked at load."""
    one = loop()
    one.say("hello")
    saved = json.loads(one.conversation.dumps())
    saved["context"]["system"] = "another"
    with pytest.raises(StateError):
        loop(id_="new").conversation.restore(saved)


def test_a_failed_call_leaves_no_trace(loop):
    """What was appended for a request that failed is gone with it, in state and in expectations."""
    one = loop()
    one.say("hello")
    before = one.conversation.dumps()

    def failing():
        with one.conversation.trial() as draft:
            draft.append({"role": "user", "content": "lost"})
            turn = one.session.adapter.begin(
                Request(one.body(draft.build()), one.kind, agent="one", conversation=one.id)
            )
            turn.fail()
            raise ConnectionError

    with pytest.raises(ConnectionError):
        failing()
    assert one.conversation.dumps() == before
    one.say("again")
    assert one.verdicts[-1].cause == "hit"


def test_a_policy_that_raises_sends_the_request_as_it_was(loop):
    """The failure is counted and named once; the loop goes on uncompacted."""

    def broken(situation):
        raise ValueError("no idea")

    one = loop(compaction=Compaction(3_000, policies=(broken,)))
    with pytest.warns(CacheprefixWarning, match="no idea"):
        for number in range(6):
            one.say(f"{WORDS} {number}")
    assert one.session.failures["compaction"] >= 1
    assert one.conversation.ledger.epoch == 0
    assert one.verdicts[-1].cause == "hit"


def test_a_compact_hook_that_raises_is_left_out(loop):
    """The built-in policies then do the work."""

    class Broken:
        def cacheprefix_compact(self, view, policy):
            raise ValueError("no idea")

    one = loop(compaction=Compaction(8_000, keep_turns=2, horizon=1_000), plugins=[Broken()])
    with pytest.warns(CacheprefixPluginWarning, match="no idea"):
        for number in range(25):
            one.say(f"{WORDS} {number}")
    assert one.conversation.ledger.epoch >= 1


def test_a_transition_hook_that_raises_commits_what_was_there(loop):
    """The turn becomes history unchanged."""

    def broken(messages):
        raise ValueError("no idea")

    one = loop(conversation={"mode": "agent_cycle", "hook": broken})
    with pytest.warns(CacheprefixWarning, match="no idea"):
        one.say("use the tool")
    one.say("and now?")
    assert one.verdicts[-1].cause == "hit"


def test_a_summary_rides_on_the_cached_prefix(loop):
    """The fork that writes it reads the conversation from the cache, and its text stands in the history."""
    one = loop(compaction=Compaction(900_000, 4_000, summarise="fork"))
    for number in range(12):
        one.say(f"{WORDS} {number}")
    built = one.conversation.build(settle=False)
    ask = one.session.adapter.side_forks.summary(body=one.body(built), api=one.kind, send=one.send, conversation=one.id)
    assert one.conversation.compact(force=True, ask=ask)
    asked = loop.provider.requests[-1]
    assert "Summarise this conversation" in text_of(asked)
    assert asked.outcome.read_tokens > 0.9 * prompts(loop)[-2].tokens
    users = [message["content"] for message in one.conversation.build_messages() if message["role"] == "user"]
    assert any(str(content).startswith("An answer of some length") for content in users)


def test_a_summary_can_be_awaited_and_a_task_that_comes_meanwhile_does_not_ask_again(loop):
    """The event loop goes on; one compaction, one fork, and whoever builds meanwhile gets the history as it was."""
    one = loop(compaction=Compaction(9_000, 4_000, summarise="fork", horizon=1_000))
    one.conversation.append(*({"role": ("user", "assistant")[n % 2], "content": f"{WORDS} {n}"} for n in range(13)))
    before = one.conversation.build(settle=False)
    asked = []

    async def send(body):
        asked.append(body)
        await asyncio.sleep(0)
        return one.send(body)

    ask = one.session.adapter.side_forks.asummary(body=one.body(before), api=one.kind, send=send, conversation=one.id)

    async def both():
        return await asyncio.gather(one.conversation.abuild(ask=ask), one.conversation.abuild(ask=ask))

    first, second = asyncio.run(both())
    assert len(asked) == one.conversation.ledger.epoch == 1
    assert any(str(message.get("content")).startswith("An answer of some length") for message in first.messages)
    assert second.messages == before.messages


def test_an_awaited_summary_that_fails_leaves_an_extract(loop):
    """Fail open: the history is compacted all the same, and the failure counted."""
    one = loop(compaction=Compaction(9_000, 4_000, summarise="fork", horizon=1_000))
    kept = one.session.conversation("framework")
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"{WORDS} {n}"} for n in range(13)]

    async def ask(request):
        raise TimeoutError(request.max_tokens)

    async def condensed():
        views = views_of(messages, loop.kind, one.session.adapter.counter(MODEL[loop.kind]))
        return await one.session.adapter.histories.acondense(kept, views, MODEL[loop.kind], loop.kind, ask=ask)

    with pytest.warns(CacheprefixWarning, match="TimeoutError"):
        decisions = asyncio.run(condensed())
    assert len(apply(messages, decisions, loop.kind)) < 13
    assert one.session.failures["summary"] == 1


def test_a_frameworks_history_is_condensed_for_each_request_and_the_verdict_knows(loop):
    """As an adapter does it: the framework's messages stay whole, the requests are compacted and named so."""
    one = loop(compaction=Compaction(9_000, keep_turns=2, horizon=1_000))
    kept = one.session.conversation("framework")
    count = one.session.adapter.counter(MODEL[loop.kind])
    messages, verdicts = [], []
    for number in range(14):
        messages.append({"role": "user", "content": f"{WORDS} {number}"})
        decisions = one.session.adapter.histories.condense(
            kept, views_of(messages, loop.kind, count), MODEL[loop.kind], loop.kind
        )
        shown = apply(messages, decisions, loop.kind)
        shown = [{"role": "system", "content": SYSTEM}, *shown] if loop.kind == "openai-chat" else shown
        body = one.body(Built(shown, SYSTEM, (), len(shown), 0, 0))
        turn = one.session.adapter.begin(Request(body, loop.kind, agent="one", conversation="framework"))
        response = one.send(turn.body)
        verdicts.append(turn.finish(response.usage))
        messages.append({"role": "assistant", "content": f"answer {number}"})
    causes = [verdict.cause for verdict in verdicts]
    assert len(messages) == 28
    assert causes.count("compacted") == kept.ledger.epoch >= 1
    assert set(causes) == {"cold_start", "hit", "compacted"}
    assert max(prompt.tokens for prompt in prompts(loop)) < 9_500

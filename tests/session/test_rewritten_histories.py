"""An application that rewrites, cuts and moves what was said before: every body sent is one that the provider takes."""

import json
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheprefix import Caching, Compaction, Session, SharedPrefix, ToolResultBudget
from cacheprefix.bodies import Role, fork_body
from cacheprefix.prompt import ESTIMATE
from cacheprefix.testing import request_errors
from tests.drawn import examples

HANDBOOK = "The handbook says that every statement needs a source. " * 150
MODELS = {"anthropic": "claude-sonnet-4-5", "openai-chat": "gpt-5.2", "openai-responses": "gpt-5.2"}
# Few texts, so that many messages say the same.
TEXTS = st.sampled_from(["Yes.", "[cleared]", "A long result. " * 40])
ROLES = {name: f"You are the {name}. " + "Mind each claim. " * size for name, size in (("critic", 100), ("editor", 3))}
ROUNDS = st.fixed_dictionaries({"results": st.lists(TEXTS, min_size=1, max_size=3), "thinks": st.booleans()})
TURNS = st.one_of(st.tuples(st.sampled_from(["asked", "said"]), TEXTS), ROUNDS)


def _messages(api, turns):
    """A history in wire form; a turn is what the user asked, what the model said, or calls of tools with results."""
    sent = []
    for turn in turns:
        if isinstance(turn, dict):
            sent += _ROUNDS[api](turn["ids"], turn["results"], thinks=turn["thinks"])
        else:
            sent.append({"role": "user" if turn[0] == "asked" else "assistant", "content": turn[1]})
    return sent


def _chat(ids, results, *, thinks):
    function = {"name": "read", "arguments": "{}"}
    calls = [{"id": one, "type": "function", "function": function} for one in ids]
    said = [{"role": "tool", "tool_call_id": one, "content": text} for one, text in zip(ids, results, strict=True)]
    return [{"role": "assistant", "content": "Hm." * thinks, "tool_calls": calls}, *said]


def _responses(ids, results, *, thinks):
    items = []
    for one in ids:
        items += [{"type": "reasoning", "id": f"rs_{one}", "summary": []}] * thinks
        items.append({"type": "function_call", "call_id": one, "name": "read", "arguments": "{}"})
    pairs = zip(ids, results, strict=True)
    return items + [{"type": "function_call_output", "call_id": one, "output": text} for one, text in pairs]


def _anthropic(ids, results, *, thinks):
    thought = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}] * thinks
    calls = [{"type": "tool_use", "id": one, "name": "read", "input": {}} for one in ids]
    pairs = zip(ids, results, strict=True)
    said = [{"type": "tool_result", "tool_use_id": one, "content": text} for one, text in pairs]
    return [{"role": "assistant", "content": [*thought, *calls]}, {"role": "user", "content": said}]


_ROUNDS = {"openai-chat": _chat, "openai-responses": _responses, "anthropic": _anthropic}


def _edited(draw, turns):
    """The history as an application has it at the next request."""
    how = draw(st.sampled_from(["rewrite", "rewrite", "grow", "cut", "go back", "remove", "insert"]))
    at = draw(st.integers(0, len(turns) - 1))
    if how == "rewrite":
        return [
            {**turn, "results": draw(st.lists(TEXTS, min_size=len(turn["ids"]), max_size=len(turn["ids"])))}
            if isinstance(turn, dict)
            else turn
            for turn in turns
        ]
    if how in ("cut", "go back"):
        return turns[at:] if how == "cut" else turns[: at + 1]
    if how == "insert":
        return [*turns[:at], ("asked", draw(TEXTS)), *turns[at:]]
    return turns[:at] + turns[at + 1 :] if how == "remove" else turns


@pytest.mark.parametrize("api", MODELS)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_whatever_the_application_does_to_its_history_each_body_sent_is_valid(api, data):
    """Two roles of one conversation, taken up elsewhere in between, with and without a compaction and cut results.

    Also where the layout is chosen by simulating the cache (``played``), of which another process knows nothing.
    """
    names, draw = count(), data.draw
    compaction = Compaction(600, keep_turns=1, horizon=1e9, slack=0) if draw(st.booleans()) else None
    budget, played = ToolResultBudget(40, per_turn=60) if draw(st.booleans()) else None, draw(st.booleans())

    def fresh():
        made = Session(
            SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE), compaction=compaction, budget=budget
        )
        for name in ROLES:
            made.adapter.join(name)
        return made

    session, turns = fresh(), [("asked", "Begin.")]
    for _ in range(draw(st.integers(2, 5))):
        turns = _edited(draw, turns)
        for turn in draw(st.lists(TURNS, max_size=3)):
            made = {**turn, "ids": [f"c{next(names)}" for _ in turn["results"]]} if isinstance(turn, dict) else turn
            turns = [*turns, made]
        # A request begins with a question, and ends with one or with results.
        if not turns or isinstance(turns[0], dict) or turns[0][0] == "said":
            turns = [("asked", "Begin."), *turns]
        if not isinstance(turns[-1], dict) and turns[-1][0] == "said":
            turns = [*turns, ("asked", "Go on.")]
        name = draw(st.sampled_from(sorted(ROLES)))
        system = f"{ROLES[name]}\n\n{HANDBOOK}"
        body = {"model": MODELS[api]}
        if api == "anthropic":
            body |= {"system": system, "max_tokens": 64, "messages": _messages(api, turns)}
        else:
            field = "messages" if api == "openai-chat" else "input"
            body[field] = [{"role": "system", "content": system}, *_messages(api, turns)]
        assert request_errors(body) == []
        fork = fork_body(session.adapter, body, api, Role(name, ROLES[name], conversation="one", played=played))
        turn = fork.begin()
        turn.finish(None)
        assert fork.forked or played
        assert request_errors(turn.body) == []
        assert session.failures == {}
        if not played and draw(st.booleans()):
            saved = json.loads(json.dumps(session.conversation("one").to_json()))
            session = fresh()
            session.conversation("one").restore(saved)

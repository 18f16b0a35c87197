"""Decisions carried out on LangChain's messages, on generated histories: pairs, order, replay, identity."""

from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from cacheprefix import Caching, Compaction, Conversation, Session, SharedPrefix, ToolResultBudget
from cacheprefix.prompt import ESTIMATE, DropCall, DropResult, DropThinking, Insert
from cacheprefix_langgraph.fork_context import Frame
from cacheprefix_langgraph.history import carried_out
from cacheprefix_langgraph.layout import ToSettle, settled
from cacheprefix_langgraph.parts import instruction_of, taken_apart
from cacheprefix_langgraph.views import KEY, Views
from tests.drawn import examples

WORDS = st.sampled_from(["yes", "no " * 200, "a line\n" * 150, "\ud800 é 日本", "value_1 = 42"])


@st.composite
def histories(draw):
    """Turns of users, answers, parallel calls with results (some missing), blocks, thinking, keyed texts."""
    messages = []
    for turn in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["user", "calls", "answer", "blocks", "keyed"]))
        if kind == "user":
            messages.append(HumanMessage(f"{turn}: {draw(WORDS)}"))
        elif kind == "keyed":
            key = draw(st.sampled_from(["facts", "plan"]))
            messages.append(HumanMessage(f"{turn}: {draw(WORDS)} [{turn}]", additional_kwargs={KEY: key}))
        elif kind == "answer":
            messages.append(AIMessage(f"{turn}: {draw(WORDS)}"))
        elif kind == "blocks":
            thinking = {"type": "thinking", "thinking": draw(WORDS), "signature": "s"}
            messages.append(AIMessage([thinking, {"type": "text", "text": f"{turn}: {draw(WORDS)}"}]))
        else:
            names = draw(st.lists(st.sampled_from(["grep", "file_edit", "other"]), min_size=1, max_size=3))
            calls = [{"id": f"c{turn}_{n}", "name": name, "args": {"n": n}} for n, name in enumerate(names)]
            content = (
                ""
                if draw(st.booleans())
                else [
                    {"type": "text", "text": "I call."},
                    *(
                        {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["args"]}
                        for call in calls
                    ),
                ]
            )
            messages.append(AIMessage(content, tool_calls=calls))
            given = calls if draw(st.integers(0, 5)) else calls[:-1]
            messages += [ToolMessage(f"{turn}: {draw(WORDS)}", tool_call_id=call["id"]) for call in given]
    return [HumanMessage("Begin."), *messages, HumanMessage("And now?")]


def sent(messages, state, **options):
    """What is sent of a history under a conversation's decisions."""
    session = Session(SharedPrefix(system="Rules."), caching=Caching(provider="exact", counter=ESTIMATE), **options)
    frame = Frame(session=session.adapter, role="r", state=state)
    done = settled(ToSettle(taken_apart(messages, frame), frame, Views(), "m", "tail", ()))
    assert session.failures == {}
    return done


def pairs(messages):
    """Ids of results that follow their call, and ids of calls and results."""
    calls, results, ok = [], [], True
    for message in messages:
        if isinstance(message, AIMessage):
            calls += [call["id"] for call in message.tool_calls]
            blocks = message.content if isinstance(message.content, list) else []
            used = [block["id"] for block in blocks if block.get("type") == "tool_use"]
            ok = ok and (not used or used == [call["id"] for call in message.tool_calls])
        elif isinstance(message, ToolMessage):
            ok = ok and message.tool_call_id in calls
            results.append(message.tool_call_id)
    return ok, set(calls), set(results)


@given(histories(), st.sampled_from([300, 900, 2_000]))
@settings(max_examples=examples(60), deadline=None)
def test_a_compaction_keeps_pairs_and_order_and_is_replayed(messages, trigger):
    """No half of a pair, no empty message, nothing moved; a second run and another session send the same."""
    state = Conversation("one")
    rules = {"compaction": Compaction(trigger=trigger, keep_turns=1), "budget": ToolResultBudget(max_tokens=100)}
    done = sent(messages, state, **rules)
    ok, calls, results = pairs(done.messages)
    assert ok
    _, all_calls, all_results = pairs(messages)
    assert calls - results <= all_calls - all_results
    assert all(message.content or getattr(message, "tool_calls", None) for message in done.messages)
    places = {id(message): place for place, message in enumerate(messages)}
    kept = [places[id(message)] for message in done.messages if id(message) in places]
    assert kept == sorted(kept)
    assert done.messages[-1] is messages[-1]
    saved = restored(state)
    for again in (sent(messages, state, **rules), sent(messages, saved, compaction=500_000)):
        assert [m.content for m in again.messages] == [m.content for m in done.messages]


def restored(state):
    """A conversation in another process, with what was decided in this one."""
    other = Conversation("")
    other.restore(state.dumps())
    return other


def keyed(messages):
    """The texts of durable context by key, in order."""
    out = {}
    for message in messages:
        if KEY in message.additional_kwargs:
            out.setdefault(message.additional_kwargs[KEY], []).append(message.text)
    return out


def newest_question(messages):
    """Where the newest words of the user stand that are no durable context."""
    prompts = [isinstance(one, HumanMessage) and KEY not in one.additional_kwargs for one in messages]
    return max((index for index, prompt in enumerate(prompts) if prompt), default=0)


@given(histories(), histories(), st.integers(0, 30))
@settings(max_examples=25, deadline=None)
def test_durable_context_becomes_one_block_a_key_when_a_compaction_rewrites_the_prefix(first, more, cut):
    """Nothing of it is lost or said twice, in longer, resumed and rewound histories; else it stays where it was."""
    rules = {"compaction": Compaction(trigger=900, keep_turns=1)}
    state = Conversation("one")
    whole = [*first, *more]
    for messages in (first, whole, whole[:cut], first):
        blocks = state.ledger.section("blocks")
        done = sent(messages, state, **rules).messages
        said = keyed(done)
        for key, texts in keyed(messages).items():
            assert "\n\n".join(said[key]) == "\n\n".join(texts)
        if state.ledger.section("blocks") != blocks:
            at = newest_question(messages)
            joined, waiting = keyed(messages[:at]), keyed(messages[at:])
            assert {key: len(texts) for key, texts in keyed(done[: len(joined)]).items()} == dict.fromkeys(joined, 1)
            apart = {key: len(said[key]) - (key in joined) for key in said}
            wait = {key: len(waiting.get(key, ())) for key in said}
            # What was joined when a later question stood there stays so in a history that goes back to before it.
            assert all(apart[key] <= wait[key] for key in said) if blocks else apart == wait
        saved = restored(state)
        assert [m.content for m in sent(messages, saved, compaction=500_000).messages] == [m.content for m in done]


@given(histories())
@settings(max_examples=30, deadline=None)
def test_without_decisions_every_message_is_the_same_object(messages):
    """Also where a budget would decide and nothing is large enough."""
    done = sent(messages, Conversation("one"), budget=ToolResultBudget(max_tokens=100_000))
    assert all(one is other for one, other in zip(done.messages, messages, strict=True))
    assert carried_out(messages, (), 0).messages == messages


def test_the_shared_text_is_taken_out_of_a_roles_text_as_a_whole():
    """Handbook and durable context together where the application has both, the handbook alone where it has that."""
    session = Session(SharedPrefix(system="Rules.", context={"facts": "The sea is blue."}))
    frame = Frame(session=session.adapter, role="r")
    for text in (f"You write.\n\n{session.prefix.text}", "You write.\n\nRules.", "You write."):
        assert instruction_of(taken_apart([SystemMessage(text)], frame), frame) == "You write."


def test_one_call_of_several_goes_with_its_result_in_every_form_of_content():
    """Plain, Anthropic's blocks, the responses API's items: the other call and the words stay."""
    calls = [{"id": "a", "name": "file_edit", "args": {}}, {"id": "b", "name": "grep", "args": {}}]
    text = {"type": "text", "text": "I call."}
    contents = [
        "I call.",
        [text, *({"type": "tool_use", "id": call["id"], "name": call["name"], "input": {}} for call in calls)],
        [{"type": "reasoning", "id": "r"}, text, *({"type": "function_call", "call_id": call["id"]} for call in calls)],
    ]
    results = [ToolMessage("done", tool_call_id="a"), ToolMessage("found", tool_call_id="b")]
    for content in contents:
        message = AIMessage(content, tool_calls=calls, additional_kwargs={"tool_calls": [{"id": "a"}, {"id": "b"}]})
        done = carried_out([message, *results], [DropCall(0, "a"), DropResult(1, 0)], 3)
        changed, left = done.messages
        assert [call["id"] for call in changed.tool_calls] == ["b"]
        assert changed.additional_kwargs == {"tool_calls": [{"id": "b"}]}
        assert "'a'" not in str(changed.content)
        assert changed.text == "I call."
        assert (left, done.border, done.lossless) == (results[1], 2, False)
        assert len(message.tool_calls) == 2
    silent = AIMessage([{"type": "thinking", "thinking": "hm"}], tool_calls=calls[:1])
    assert carried_out([silent, results[0]], [DropCall(0, "a"), DropResult(1, 0)], 0).messages == []


def test_thinking_goes_and_reasoning_items_stay():
    """The responses API takes a reasoning item and what follows it only together; a summary stands where it belongs."""
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    item = {"type": "reasoning", "id": "r"}
    message = AIMessage([thought, item, {"type": "text", "text": "So."}])
    decisions = [DropThinking(0, 0), DropThinking(0, 1), Insert(1, "user", "Before this: much.")]
    done = carried_out([message, HumanMessage("Go on.")], decisions, 1)
    assert done.messages[0].content == [item, {"type": "text", "text": "So."}]
    assert [one.text for one in done.messages[1:]] == ["Before this: much.", "Go on."]
    assert done.border == 2

"""Compaction, budgets, lasting and passing context, commits and live verdicts, on recorded wire bytes."""

import asyncio
import json
from itertools import pairwise

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from cacheprefix import Compaction, History, RequestBudget
from cacheprefix.errors import BudgetError
from cacheprefix.history import drop_tool_messages, trim_tool_outputs
from cacheprefix.layout.team import Team
from cacheprefix.server import Queue, Reply, ToolCall
from cacheprefix_langgraph import (
    CommitMiddleware,
    PrefixMiddleware,
    PrefixState,
    StreamVerdicts,
    commit_turn,
    context_message,
    forked,
    pinned,
    subgraph,
    wrap_model,
)

ONE = pytest.mark.parametrize("bench", ["anthropic"], indirect=True)
"""For what does not depend on the provider's form of messages."""

HANDBOOK = "The handbook says that every statement needs a source. " * 90
PAGE = "a line that somebody read once and will hardly need again. " * 60
"""About 900 tokens by the estimate."""


class State(MessagesState, PrefixState):
    pass


def turn(number, body=PAGE):
    """A question, a tool round and an answer."""
    call = {"id": f"c{number}", "name": "read_file", "args": {"path": f"page{number}"}}
    return [
        HumanMessage(f"What does page {number} say?", id=f"h{number}"),
        AIMessage("", tool_calls=[call], id=f"a{number}"),
        ToolMessage(f"page {number}: {body}", tool_call_id=f"c{number}", id=f"t{number}"),
        AIMessage(f"It says number {number}.", id=f"b{number}"),
    ]


def history(turns=12):
    """A conversation of about 900 tokens a turn, and a last question."""
    return [*(one for number in range(turns) for one in turn(number)), HumanMessage("And now?", id="last")]


def build(bench, session, kind="node", saver=None):
    """A graph that answers once, in each of the adapter's forms."""
    model = wrap_model(bench.model(), session)
    session.adapter.join("another")
    if kind == "middleware":
        return create_agent(
            bench.model(),
            bench.tools,
            system_prompt="You read.",
            middleware=[PrefixMiddleware(session, role="reader")],
            checkpointer=saver,
        )
    if kind == "wrapped":
        model = wrap_model(bench.model(), session, role="reader", instruction="You read.")

    def speak(state):
        return {"messages": [AIMessage(model.invoke([SystemMessage("You read."), *state["messages"]]).text)]}

    graph = StateGraph(State)
    graph.add_node("speak", speak if kind == "wrapped" else forked(session, role="reader")(speak))
    graph.add_edge(START, "speak")
    graph.add_edge("speak", END)
    return graph.compile(checkpointer=saver)


def texts(prompt):
    """All texts of a prompt's conversation."""
    return "\n".join(section.text for section in prompt.tier("messages"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["node", "wrapped", "middleware"])
def test_a_long_history_is_compacted_where_the_model_is_called(bench, kind):
    """Old results go, pairs stay whole, the state keeps every message and the newest turns are sent."""
    session = bench.session(HANDBOOK, compaction=6_000)
    out = build(bench, session, kind).invoke({"messages": history()}, {"recursion_limit": 9})
    (prompt,) = bench.prompts()
    assert prompt.tokens < 6_000
    assert "It says number 11." in texts(prompt)
    assert len(out["messages"]) == 50
    assert PAGE in out["messages"][2].content
    assert session.failures == {}


@pytest.mark.parametrize("kind", ["node", "middleware"])
def test_a_compacted_thread_goes_on_byte_identically_in_another_session(bench, kind):
    """The checkpoint alone carries the compaction: the next prompt begins with all that was sent."""
    saver = InMemorySaver()
    config = {"configurable": {"thread_id": "one"}}
    build(bench, bench.session(HANDBOOK, compaction=6_000), kind, saver).invoke({"messages": history()}, config)
    later = bench.session(HANDBOOK, compaction=150_000)
    build(bench, later, kind, saver).invoke({"messages": [HumanMessage("Go on.")]}, config)
    first, second = bench.prompts()
    shared = first.sections[:-1]
    assert [s.data for s in second.sections[: len(shared)]] == [s.data for s in shared]
    assert second.tokens < 6_000


@pytest.mark.slow
def test_a_thread_is_compacted_once_and_its_break_is_no_alarm(bench):
    """Between compactions the prompt grows at its end; the one rewrite has its own cause."""
    saver = InMemorySaver()
    config = {"configurable": {"thread_id": "one"}}
    session = bench.session(HANDBOOK, compaction=6_000)
    graph = build(bench, session, saver=saver)
    graph.invoke({"messages": [*(one for n in range(3) for one in turn(n)), HumanMessage("Go on.")]}, config)
    for number in range(3, 12):
        graph.invoke({"messages": [*turn(number), HumanMessage("Go on.")]}, config)
    prompts = bench.prompts()
    kept = [b.sections[: len(a.sections) - 1] == a.sections[:-1] for a, b in pairwise(prompts)]
    assert 1 <= kept.count(False) <= 3
    assert {str(call.verdict.cause) for call in session.calls[1:]} <= {"hit", "compacted"}
    assert all(prompt.tokens < 8_000 for prompt in prompts)


def test_a_summary_is_written_by_a_fork_that_reads_the_cached_prefix(bench):
    """One request more, whose prompt begins with what was sent before; its answer stands in the next one."""
    session = bench.session(HANDBOOK, compaction=Compaction(trigger=6_000, summarise="fork", keep_turns=2))
    saver = InMemorySaver()
    config = {"configurable": {"thread_id": "one"}}
    graph = build(bench, session, saver=saver)
    graph.invoke({"messages": [one for n in range(4) for one in turn(n)]}, config)
    long = [m for n in range(4, 12) for m in (HumanMessage(f"Question {n}. {PAGE}"), AIMessage(f"Answer {n}. {PAGE}"))]
    graph.invoke({"messages": [*long, HumanMessage("And now?")]}, config)
    first, asked, second = bench.prompts()
    assert "Summarise this conversation" in asked.sections[-1].text
    shared = first.sections[:-1]
    assert asked.sections[: len(shared)] == shared
    assert "Summarise this conversation" not in texts(second).partition("You said")[0]
    assert second.tokens < 6_000
    assert [call.agent for call in session.calls] == ["reader", "summary", "reader"]


@ONE
def test_a_budget_that_cannot_be_met_says_by_how_much(bench):
    """Nothing is sent; the error is the application's to handle."""
    session = bench.session(HANDBOOK, history=History(request_budget=RequestBudget(window=1_500, reserve=200)))
    with pytest.raises(BudgetError) as raised:
        build(bench, session).invoke({"messages": history(2)})
    assert raised.value.over_by > 0
    assert bench.bodies == []


@ONE
def test_a_request_budget_holds_the_whole_request(bench):
    """System text, tools, history and the role's text together."""
    session = bench.session(HANDBOOK, history=History(request_budget=RequestBudget(window=5_000, reserve=1_000)))
    build(bench, session).invoke({"messages": history()})
    assert bench.prompts()[0].tokens <= 4_000


@pytest.mark.parametrize("way", ["sync", "async", "summary"])
@ONE
def test_a_request_fits_the_window_with_tools_that_the_provider_runs(bench, way):
    """Nobody shares them, and the model reads them all the same."""
    compaction = Compaction(50_000, summarise="fork") if way == "summary" else None
    limit = History(request_budget=RequestBudget(9_000))
    session = bench.session(HANDBOOK, history=limit, compaction=compaction)
    session.adapter.join("another")
    search = {"type": "web_search_20250305", "name": "web_search"}
    search["allowed_domains"] = [f"{number}.example.org" for number in range(800)]
    model = wrap_model(bench.model(), session).bind_tools([search])

    async def aspeak(state):
        return {"messages": [await model.ainvoke([SystemMessage("You read."), *state["messages"]])]}

    def speak(state):
        return {"messages": [model.invoke([SystemMessage("You read."), *state["messages"]])]}

    graph = StateGraph(State).add_node("reader", forked(session, role="reader")(speak if way == "sync" else aspeak))
    graph = graph.add_edge(START, "reader").compile()
    given = {"messages": history(7)}
    graph.invoke(given) if way == "sync" else asyncio.run(graph.ainvoke(given))
    assert 4_000 < bench.prompts()[-1].tokens <= 9_000
    assert not session.failures


@ONE
def test_observing_compacts_nothing(bench):
    """The bytes are those of the model itself."""
    session = bench.session(HANDBOOK, compaction=6_000, mode="observe")
    build(bench, session).invoke({"messages": history()})
    bench.model().invoke([SystemMessage("You read."), *history()])
    assert bench.bodies[0] == bench.bodies[1]


@ONE
def test_keyed_and_pinned_messages_survive_every_compaction(bench):
    """Durable context is sent whole, though all around it goes."""
    session = bench.session(HANDBOOK, compaction=4_000)
    fact = context_message("The customer's name is Ada. " + "She likes tea. " * 20, "profile")
    given = [*turn(0), fact, *turn(1), pinned(HumanMessage("Never write in capitals.")), *history()[8:]]
    build(bench, session).invoke({"messages": given})
    (prompt,) = bench.prompts()
    assert fact.content in texts(prompt)
    assert "Never write in capitals." in texts(prompt)
    assert "cacheprefix_key" not in str(bench.bodies[0])


@ONE
def test_a_message_that_is_pinned_where_it_stands_survives_every_compaction(bench):
    """It was looked at before with the same text, when it was not pinned yet, and went."""
    session, given = bench.session(HANDBOOK, compaction=4_000), history()
    given[3] = AIMessage("Never write in capitals.", id="b0")
    graph = build(bench, session)
    graph.invoke({"messages": given[:8]})
    given[3].additional_kwargs |= pinned(given[3]).additional_kwargs
    graph.invoke({"messages": given})
    assert len(str(bench.bodies[1])) < len(str(given))
    assert "Never write in capitals." in texts(bench.prompts()[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["node", "middleware"])
def test_durable_context_is_one_block_behind_the_static_text_once_a_compaction_rewrites_the_prefix(bench, kind):
    """Deltas stay where they were appended until then; the hook joins them; another session repeats the bytes."""
    told = []

    def join(key, given):
        told.append((key, given))
        return " / ".join(given)

    saver = InMemorySaver()
    config = {"configurable": {"thread_id": "one"}}
    rules = {"compaction": Compaction(trigger=6_000, consolidate=join)}
    base = {"facts": "Base."}
    graph = build(bench, bench.session(HANDBOOK, context=base, **rules), kind, saver)

    def fact(number):
        return context_message(f"Fact {number}.", "facts")

    graph.invoke({"messages": [*turn(0), fact(0), *turn(1), fact(1), HumanMessage("So?")]}, config)
    for number in (2, 3):
        # Only what was compacted is joined, and the hook is given the block and what came since.
        more = [one for at in range(number * 4, number * 4 + 5) for one in turn(at)]
        graph.invoke({"messages": [*more[:4], fact(number), *more[4:], HumanMessage("So?")]}, config)
    before, _, last = bench.prompts()
    assert "Fact 0. / Fact 1." not in texts(before)
    first = "Base. / Fact 0. / Fact 1. / Fact 2."
    assert told == [("facts", ("Base.", "Fact 0.", "Fact 1.", "Fact 2.")), ("facts", (first, "Fact 3."))]
    front = len(last.tier("tools")) + len(last.tier("system"))
    assert last.sections[front].text.startswith(f"{first} / Fact 3.")
    assert texts(last).count("Fact 0.") == 1
    again = build(bench, bench.session(HANDBOOK, context=base), kind, saver)
    again.invoke({"messages": [HumanMessage("Go on.")]}, config)
    after = bench.prompts()[-1]
    assert [s.data for s in after.sections[: len(last.sections) - 1]] == [s.data for s in last.sections[:-1]]


@ONE
def test_a_hook_that_fails_leaves_durable_context_where_it_was(bench):
    """The compaction goes on without it, and the failure is counted."""
    session = bench.session(HANDBOOK, compaction=Compaction(trigger=6_000, consolidate=lambda key, given: None))
    fact = context_message("Ada likes tea.", "facts")
    build(bench, session).invoke({"messages": [*turn(0), fact, context_message("In cups.", "facts"), *history()]})
    (prompt,) = bench.prompts()
    assert prompt.tokens < 6_000
    assert "Ada likes tea." in texts(prompt)
    assert session.failures == {"consolidation": 1}


def test_too_much_durable_context_is_an_error_at_once():
    """Before anything is appended, and with the number of tokens."""
    first = context_message("a fact " * 100, "facts")
    with pytest.raises(BudgetError, match="durable context 'more'") as raised:
        context_message("another " * 100, "more", limit=150, beside=[first])
    assert raised.value.over_by > 0


@ONE
def test_volatile_text_stands_behind_everything_and_is_never_stored(bench):
    """Inside a tool loop too; what was sent before it stays the beginning of the next prompt."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    clock = iter(range(100))
    graph = StateGraph(MessagesState)

    @forked(session, role="reader", volatile=lambda state: {"now": f"tick {next(clock)}"})
    def speak(state):
        return {"messages": [AIMessage(model.invoke([SystemMessage("You read."), *state["messages"]]).text)]}

    graph.add_node("one", speak)
    graph.add_node("two", speak)
    graph.add_edge(START, "one")
    graph.add_edge("one", "two")
    out = graph.compile().invoke({"messages": turn(0)[:3]})
    first, second = bench.prompts()
    assert "tick 0" in first.sections[-1].text
    assert "tick 1" in second.sections[-1].text
    assert second.sections[: len(first.sections) - 1] == first.sections[:-1]
    assert not any("tick" in message.text for message in out["messages"][:3])


@pytest.mark.parametrize("kind", ["middleware", "pinned", "subgraph"])
def test_volatile_text_stays_behind_everything_in_an_agents_tool_loop(bench, kind):
    """The clock is behind the newest result on every call, and what was sent before it stays as it was sent."""
    session = bench.session(HANDBOOK)
    clock = iter(range(100))

    def now(state):
        return {"now": f"tick {next(clock)}"}

    session.adapter.join("another")
    bench.script([Reply(tool_calls=(ToolCall("read_file", {"path": "a"}),)), Reply("Done.")])
    doors = {"session": session, "role": "reader", "volatile": now}
    middleware = [] if kind == "subgraph" else [PrefixMiddleware(**doors, pinned=kind == "pinned")]
    agent = create_agent(
        wrap_model(bench.model(), session), bench.tools, system_prompt="You read.", middleware=middleware
    )
    graph = subgraph(agent, **doors) if kind == "subgraph" else agent
    out = graph.invoke({"messages": [HumanMessage("Please begin.")]})
    first, second = bench.prompts()
    assert "tick 0" in first.sections[-1].text
    assert f"tick {int(kind != 'subgraph')}" in second.sections[-1].text
    assert second.sections[: len(first.sections) - 1] == first.sections[:-1]
    marked = [section.text for prompt in (first, second) for section in prompt.sections if section.marker is not None]
    assert not any("tick" in text for text in marked)
    assert [message.type for message in out["messages"]] == ["human", "ai", "tool", "ai"]
    assert not any("tick" in message.text for message in out["messages"])


def test_another_role_may_say_the_volatile_text(bench):
    """Where the provider has such a role behind the conversation; on Anthropic the user says it."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)

    @forked(session, role="reader", volatile=lambda state: {"now": "noon"}, volatile_role="developer")
    def speak(state):
        return {"messages": [AIMessage(model.invoke([SystemMessage("You read."), *state["messages"]]).text)]}

    StateGraph(MessagesState).add_node("speak", speak).add_edge(START, "speak").compile().invoke(
        {"messages": [HumanMessage("Please begin.")]}
    )
    (prompt,) = bench.prompts()
    body = json.loads(bench.bodies[0])
    assert (body.get("messages") or body["input"])[-1]["role"] == ("user" if bench.api == "anthropic" else "developer")
    assert [section.text for section in prompt.sections[-1:]] == ["<now>\nnoon\n</now>"]
    assert "You read." in prompt.sections[-2].text


@ONE
@pytest.mark.parametrize("kind", ["node", "async node", "agent", "subgraph"])
async def test_an_error_in_giving_volatile_text_is_the_applications(bench, kind):
    """It reaches the application through every front door; nothing is sent, and nothing of ours failed."""
    session = bench.session(HANDBOOK)
    session.adapter.join("another")
    doors = {"role": "reader", "volatile": lambda state: {"now": state["missing"]}}
    model, given = wrap_model(bench.model(), session), {"messages": [HumanMessage("Please begin.")]}

    async def run():
        if kind == "node":
            forked(session, **doors)(lambda state: {"messages": [model.invoke(state["messages"])]})(given)
        elif kind == "async node":

            @forked(session, **doors)
            async def speak(state):
                return {"messages": [await model.ainvoke(state["messages"])]}

            await speak(given)
        elif kind == "agent":
            create_agent(bench.model(), [], middleware=[PrefixMiddleware(session, **doors)]).invoke(given)
        else:
            graph = StateGraph(MessagesState).add_node("a", lambda s: {"messages": [model.invoke(s["messages"])]})
            subgraph(graph.add_edge(START, "a").compile(), session, **doors).invoke(given)

    with pytest.raises(KeyError, match="missing"):
        await run()
    assert session.failures == {}
    assert not bench.bodies


@pytest.mark.parametrize("kind", ["node", "agent", "subgraph"])
@pytest.mark.parametrize("step", ["conversation", "tail_for", "begin"])
def test_a_failure_of_ours_keeps_what_the_application_left_to_us_to_say(bench, kind, step, monkeypatch):
    """Whatever breaks on our side, the role's text and the text for this call are said, each once."""
    session = bench.session(HANDBOOK)
    session.adapter.join("another")
    doors = {"role": "reader", "instruction": "You read.", "volatile": lambda state: {"now": "noon"}}
    model, given = wrap_model(bench.model(), session), {"messages": [HumanMessage("Please begin.")]}
    config = {"configurable": {"thread_id": "t"}}

    def broken(*_, **__):
        raise RuntimeError("on purpose")

    monkeypatch.setattr(Team if step == "tail_for" else session.adapter, step, broken)
    with pytest.warns(UserWarning, match="on purpose"):
        if kind == "agent":
            create_agent(bench.model(), [], middleware=[PrefixMiddleware(session, **doors)]).invoke(given, config)
        else:
            door = forked(session, **doors) if kind == "node" else lambda function: function
            speak = door(lambda state: {"messages": [model.invoke(state["messages"])]})
            graph = StateGraph(MessagesState).add_node("a", speak).add_edge(START, "a").compile()
            graph = subgraph(graph, session, **doors) if kind == "subgraph" else graph
            graph.invoke(given, config)
    (prompt,) = bench.prompts()
    said = "\n".join(section.text for section in prompt.sections)
    assert said.count("You read.") == 1
    assert said.count("noon") == 1
    assert said.count("Please begin.") == 1


@pytest.mark.parametrize("kind", ["node", "bound", "agent"])
def test_what_is_too_short_to_share_still_says_all_that_was_left_to_us(bench, kind):
    """The layout is the application's: shared text and role first, text for this call last, and no breakpoints."""
    session = bench.session("Cite every source.")
    doors = {"role": "reader", "instruction": "You read.", "volatile": lambda state: {"now": "noon"}}
    if kind == "bound":
        model = wrap_model(bench.model(), session, role="reader", instruction="You read.")
        model.invoke([HumanMessage("Please begin.")])
    elif kind == "agent":
        session.adapter.join("another")
        middleware = [PrefixMiddleware(session, **doors)]
        agent = create_agent(bench.model(), [], system_prompt="Be brief.", middleware=middleware)
        agent.invoke({"messages": [HumanMessage("Please begin.")]})
    else:
        model = wrap_model(bench.model(), session)
        node = forked(session, **doors)(lambda state: {"messages": [model.invoke(state["messages"])]})
        node({"messages": [SystemMessage("Cite every source. And be brief."), HumanMessage("Please begin.")]})
    (prompt,) = bench.prompts()
    told = "\n".join(section.text for section in prompt.sections)
    expected = {"bound": ("Cite every source.", "You read.")}.get(kind, ("Cite every source.", "You read.", "noon"))
    assert all(told.count(text) == 1 for text in expected)
    assert "You read." in prompt.tier("system")[0].text
    assert (prompt.sections[-1].text == "<now>\nnoon\n</now>") is (kind != "bound")
    assert not any(section.marker is not None for section in prompt.sections)


@ONE
@pytest.mark.parametrize("hook", [drop_tool_messages, trim_tool_outputs(2)])
def test_a_turn_is_committed_through_a_hook_when_its_answer_is_there(bench, hook):
    """Tool traffic goes or is trimmed in the state; an open call is left alone; the turn before stays."""
    session = bench.session(HANDBOOK)
    node = commit_turn(session, hook)
    lines = "\n".join(f"line {n}" for n in range(50))
    first = [message.model_copy() for message in turn(0, lines)]
    once = node({"messages": first})["messages"][1:]
    again = node({"messages": [*once, *turn(1, lines), *turn(2, lines)[:2]]})["messages"][1:]
    assert again[: len(once)] == once
    assert [message.id for message in again[-2:]] == ["h2", "a2"]
    assert not any("line 20" in message.text for message in again)
    model = wrap_model(bench.model(), session)
    model.invoke([*again[:-2], HumanMessage("And now?")])
    assert "It says number 1." in texts(bench.prompts()[0])


def test_an_agent_commits_its_turn_by_middleware(bench):
    """What the next turn is sent holds no tool traffic of the one before."""
    calls = (ToolCall("read_file", {"path": "x"}),)
    bench.provider.simulator.script = Queue([Reply(tool_calls=calls), "It says x.", "Bye."])
    session = bench.session(HANDBOOK)
    session.adapter.join("another")
    agent = create_agent(
        bench.model(),
        bench.tools,
        system_prompt="You read.",
        middleware=[CommitMiddleware(session, drop_tool_messages), PrefixMiddleware(session, role="reader")],
        checkpointer=InMemorySaver(),
    )
    config = {"configurable": {"thread_id": "one"}}
    agent.invoke({"messages": [HumanMessage("Read x.")]}, config)
    out = asyncio.run(agent.ainvoke({"messages": [HumanMessage("Thank you.")]}, config))
    assert [message.text for message in out["messages"]] == ["Read x.", "It says x.", "Thank you.", "Bye."]
    assert "contents of x" not in texts(bench.prompts()[-1])


@ONE
def test_a_hook_that_fails_leaves_the_turn_as_it_was(bench):
    """Counted and named; no message is lost, also where the hook tears a pair."""
    session = bench.session(HANDBOOK)

    def torn(messages):
        return [message for message in messages if not message.get("tool_calls")]

    with pytest.warns(UserWarning, match="without its call"):
        done = commit_turn(session, torn)({"messages": turn(0)})["messages"][1:]
    assert [message.id for message in done] == ["h0", "a0", "t0", "b0"]
    assert session.failures == {"transition hook": 1}


@ONE
def test_verdicts_arrive_in_the_graphs_own_stream(bench):
    """One entry a call, while the graph runs; nothing outside a graph."""
    session = bench.session(HANDBOOK, plugins=[StreamVerdicts()])
    graph = build(bench, session)
    seen = [entry["cacheprefix"] for entry in graph.stream({"messages": turn(0)}, stream_mode="custom")]
    assert [(entry["agent"], entry["cause"], entry["alarm"]) for entry in seen] == [("reader", "cold_start", False)]
    wrap_model(bench.model(), session).invoke([HumanMessage("hi")])
    assert session.failures == {}


@ONE
def test_zones_stand_before_the_history_and_change_only_with_a_compaction(bench):
    """Shown at once on a new thread; a new text waits for the next rewriting, and a resumed thread repeats it."""
    saver = InMemorySaver()
    config = {"configurable": {"thread_id": "one"}}
    session = bench.session(HANDBOOK, compaction=6_000)
    graph = build(bench, session, saver=saver)
    memories = session.conversation("one")
    memories.set_zone("memories", "She likes tea.")
    graph.invoke({"messages": [HumanMessage("Please begin.")]}, config)
    memories.set_zone("memories", "She likes coffee now.")
    graph.invoke({"messages": [*turn(1), HumanMessage("Go on.")]}, config)
    first, second = bench.prompts()
    assert "<memories>\nShe likes tea.\n</memories>" in texts(first)
    assert second.sections[: len(first.sections) - 1] == first.sections[:-1]
    for number in range(2, 9):
        graph.invoke({"messages": [*turn(number), HumanMessage("Go on.")]}, config)
    told = [("tea" in texts(prompt), "coffee" in texts(prompt)) for prompt in bench.prompts()]
    assert all(tea is not coffee for tea, coffee in told)
    assert (told[0], told[-1]) == ((True, False), (False, True))
    changes = [prompt for (prompt, was, now) in zip(session.calls[1:], told, told[1:], strict=False) if was != now]
    assert [str(call.verdict.cause) for call in changes] == ["compacted"]
    later = bench.session(HANDBOOK)
    build(bench, later, saver=saver).invoke({"messages": [HumanMessage("Go on.")]}, config)
    *_, before, after = bench.prompts()
    assert after.sections[: len(before.sections) - 1] == before.sections[:-1]

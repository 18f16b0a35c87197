"""The invariants on recorded wire bytes: fork identity, inert observing, failing open."""

import asyncio
import json
from itertools import pairwise

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from cacheprefix import Session, SharedPrefix
from cacheprefix.calls import state
from cacheprefix.layout.team import Team
from cacheprefix.prompt import chain
from cacheprefix_langgraph import PrefixMiddleware, forked, sending, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 90
"""About 1,250 tokens by the estimate: above the minimum of every rule set tested here."""

ROLES = {"planner": "You plan.", "critic": "You criticise.", "writer": "You write."}


def team(model, session, how="invoke", own=()):
    """Three roles in a row, each a node as LangGraph's documentation writes it."""

    def make(role, text):
        def messages(state):
            return [SystemMessage(f"{text}\n\n{HANDBOOK}"), *state["messages"], *own]

        def sync(state):
            if how == "stream":
                chunks = list(model.stream(messages(state)))
                return {"messages": [AIMessage("".join(c.text for c in chunks))]}
            return {"messages": [AIMessage(model.invoke(messages(state)).text)]}

        async def later(state):
            if how == "astream":
                chunks = [chunk async for chunk in model.astream(messages(state))]
                return {"messages": [AIMessage("".join(c.text for c in chunks))]}
            return {"messages": [AIMessage((await model.ainvoke(messages(state))).text)]}

        return forked(session, role=role)(later if how.startswith("a") else sync)

    graph = StateGraph(MessagesState)
    previous = START
    for role, text in ROLES.items():
        graph.add_node(role, make(role, text))
        graph.add_edge(previous, role)
        previous = role
    graph.add_edge(previous, END)
    return graph.compile()


def go(graph, how, text="Please begin."):
    """Run the graph, sync or async."""
    given = {"messages": [HumanMessage(text)]}
    return asyncio.run(graph.ainvoke(given)) if how.startswith("a") else graph.invoke(given)


@pytest.mark.parametrize("how", ["invoke", "stream", "ainvoke", "astream"])
def test_every_fork_begins_with_the_sections_of_the_shared_part(bench, how):
    """Tools, system and transcript are byte-identical, and only the role's text stands behind them."""
    session = bench.session(HANDBOOK)
    go(team(wrap_model(bench.model(), session), session, how), how)
    prompts = bench.prompts()
    assert len(prompts) == 3
    for earlier, later in pairwise(prompts):
        shared = earlier.sections[:-1]
        assert later.sections[: len(shared)] == shared
        assert [s.data for s in later.sections[: len(shared)]] == [s.data for s in shared]
    placement = session.adapter.profile(prompts[0].model, bench.api).settings
    chains = [chain(prompt, placement) for prompt in prompts]
    boundary = len(prompts[0].sections) - 1
    assert len({c[boundary - 1] for c in chains}) == 1
    for prompt, role in zip(prompts, ROLES, strict=True):
        assert ROLES[role] in prompt.sections[-1].text
        assert [s.path for s in prompt.tier("tools")] == ["tools[0]", "tools[1]"]


@pytest.mark.parametrize("how", ["invoke", "astream"])
def test_later_roles_read_what_the_first_one_wrote(bench, how):
    """The provider's own count: every role but the first reads at least the handbook and tools."""
    session = bench.session(HANDBOOK)
    go(team(wrap_model(bench.model(), session), session, how), how)
    first, *rest = bench.provider.requests
    assert first.outcome.read_tokens == 0
    head = sum(s.tokens for s in first.prompt.sections[:-1])
    for record in rest:
        assert record.outcome.read_tokens >= head


def test_a_role_reads_the_answers_that_the_role_before_it_was_asked_behind(bench):
    """GPT-5.6 takes no mark on an answer, so a short message behind it carries one; the state never holds it."""
    session = bench.session(HANDBOOK)
    out = go(team(wrap_model(bench.model(), session), session), "invoke")
    _, second, third = bench.provider.requests
    before = second.prompt.sections[:-1]
    assert third.prompt.sections[: len(before)] == before
    assert third.outcome.read_tokens == sum(section.tokens for section in before)
    between = [section.text == "<next/>" for section in third.prompt.sections]
    assert between.count(True) == (0 if bench.api == "anthropic" else 2)
    assert [message.type for message in out["messages"]] == ["human", "ai", "ai", "ai"]
    estimated = [call.unmodified_units for call in session.calls]
    own = [sum(s.tokens for s in bench.prompts()[n].tier("messages")[:-1] if s.text != "<next/>") for n in (1, 2)]
    assert estimated[2] - estimated[1] == pytest.approx(1.25 * (own[1] - own[0]), abs=30)


@pytest.mark.parametrize("how", ["invoke", "stream", "ainvoke", "astream"])
def test_observing_changes_no_byte(bench, how):
    """In observe mode the bodies equal those of the unwrapped model."""
    plain = Session(SharedPrefix(system=HANDBOOK, tools=bench.tools), mode="observe")
    session = bench.session(HANDBOOK, mode="observe")
    teams = [team(bench.model(), plain, how), team(wrap_model(bench.model(), session), session, how)]

    async def both():
        # One event loop: the SDK's connection pool outlives a loop and would fail in the next.
        for graph in teams:
            await graph.ainvoke({"messages": [HumanMessage("Please begin.")]})

    if how.startswith("a"):
        asyncio.run(both())
    else:
        for graph in teams:
            go(graph, how)
    assert bench.bodies[3:] == bench.bodies[:3]
    assert [call.agent for call in session.calls] == list(ROLES)


def test_a_wrapped_model_outside_a_fork_sends_what_it_always_sent(bench):
    """Without a fork in force the bytes are those of the model itself."""
    messages = [SystemMessage("You are alone."), HumanMessage("Hello")]
    bench.model().invoke(messages)
    wrap_model(bench.model(), bench.session(HANDBOOK)).invoke(messages)
    assert bench.bodies[0] == bench.bodies[1]


@pytest.mark.parametrize("asked", [True, False])
def test_a_stream_asks_for_its_usage_only_where_the_application_does(chat, asked):
    """Outside a fork and in one: a gateway that knows no ``stream_options`` refuses a request with them."""
    messages = [SystemMessage(f"{HANDBOOK}\n\nYou are alone."), HumanMessage("Hello")]
    session = chat.session(HANDBOOK)
    session.adapter.join("another")
    plain = chat.model(stream_usage=asked)
    for model in (plain, wrap_model(plain, session), wrap_model(plain, session, role="writer")):
        list(model.stream(messages))
    outside, fork = chat.bodies[1:]
    assert outside == chat.bodies[0]
    assert json.loads(fork)["messages"] != json.loads(outside)["messages"]
    assert [call.layout for call in session.calls][-1] == "fork"
    assert [b"stream_options" in body for body in chat.bodies] == [asked] * 3


def test_a_call_inside_a_graph_without_a_fork_is_named_once(bench):
    """The node's name and what to do about it."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    graph = StateGraph(MessagesState)
    graph.add_node("lonely", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "lonely")
    with pytest.warns(UserWarning, match="node 'lonely' calls a wrapped model outside a fork"):
        graph.compile().invoke({"messages": [HumanMessage("hi")]})
    assert [line.agent for line in session.report().lines] == ["lonely"]


def test_usage_equals_the_servers_count_on_every_call(bench):
    """What the session reports is what the provider counted."""
    session = bench.session(HANDBOOK)
    go(team(wrap_model(bench.model(), session), session, "invoke"), "invoke")
    for call, record in zip(session.calls, bench.provider.requests, strict=True):
        assert call.usage.input_tokens == record.outcome.input_tokens
        assert call.usage.cache_read_tokens == record.outcome.read_tokens


@pytest.mark.slow
@pytest.mark.parametrize("how", ["invoke", "astream"])
@pytest.mark.parametrize("step", ["decode", "tail_for", "begin", "as_sent"])
def test_a_failure_of_ours_sends_the_users_request(bench, step, how, monkeypatch):
    """Behind the rewrite too: layout and tools are the application's own; the failure is counted and named once."""
    observed = Session(SharedPrefix(system=HANDBOOK), mode="observe")
    go(team(bench.model().bind_tools(bench.tools[:1]), observed, how), how)
    bench.release()
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    targets = {"begin": session.adapter.shared.model, "as_sent": sending, "decode": state, "tail_for": Team}
    monkeypatch.setattr(targets[step], step, lambda *a, **k: (_ for _ in ()).throw(RuntimeError("broken")))
    with pytest.warns(UserWarning, match="broken"):
        out = go(team(model.bind_tools(bench.tools[:1]), session, how), how)
    assert len(out["messages"]) == 4
    assert min(session.failures.values()) >= 3
    plain, sent = bench.prompts()[:3], bench.prompts()[3:]
    assert [prompt.sections for prompt in sent] == [prompt.sections for prompt in plain]
    if how == "invoke":
        assert bench.bodies[3:] == bench.bodies[:3]


def test_the_boundary_is_where_the_nodes_own_messages_begin(bench):
    """A message the node adds itself stands behind the shared part and in front of the role's text."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    go(team(model, session, own=[HumanMessage("Do your part.")]), "invoke")
    for prompt in bench.prompts():
        assert prompt.sections[-2].text == "Do your part."
        marked = [i for i, s in enumerate(prompt.sections) if s.marker is not None]
        # OpenAI takes no breakpoint on an assistant's text; then the one before it carries the mark.
        boundary = len(prompt.sections) - 2
        takes = [i for i in range(boundary) if bench.api == "anthropic" or prompt.sections[i].head != "assistant"]
        assert max(marked) == max(takes)


@pytest.mark.parametrize("pinned", [False, True])
def test_an_agents_system_prompt_moves_to_the_tail_and_exactly_one_layer_rewrites(bench, pinned):
    """create_agent with a wrapped model inside: one system text, one role text."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    agents = [
        create_agent(
            model,
            bench.tools,
            system_prompt=f"You are the {role}.\n\n{HANDBOOK}",
            middleware=[PrefixMiddleware(session, role=role, pinned=pinned)],
        )
        for role in ("coder", "tester")
    ]
    for agent in agents:
        agent.invoke({"messages": [HumanMessage("Please begin.")]})
    first, second = bench.prompts()
    shared = first.sections[:-1]
    assert second.sections[: len(shared)] == shared
    for prompt, role in zip((first, second), ("coder", "tester"), strict=True):
        assert sum(s.text.count("You are the") for s in prompt.sections if s.kind == "text") == 1
        assert f"You are the {role}." in prompt.sections[-1].text


def test_no_request_carries_more_markers_than_the_provider_takes(bench):
    """Also with the framework's own caching beside ours, and markers of the user's own."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    session.adapter.join("tester")
    middleware = [PrefixMiddleware(session, role="coder")]
    options = {}
    if bench.api == "anthropic":
        from langchain_anthropic.middleware import AnthropicPromptCachingMiddleware

        middleware.insert(0, AnthropicPromptCachingMiddleware())
        options = {"cache_control": {"type": "ephemeral"}}
    content = [{"type": "text", "text": "Please begin.", **options}]
    agent = create_agent(model, bench.tools, system_prompt="You code.", middleware=middleware)
    agent.invoke({"messages": [HumanMessage(content), AIMessage("Yes?"), HumanMessage(content)]})
    for prompt in bench.prompts():
        markers = sum(s.marker is not None for s in prompt.sections) + (prompt.top_marker is not None)
        assert 1 <= markers <= 4

"""``PrefixMiddleware`` beside everything else that LangChain agents carry, on the wire."""

import asyncio
import sys
import warnings
from itertools import pairwise

import httpx
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    dynamic_prompt,
    wrap_model_call,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_anthropic.middleware import AnthropicPromptCachingMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from cacheprefix import ToolResultBudget
from cacheprefix.notices import CacheprefixWarning
from cacheprefix.server import Reply, ToolCall, fill
from cacheprefix_langgraph import PrefixMiddleware, forked, subgraph, wrap_model
from tests.langgraph.conftest import RULES, Bench
from tests.langgraph.test_made_later import State, names

HANDBOOK = "The handbook says that every statement needs a source. " * 90
BEGIN = HumanMessage("Please begin.", id="h")


class Grade(BaseModel):
    """A grade for a text."""

    score: int


@pytest.fixture
def claude(servers):
    """A model of Anthropic's."""
    bench = Bench("anthropic", servers(RULES["anthropic"]))
    yield bench
    bench.release()


def reads(count):
    """A script that reads ``count`` files one after the other and then answers."""
    return [Reply(tool_calls=(ToolCall("read_file", {"path": f"f{n}"}, id=f"c{n}"),)) for n in range(count)] + [
        Reply("Done.")
    ]


def units(bench):
    """What the simulated provider charged for the input."""
    simulator = bench.provider.simulator
    return sum(
        record.outcome.cost_units(simulator.profile_for(record.model, record.api)) for record in bench.provider.requests
    )


@pytest.mark.parametrize("position", ["before", "after"])
def test_never_more_breakpoints_than_anthropic_takes(claude, position):
    """With LangChain's caching middleware on either side, marks of the user's own, and many parallel results."""
    block = {"type": "text", "text": "Please begin.", "cache_control": {"type": "ephemeral"}}
    calls = tuple(ToolCall("read_file", {"path": f"f{n}"}, id=f"c{n}") for n in range(12))
    claude.script([Reply(tool_calls=calls), Reply("Done."), Reply("Done again.")])
    session = claude.session(HANDBOOK)
    session.adapter.join("another")
    ours, theirs = PrefixMiddleware(session, role="coder"), AnthropicPromptCachingMiddleware()
    agent = create_agent(
        wrap_model(claude.model(), session),
        claude.tools,
        system_prompt=f"You code.\n\n{HANDBOOK}",
        middleware=[theirs, ours] if position == "before" else [ours, theirs],
    )
    given = [HumanMessage([block, block]), AIMessage("Yes?"), HumanMessage([block])]
    out = agent.invoke({"messages": given})
    agent.invoke({"messages": [*out["messages"], HumanMessage("Again.")]})
    for prompt in claude.prompts():
        markers = sum(section.marker is not None for section in prompt.sections) + (prompt.top_marker is not None)
        assert 1 <= markers <= 4
    assert [record.outcome.read_tokens > 1_000 for record in claude.provider.requests] == [False, True, True]
    assert all(record.status == 200 for record in claude.provider.requests)


def test_other_middleware_may_summarise_and_is_advised_against(bench):
    """Its own request is left alone without a warning; ours goes on from what it made."""
    bench.script([*reads(3)[:3], Reply("A short summary."), Reply("Done."), Reply("Done.")])
    session = bench.session(HANDBOOK)
    session.adapter.join("another")
    model = wrap_model(bench.model(), session)
    agent = create_agent(
        model,
        bench.tools,
        system_prompt="You code.",
        middleware=[
            SummarizationMiddleware(model, trigger=("messages", 6), keep=("messages", 2)),
            PrefixMiddleware(session, role="coder"),
        ],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = agent.invoke({"messages": [BEGIN]})
    assert "Done." in out["messages"][-1].text
    notes = " ".join(session.report().notes)
    assert "asks the model by itself" in notes
    assert "summarises by a fork" in notes
    last = bench.prompts()[-1]
    assert last.tier("system")[0].text == HANDBOOK
    assert "You code." in last.sections[-1].text


def test_clearing_tool_results_gets_the_advice_to_cut_them_once(bench):
    """The pairs of calls and results stay whole."""
    bench.script(reads(4))
    session = bench.session(HANDBOOK)
    session.adapter.join("another")
    agent = create_agent(
        wrap_model(bench.model(), session),
        bench.tools,
        system_prompt="You code.",
        middleware=[
            ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=20, keep=1)]),
            PrefixMiddleware(session, role="coder"),
        ],
    )
    out = agent.invoke({"messages": [BEGIN]})
    assert out["messages"][-1].text == "Done."
    assert sum("ToolResultBudget" in note for note in session.report().notes) == 1
    kinds = [section.kind for section in bench.prompts()[-1].sections]
    assert kinds.count("tool_use") >= 1


@pytest.mark.parametrize("strategy", [ToolStrategy, ProviderStrategy])
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_structured_answers_are_those_of_the_agent_without_us(bench, strategy, later):
    """By a tool that the model must call, and by the provider's own format."""
    by_tool = strategy is ToolStrategy
    answer = Reply(tool_calls=(ToolCall("Grade", {"score": 7}, id="g"),)) if by_tool else Reply('{"score": 7}')
    session = bench.session(HANDBOOK)
    session.adapter.join("another")
    found = []

    async def both():
        for model, middleware in (
            (bench.model(), []),
            (wrap_model(bench.model(), session), [PrefixMiddleware(session, role="grader")]),
        ):
            bench.script([*reads(1)[:1], answer])
            agent = create_agent(
                model, bench.tools, system_prompt="You grade.", response_format=strategy(Grade), middleware=middleware
            )
            given = {"messages": [BEGIN]}
            found.append(await agent.ainvoke(given) if later else agent.invoke(given))

    asyncio.run(both())
    plain, shared = found
    assert plain["structured_response"] == shared["structured_response"] == Grade(score=7)
    assert [message.type for message in plain["messages"]] == [message.type for message in shared["messages"]]
    assert not session.failures
    *_, first, second = bench.prompts()
    assert second.sections[: len(first.sections) - 1] == first.sections[:-1]


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_tool_of_another_role_is_refused_by_a_message_that_says_why(bench, later):
    """The model learns which tools it has, and the agent goes on."""
    call = ToolCall("run_tests", {}, id="c1")
    bench.script([Reply(tool_calls=(call,)), Reply("Then not.")])
    session = bench.session(HANDBOOK)
    session.adapter.join("another")
    agent = create_agent(
        wrap_model(bench.model(), session),
        bench.tools,
        system_prompt="You read.",
        middleware=[PrefixMiddleware(session, role="reader", tools=["read_file"])],
    )
    given = {"messages": [BEGIN]}
    out = asyncio.run(agent.ainvoke(given)) if later else agent.invoke(given)
    refused = [message for message in out["messages"] if isinstance(message, ToolMessage)]
    if bench.api == "anthropic":
        assert [message.status for message in refused] == ["error"]
        assert refused[0].text == "Tool 'run_tests' is not available to the role 'reader'; allowed are: read_file."
        assert out["messages"][-1].text == "Then not."
    else:
        # The provider itself keeps the model to the tools that are allowed.
        assert "read_file" in bench.prompts()[0].settings["tool_choice"]
    assert len(bench.prompts()[0].tier("tools")) == 2


def test_a_tool_of_the_union_that_the_agent_was_made_without_is_refused_too(bench):
    """LangChain's own check for unknown tools is off once middleware wraps tool calls."""
    session = bench.session(HANDBOOK)
    middleware = PrefixMiddleware(session, role="reader")
    agent = create_agent(wrap_model(bench.model(), session), bench.tools[:1], middleware=[middleware])
    session.adapter.join("another")
    bench.script([Reply(tool_calls=(ToolCall("run_tests", {}, id="c1"),)), Reply("Then not.")])
    out = agent.invoke({"messages": [BEGIN]})
    refused = [message for message in out["messages"] if isinstance(message, ToolMessage)]
    # OpenAI keeps the model to the tools that are allowed, so that nothing comes to be refused.
    assert len(refused) == (bench.api == "anthropic")
    for message in refused:
        assert message.status == "error"
        assert "run_tests" in message.text
        assert "12 passed" not in message.text


def test_text_that_others_add_to_the_system_prompt_goes_to_the_end(bench):
    """Time at the head of the prompt would break the cache with every request."""
    moments = iter(("09:00", "09:01", "09:02"))
    bench.script(reads(2))

    @dynamic_prompt
    def dated(request):
        return f"It is {next(moments)}.\n\nYou code."

    session = bench.session(HANDBOOK)
    session.adapter.join("another")
    agent = create_agent(
        wrap_model(bench.model(), session), bench.tools, middleware=[dated, PrefixMiddleware(session, role="coder")]
    )
    agent.invoke({"messages": [BEGIN]})
    prompts = bench.prompts()
    assert ["09:00" in prompts[0].sections[-1].text, "09:02" in prompts[2].sections[-1].text] == [True, True]
    for before, after in pairwise(prompts):
        assert after.sections[: len(before.sections) - 1] == before.sections[:-1]
    assert all(record.outcome.read_tokens > 1_000 for record in list(bench.provider.requests)[1:])


@pytest.mark.parametrize("name", ["gpt-4.1", "gpt-5.6"])
def test_an_agent_alone_sends_its_own_system_prompt_in_its_own_blocks(servers, name):
    """LangChain's middlewares add blocks to it: as one text it would be another prompt from one request to the next."""
    bench = Bench("openai-chat", servers("openai"))
    bench.rules, sent = "openai", []
    model = bench.model(model=name)
    for session in (None, bench.session(HANDBOOK)):
        bench.provider.reset()
        bench.script([*reads(3), *reads(1)])
        ours = [] if session is None else [PrefixMiddleware(session, role="coder")]
        agent = create_agent(
            model if session is None else wrap_model(model, session),
            bench.tools,
            system_prompt=f"You code.\n\n{HANDBOOK}",
            middleware=[TodoListMiddleware(), *ours],
            checkpointer=InMemorySaver(),
        )
        for text in ("Please begin. ", "Once more. "):
            agent.invoke({"messages": [HumanMessage(text * 30)]}, {"configurable": {"thread_id": "one"}})
        sent.append([record.json["messages"] for record in bench.provider.requests])
    bench.release()
    assert sent[1] == sent[0]
    assert {str(one) for call in session.calls for one in call.reasons} == {"alone"}


def test_an_agent_alone_whose_system_prompt_grows_begins_with_the_same_blocks(bench):
    """What came to it goes to the end, and the blocks before it stay what the provider has in its cache."""
    rounds = iter(range(9))
    bench.script(reads(2))

    @wrap_model_call
    def grows(request, handler):
        words = [HANDBOOK, " You code.", *(f" Round {n}." for n in range(next(rounds)))]
        blocks = [{"type": "text", "text": text} for text in words]
        return handler(request.override(system_message=SystemMessage(content=blocks)))

    session = bench.session(HANDBOOK)
    agent = create_agent(
        wrap_model(bench.model(), session), bench.tools, middleware=[grows, PrefixMiddleware(session, role="coder")]
    )
    agent.invoke({"messages": [BEGIN]})
    system = [[section.data for section in prompt.tier("system")] for prompt in bench.prompts()]
    # The Responses API has it among the messages.
    system = [
        one or [section.data for section in prompt.sections[len(bench.tools) :][:2]]
        for one, prompt in zip(system, bench.prompts(), strict=True)
    ]
    assert [len(one) for one in system] == [2, 2, 2]
    assert system == [system[0]] * 3


def test_agents_that_are_nodes_keep_their_tools_from_one_turn_to_the_next(bench):
    """An agent begins each turn without its private state: what it was decided to carry is warm all the same."""
    session, saver = bench.session(HANDBOOK), InMemorySaver()
    bench.script(lambda asked: Reply(f"Answer {asked.index}. " + "It was said at length. " * 60))
    large = [
        {"type": "function", "function": {"name": f"t{n}", "description": "long " * 150, "parameters": {}}}
        for n in range(10)
    ]
    model = wrap_model(bench.model(), session)

    def agent(role, tools):
        prompt = f"You are the {role}.\n\n{HANDBOOK}"
        return create_agent(
            model, tools, system_prompt=prompt, middleware=[PrefixMiddleware(session, role=role)], name=role
        )

    graph = StateGraph(State).add_node("a", agent("a", large)).add_node("b", agent("b", bench.tools))
    app = graph.add_edge(START, "a").add_edge("a", "b").compile(checkpointer=saver)
    for turn in range(4):
        app.invoke({"messages": [HumanMessage(f"Turn {turn}.")]}, {"configurable": {"thread_id": "one"}})
    carried = names(bench)
    assert carried[2::2] == [carried[0]] * 3
    assert carried[3::2] == [carried[1]] * 3
    assert all(record.outcome.read_tokens > 1_000 for record in list(bench.provider.requests)[2:])


# ------------------------------------------------------------------ prebuilt applications


def deep(bench, session, mode, model=None):
    """A deep agent with two helpers, isolated or forked; without a session as deepagents makes it."""
    from deepagents import create_deep_agent

    helpers = [
        {"name": name, "description": f"The {name}.", **({"mode": "fork"} if mode == "fork" else {})}
        | ({"system_prompt": f"You are the {name}."} if mode == "isolated" else {})
        for name in ("scout", "builder")
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create_deep_agent(
            model=bench.model() if model is None else model,
            tools=bench.tools,
            system_prompt=f"You lead.\n\n{HANDBOOK}",
            subagents=helpers,
            middleware=[] if session is None else [PrefixMiddleware(session, role="lead")],
        )


def tasks():
    """The lead hands two tasks on, one after the other; each helper reads a file."""
    script = []
    for name in ("scout", "builder"):
        call = ToolCall("task", {"subagent_type": name, "description": f"Look as {name}."}, id=f"t-{name}")
        script += [Reply(tool_calls=(call,)), *reads(1)]
    return [*script, Reply("All done.")]


@pytest.mark.parametrize("mode", ["isolated", "fork"])
def test_deep_agents_are_never_dearer_and_say_the_same(claude, mode):
    """A lead without other roles keeps its layout; its helpers go on sharing what they shared."""
    results = []
    for session in (None, claude.session("")):
        claude.provider.reset()
        claude.script(tasks())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = deep(claude, session, mode).invoke({"messages": [BEGIN]})
        results.append((units(claude), [message.text for message in out["messages"]], len(claude.bodies)))
    (before, words, calls), (after, same_words, same_calls) = results
    assert after <= before
    assert (same_words, same_calls) == (words, calls)


def test_helpers_that_deep_agents_isolate_have_lines_of_their_own_and_no_warning(claude):
    """The framework makes them, so that nobody could decorate their nodes; what they cost is told by their names."""
    session = claude.session("")
    claude.script(tasks())
    lead = deep(claude, session, "isolated", wrap_model(claude.model(), session))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        lead.invoke({"messages": [BEGIN]})
    assert {line.agent: line.calls for line in session.report().lines} == {"lead": 3, "scout": 2, "builder": 2}
    assert not [one for one in told if issubclass(one.category, CacheprefixWarning)]
    assert session.report().breaks == ()


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
@pytest.mark.parametrize("kind", ["anthropic", "openai-chat"])
def test_a_supervisor_stays_in_the_lane_of_its_workers(kind, servers):
    """langgraph-supervisor forbids parallel calls to the supervisor only; a worker reads what it wrote all the same."""
    from langgraph_supervisor import create_supervisor

    bench = Bench(kind, servers(RULES[kind]))
    roles = ("coder", "tester")
    hand = [Reply(tool_calls=(ToolCall(f"transfer_to_{role}", {}, id=f"h-{role}"),)) for role in roles]
    bench.script([hand[0], Reply("Coded."), hand[1], Reply("Tested."), Reply("All done.")])
    session = bench.session(HANDBOOK)
    workers = [
        subgraph(
            create_agent(wrap_model(bench.model(), session), bench.tools, name=role, system_prompt=f"You are {role}."),
            session,
            role=role,
        )
        for role in roles
    ]
    boss = wrap_model(bench.model(), session, role="supervisor")
    team = create_supervisor(workers, model=boss, prompt="You lead.").compile()
    out = team.invoke({"messages": [BEGIN]})
    assert out["messages"][-1].text == "All done."
    prompts = bench.prompts()
    assert not any("parallel_tool_calls" in prompt.settings for prompt in prompts)
    assert not any("disable_parallel" in prompt.settings.get("tool_choice", "") for prompt in prompts)
    reads_of = [record.outcome.read_tokens for record in bench.provider.requests]
    assert reads_of[0] == 0
    assert all(read > 1_200 for read in reads_of[1:])
    bench.release()


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_model_that_is_not_wrapped_is_copied_once_and_makes_no_clients(bench, monkeypatch, later):
    """However many requests an agent makes by it, and whatever runs it has."""
    model, made, copies = bench.model(), [], []

    def counted(found, function):
        return lambda *given, **named: (found.append(given), function(*given, **named))[1]

    for kind in (httpx.Client, httpx.AsyncClient):
        monkeypatch.setattr(kind, "__init__", counted(made, kind.__init__))
    where = sys.modules[PrefixMiddleware.__module__]
    monkeypatch.setattr(where, "shadow", counted(copies, where.shadow))
    session = bench.session(HANDBOOK)
    session.adapter.join("another")
    agent = create_agent(model, bench.tools, middleware=[PrefixMiddleware(session, role="reader")])

    async def run():
        for _ in range(3):
            bench.script(reads(3))
            await agent.ainvoke({"messages": [BEGIN]}) if later else agent.invoke({"messages": [BEGIN]})

    asyncio.run(run())
    assert len(bench.bodies) == 12
    assert {call.layout for call in session.calls} == {"fork"}
    assert (len(copies), len(made)) == (1, 0)


def test_a_model_that_keeps_its_tools_to_itself_is_asked_once_to_bind_them(claude):
    """By the agent; what it gives back shows no tools that a role could share."""
    bound = []

    class Keeping(GenericFakeChatModel):
        def bind_tools(self, tools, **kwargs):
            bound.append(len(tools))
            return self

    session = claude.session(HANDBOOK)
    session.adapter.join("another")
    model = Keeping(messages=iter([AIMessage("Done.")]))
    agent = create_agent(model, claude.tools, middleware=[PrefixMiddleware(session, role="coder")])
    assert agent.invoke({"messages": [BEGIN]})["messages"][-1].content == "Done."
    assert (bound, dict(session.failures)) == ([len(claude.tools)], {})


class Kept(InMemorySaver):
    """One whose threads another process goes on with."""


def test_agents_that_are_nodes_beside_a_forked_node_send_what_those_of_subgraph_do(chat):
    """What the forked node saved of them is older than what they asked behind it, and was taken in its place."""
    sent = []
    for door in ("middleware", "subgraph"):
        session = chat.session(HANDBOOK * 3)
        chat.provider.reset()
        chat.script(lambda asked: Reply(fill(f"Answer {asked.index}:", 60)))
        llm = wrap_model(chat.model(), session)

        @forked(session, role="planner")
        def planner(state, llm=llm):
            return {"messages": [llm.invoke([SystemMessage(f"You plan.\n\n{HANDBOOK * 3}"), *state["messages"]])]}

        graph = StateGraph(State).add_node("planner", planner).add_edge(START, "planner")
        for before, role in (("planner", "critic"), ("critic", "writer")):
            text = f"{HANDBOOK * 3}\n\n{f'You are the {role}. ' * 30}"
            if door == "middleware":
                ours = [PrefixMiddleware(session, role=role)]
                agent = create_agent(chat.model(), [], system_prompt=text, name=role, middleware=ours)
            else:
                agent = subgraph(create_agent(llm, [], system_prompt=text, name=role), session, role=role)
            graph.add_node(role, agent).add_edge(before, role)
        app = graph.compile(checkpointer=InMemorySaver())
        for turn in range(8):
            asked = {"messages": [HumanMessage(f"Question {turn}?", id=f"h{turn}")]}
            app.invoke(asked, {"configurable": {"thread_id": "1"}})
        sent.append([one.json["messages"] for one in chat.provider.requests])
        assert not session.failures
    assert sent[0] == sent[1]


@pytest.mark.parametrize("how", ["kept", "short", "in memory", "budget", "budget, a state for it", "alone"])
def test_what_an_agent_as_a_node_loses_with_its_process_is_said(chat, how):
    """Where its text stands is in its private state; a run in another process wrote the prompt anew (1.24)."""
    limits = {"budget": ToolResultBudget(50_000)} if how.startswith("budget") else {}
    session = chat.session(HANDBOOK * 3, **limits)
    chat.script(lambda asked: Reply(fill(f"Answer {asked.index}:", 200)))
    saver, config = (InMemorySaver if how == "in memory" else Kept)(), {"configurable": {"thread_id": "one"}}

    def agent(role):
        text = f"You are the {role}. " * (10 if how == "short" else 200)
        mine = {"middleware": [PrefixMiddleware(session, role=role)], "checkpointer": saver if how == "alone" else None}
        return create_agent(chat.model(), [], system_prompt=f"{HANDBOOK * 3}\n\n{text}", name=role, **mine)

    agents = [agent(role) for role in ("planner", "critic")]
    state = State if how == "budget, a state for it" else MessagesState
    graph = StateGraph(state).add_sequence([(one.name, one) for one in agents]).add_edge(START, "planner")
    graph = graph.compile(checkpointer=saver)
    for turn in range(3):
        for one in agents if how == "alone" else [graph]:
            one.invoke({"messages": [HumanMessage(f"Question {turn}?")]}, config)
    said = [note for note in session.report().notes if "is a node of a graph" in note]
    kept = any(one.why == "role_kept" for call in session.calls for one in call.reasons)
    assert kept is (how != "short")
    assert bool(said) is (how in ("kept", "budget"))
    assert not session.failures


def test_agents_that_nobody_named_are_said_to_be_one_role(chat):
    """With different prompts they are several, which are to share; an agent that is made again is the same."""

    def note(*prompts, **options):
        session = chat.session(HANDBOOK)
        for prompt in prompts:
            create_agent(chat.model(), [], system_prompt=prompt, middleware=[PrefixMiddleware(session, **options)])
        return [one for one in session.report().notes if "role=" in one]

    assert "are all called 'agent'" in note("You plan.", "You work.")[0]
    assert note("You plan.", "You plan.") == note("You plan.", "You work.", role="worker") == []

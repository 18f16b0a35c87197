"""``prefix_team``: plan, specialists side by side, synthesis; as a normal graph, and on the wire."""

import asyncio
import json

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from cacheprefix import Caching, Session
from cacheprefix.adapter import drive
from cacheprefix.errors import SetupError
from cacheprefix.server import Fault, Reply, ToolCall
from cacheprefix_langgraph import TeamRole, prefix_team, team_result, wrap_model
from cacheprefix_langgraph.teams.worker import text_of, work, worker_for

ONE = pytest.mark.parametrize("bench", ["anthropic"], indirect=True)
"""For what does not depend on the provider's form of messages."""

HANDBOOK = "The handbook says that every statement needs a source. " * 90
ROLES = [
    TeamRole(name="zoe", instructions="You look at costs.", report="bullets"),
    TeamRole(name="adam", instructions="You look at risks.", report="structured"),
]
GOAL = {"messages": [HumanMessage("Shall we move {everything} to the new house?")]}
STRUCTURED = {"summary": "Risky.", "findings": ["a", {"text": "b"}], "evidence": "seen", "confidence": 1.7}


def script(request):
    """Answers by who is asked."""
    text = request.text
    if '<role name="zoe">' in text:
        return Reply("- it costs 5\n- it saves 7")
    if '<role name="adam">' in text:
        return Reply("Here it is:\n```json\n" + json.dumps(STRUCTURED) + "\n```")
    return Reply("The joined answer." if "reports" in request.tail else "The plan {of} mine.")


def run(graph, how="invoke", given=GOAL, **options):
    """Run a graph, sync or async."""
    return asyncio.run(graph.ainvoke(given, **options)) if how == "ainvoke" else graph.invoke(given, **options)


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_a_team_plans_reports_and_joins_on_one_prefix(bench, how):
    """Every role begins with the sections of the plan's request and the plan; results come in the order of roles."""
    bench.provider.simulator.script = script
    session = bench.session(HANDBOOK)
    out = run(prefix_team(wrap_model(bench.model(), session), ROLES), how)
    result = team_result(out, ROLES)
    assert result.plan_text == "The plan {of} mine."
    assert [report.role for report in result.reports] == ["zoe", "adam"]
    assert result.reports[0].findings == ("it costs 5", "it saves 7")
    adam = result.reports[1]
    assert (adam.summary, adam.findings, adam.evidence, adam.confidence) == ("Risky.", ("a", "b"), ("seen",), 1.0)
    assert result.synthesis == out["messages"][-1].text == "The joined answer."
    plan, *roles, closing = bench.prompts()
    for prompt in [*roles, closing]:
        shared = plan.sections[:-1]
        assert prompt.sections[: len(shared)] == shared
    # Anthropic merges what the user says one after the other, so only the common beginning is compared.
    assert "The plan {of} mine." in closing.sections[len(plan.sections) - 1].text
    assert result.usage.input_tokens == sum(r.outcome.input_tokens for r in bench.provider.requests)
    assert result.usage.cache_read_tokens == sum(r.outcome.read_tokens for r in bench.provider.requests)
    assert 0 < result.cached_share < 1
    assert result.cost_units < result.usage.input_tokens
    assert result.usage.calls == 4


@ONE
def test_the_team_is_a_graph_like_any_other(bench):
    """It is drawn with its roles, streams node by node, and goes on from its checkpoint after a failure."""
    fail = []

    def moody(request):
        """Fail the first synthesis."""
        if "reports:" in request.tail and not fail:
            fail.append(1)
            return Reply(fault=Fault(status=400))
        return script(request)

    bench.provider.simulator.script = moody
    graph = prefix_team(wrap_model(bench.model(), bench.session(HANDBOOK)), ROLES, checkpointer=InMemorySaver())
    assert "zoe" in graph.get_graph().draw_mermaid()
    config = {"configurable": {"thread_id": "one"}}
    seen = []
    with pytest.raises(Exception, match="fails on purpose"):
        seen.extend(set(step) for step in graph.stream(GOAL, config, stream_mode="updates"))
    before = len(bench.bodies)
    out = graph.invoke(None, config)
    assert len(bench.bodies) == before + 1
    assert out["synthesis"] == "The joined answer."


@ONE
def test_a_specialist_that_fails_is_reported_and_left_out(bench):
    """The others' reports are joined; when all fail, the team does."""

    def moody(request):
        """Fail as zoe."""
        return Reply(fault=Fault(status=400)) if '<role name="zoe">' in request.text else script(request)

    bench.provider.simulator.script = moody
    model = wrap_model(bench.model(), bench.session(HANDBOOK))
    result = team_result(run(prefix_team(model, ROLES)), ROLES)
    assert [report.outcome.status for report in result.reports] == ["failed", "completed"]
    assert "fails on purpose" in result.reports[0].outcome.error
    assert "no report" in bench.prompts()[-1].sections[-2].text + bench.prompts()[-1].sections[-1].text
    with pytest.raises(RuntimeError, match="no specialist of the team finished"):
        run(prefix_team(model, ROLES[:1]))


@pytest.mark.parametrize("bench", ["openai-chat", "openai-responses", "anthropic"], indirect=True)
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_specialists_use_their_tools_and_tell_how_far_they_are(bench, how):
    """Errors and unknown tools go back to the model; progress is told by a fork that reads the worker's prefix."""

    @tool
    def weigh(what: str) -> str:
        """Weigh something."""
        if what == "air":
            raise ValueError("too light")
        return f"{what} weighs 3"

    def working(request):
        """Two calls, then an answer; progress in between."""
        if "Summarise in at most two sentences" in request.tail:
            return Reply("I weigh things.")
        if '<role name="zoe">' in request.text and request.rounds == 0:
            names = (("weigh", {"what": "air"}), ("weigh", {"what": "gold"}))
            return Reply(tool_calls=tuple(ToolCall(*each) for each in names))
        return script(request)

    bench.provider.simulator.script = working
    session = bench.session(HANDBOOK)
    role = TeamRole(name="zoe", instructions="You look at costs.", tools=[weigh], progress_every=1)
    graph = prefix_team(wrap_model(bench.model(), session), [role])
    if how == "invoke":
        told = list(graph.stream(GOAL, stream_mode="custom"))
    else:

        async def collect():
            """All entries of the stream."""
            return [entry async for entry in graph.astream(GOAL, stream_mode="custom")]

        told = asyncio.run(collect())
    assert told == [{"cacheprefix_progress": {"role": "zoe", "round": 1, "text": "I weigh things."}}]
    bodies = [body.decode() if isinstance(body, bytes) else str(body) for body in bench.bodies]
    assert "too light" in bodies[2]
    assert "gold weighs 3" in bodies[2]
    assert bench.provider.requests[2].outcome.read_tokens > 0
    asked = next(one for one in bench.provider.requests if "Summarise in at most" in str(one.json))
    assert asked.outcome.read_tokens > 0.9 * asked.prompt.tokens
    assert "history_truncated" not in {call.verdict.cause for call in session.calls if call.verdict}


@ONE
@pytest.mark.parametrize("other", [True, False])
def test_a_team_that_is_made_for_one_user_shows_its_tools_to_no_other(bench, other):
    """The same roles, made again with another user's tools, or with none."""
    bench.provider.simulator.script = script
    session = bench.session(HANDBOOK)

    def made_for(user, *, own):
        @tool(f"read_{user}")
        def read(what: str) -> str:
            """Read something."""
            return what

        role = TeamRole(name="zoe", instructions="Read.", tools=[read] if own else [])
        run(prefix_team(wrap_model(bench.model(), session), [role]))

    made_for("ann", own=True)
    before = len(bench.bodies)
    made_for("ben", own=other)
    assert "read_ann" in str(bench.bodies[:before])
    assert ("read_ben" in str(bench.bodies[before:])) is other
    assert "read_ann" not in str(bench.bodies[before:])


@ONE
def test_prompts_are_the_users_own_and_braces_stay(bench):
    """Known places are filled in once; JSON in a prompt is text."""
    bench.provider.simulator.script = script
    graph = prefix_team(
        wrap_model(bench.model(), bench.session(HANDBOOK)),
        {"zoe": 'Answer {"like": "this"}.'},
        plan_prompt="Plan for: {goal} {{goal}} {unknown}",
        order="Go, {role}: {plan}",
        synthesis_prompt='Join {"as": 1}. The reports follow.',
    )
    run(graph)
    first, second, third = bench.prompts()
    assert "Plan for: Shall we move {everything} to the new house? {goal} {unknown}" in first.sections[-1].text
    assert "Go, zoe: The plan {of} mine." in "".join(section.text for section in second.sections)
    assert 'Answer {"like": "this"}.' in second.sections[-1].text
    assert 'Join {"as": 1}.' in third.sections[-1].text


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ([], "at least one role"),
        ([TeamRole(name="a"), TeamRole(name="a")], "two roles called 'a'"),
        ([TeamRole(name="messages")], "cannot be called 'messages'"),
        ([TeamRole(name="a:b")], "cannot be called 'a:b'"),
        ([TeamRole(name="a", tools=[print])], "LangChain tools"),
        ([TeamRole(name="a", max_turns=0)], "at least 1"),
    ],
)
@ONE
def test_roles_that_cannot_be_are_refused_by_name(bench, roles, said):
    """Before anything runs."""
    with pytest.raises(SetupError, match=said):
        prefix_team(bench.model(), roles)


def test_a_tool_that_does_not_exist_is_an_error_result():
    """The worker goes on with it, and ends with its last words when it runs out of turns."""

    class Singing(BaseChatModel):
        """Calls a tool for ever."""

        @property
        def _llm_type(self):
            return "singing"

        def bind_tools(self, tools, **kwargs):
            return self

        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            call = {"id": f"c{len(messages)}", "name": "sing", "args": {}}
            message = AIMessage(f"la {len(messages)}", tool_calls=[call])
            return ChatResult(generations=[ChatGeneration(message=message)])

    worker = worker_for(
        Singing(), Session(mode="observe", caching=Caching(provider="exact")).adapter, "zoe", "Sing.", (), 2
    )
    first, error, last = drive(work(worker, [], "Go.", later=False))
    assert "there is no tool 'sing' for this role" in error.text
    assert (error.tool_call_id, error.status) == (first.tool_calls[0]["id"], "error")
    assert text_of([first, error, last]) == "la 4"

"""Memory, tool servers, code executors, structured output, budgets."""

from __future__ import annotations

import asyncio
import re
import sys
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse, CodeExecutorAgent, UserProxyAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import StructuredMessage
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.memory import ListMemory, MemoryContent
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import CreateResult, RequestUsage, SystemMessage, UserMessage
from autogen_core.tools import FunctionTool, Workbench
from autogen_teams import HANDBOOK, ROLES, TASK, Says, common, prompts, role, search, tail_index
from pydantic import BaseModel, Field

from cacheprefix import Session, SharedPrefix, ToolResultBudget
from cacheprefix.adapter import AdapterSession
from cacheprefix.errors import SetupError
from cacheprefix.layout.economics import SelectorChoice
from cacheprefix.server import Queue, Reply, ToolCall
from cacheprefix_autogen import session_of, wrap


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_memory_stands_behind_the_shared_part_once(provide, new_client, api):
    """AutoGen adds memory as another system message every turn; the fork shows it once, as the agent's own."""
    memory = ListMemory(name="facts")
    await memory.add(MemoryContent(content="The sky is green.", mime_type="text/plain"))
    provider = provide(api, Says())
    agents = [role(n, new_client(provider, api=api), memory=[memory]) for n in ROLES[:2]]
    team = wrap(RoundRobinGroupChat(agents, max_turns=4))
    await team.run(task=TASK)
    sent = prompts(provider.requests)
    assert len(sent) == 4
    for before, after in pairwise(sent):
        assert common(before, after) == tail_index(before)
    assert all(sum(s.text.count("The sky is green.") for s in prompt.sections) == 1 for prompt in sent)


async def test_the_tools_of_a_server_are_in_the_union_from_the_first_request(provide, new_client):
    """An MCP workbench is asked before the first turn, so that its tools do not arrive in the middle."""
    mcp = pytest.importorskip("autogen_ext.tools.mcp", reason="needs the extra mcp, which make test installs")
    server = mcp.StdioServerParams(
        command=sys.executable, args=[str(Path(__file__).parent / "mcp_tools.py")], read_timeout_seconds=60
    )
    steps = {"critic": (ToolCall("z_lookup", {"query": "q"}), "looked")}
    provider = provide("openai", Says(steps))
    async with mcp.McpWorkbench(server) as workbench:
        # Until its process is up: on a busy machine that alone takes longer than a team waits for a server.
        await workbench.list_tools()
        agents = [
            role("planner", new_client(provider), tools=[search()]),
            role("critic", new_client(provider), workbench=workbench, reflect_on_tool_use=True),
        ]
        team = wrap(RoundRobinGroupChat(agents, max_turns=2))
        await team.run(task=TASK)
    names = [[tool["function"]["name"] for tool in record.json["tools"]] for record in provider.requests]
    assert names == [["search", "z_lookup"]] * 3
    assert "looked up q on the server" in provider.requests[2].prompt.sections[-1].text


class Served(Workbench):
    """A server's workbench, whose ``lists`` of tools (name, description) are given one after the other."""

    def __init__(self, *lists):
        self.lists = list(lists)

    async def list_tools(self):
        now = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(now, Exception):
            raise now
        if now is None:
            await asyncio.Event().wait()
        told = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
        return [{"name": name, "description": text, "parameters": told} for name, text in now]

    async def call_tool(self, *args, **options):
        raise AssertionError

    async def start(self): ...

    async def stop(self): ...

    async def reset(self): ...

    async def save_state(self):
        return {}

    async def load_state(self, state): ...


def two(provider, new_client, bench):
    """A planner with a server's tools, and a critic with none."""
    client = new_client(provider)
    return [role("planner", client, workbench=bench), role("critic", client)]


def served(provider, new_client, bench):
    """A team of these."""
    return RoundRobinGroupChat(two(provider, new_client, bench), max_turns=4)


def told_of(record):
    """What a request says of its tools."""
    return [(one["function"]["name"], one["function"]["description"]) for one in record.json.get("tools", [])]


async def test_an_agent_is_given_its_tool_as_the_server_declares_it_by_now(provide, new_client):
    """It may take other arguments, and the one before may have been made for another user: nobody is shown that."""
    provider = provide("openai", Says())
    first, later = [("look", "Looks into alice's box.")], [("look", "Looks into bob's box.")]
    team = wrap(served(provider, new_client, Served(first, first, later)))
    await team.run(task=TASK)
    assert [told_of(record) for record in provider.requests] == [first, first, later, []]
    assert session_of(team).failures == {}


async def test_a_servers_tools_are_shown_to_no_other_conversation(provide, new_client):
    """They come with a run, as the first one's may, and what they say may be of its user."""
    provider = provide("openai", Says())
    session = Session(SharedPrefix(system=HANDBOOK))
    tools = [("look", "Looks into alice's box.")]
    await wrap(served(provider, new_client, Served(tools)), session).run(task=TASK)
    assert [told_of(record) for record in provider.requests] == [tools] * 4
    alone = wrap(new_client(provider), session)
    await alone.create([SystemMessage(content=HANDBOOK), UserMessage(content="Bob asks.", source="user")])
    assert told_of(provider.requests[-1]) == []


@pytest.mark.parametrize("way", ["each has one", "the first one's alone"])
@pytest.mark.parametrize("first", [False, True], ids=["wrapped in turn", "wrapped first"])
async def test_no_team_is_shown_a_tool_that_was_made_for_another(provide, new_client, monkeypatch, way, first):
    """Teams are made anew for each person, from the first request on."""
    monkeypatch.setattr(AdapterSession, "selector_lane", lambda *_, **__: SelectorChoice("joined", 0, 0))
    provider, session = provide("openai", Says()), Session(SharedPrefix(system=HANDBOOK))

    def has(user):
        return user == "acme" or way == "each has one"

    def made(user):
        house = FunctionTool(search(), name=f"house_{user}", description=f"Asks the house of {user}.")
        tools = [search(), house] if has(user) else [search()]
        agents = [role(n, new_client(provider), tools=tools if n == ROLES[0] else []) for n in ROLES[:2]]
        # The one who chooses carries all tools that the conversation may, to read what the agents wrote.
        team = SelectorGroupChat(agents, new_client(provider), termination_condition=MaxMessageTermination(4))
        return wrap(team, session)

    teams = {user: made(user) for user in ("acme", "beta")} if first else {}
    for user, other in (("acme", "beta"), ("beta", "acme")) * 2:
        seen = len(provider.requests)
        await (teams[user] if first else made(user)).run(task=TASK)
        shown = [str(record.json) for record in provider.requests[seen:]]
        assert any(f"house of {user}" in body for body in shown) is has(user)
        assert not [body for body in shown if f"house of {other}" in body]
    assert session.failures == {}


@pytest.mark.parametrize("fault", [None, RuntimeError("down")], ids=["hangs", "is down"])
async def test_another_agents_server_holds_nobody_up(provide, new_client, monkeypatch, fault):
    """Where that agent has no turn, AutoGen itself does not ask its server at all."""
    monkeypatch.setattr("cacheprefix_autogen.tool_servers._PATIENCE", 0.05)
    provider = provide("openai", Says())
    agents = [
        *two(provider, new_client, Served([("look", "Looks.")])),
        role("writer", new_client(provider), workbench=Served(fault)),
    ]
    team = wrap(RoundRobinGroupChat(agents, max_turns=2), Session(SharedPrefix(system=HANDBOOK)))
    await asyncio.wait_for(team.run(task=TASK), 60)
    assert [told_of(record) for record in provider.requests] == [[("look", "Looks.")]] * 2
    assert session_of(team).failures == ({} if fault is None else {"tool server": 1})


class Executor(CodeExecutor):
    """Says what it was given, without running it."""

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        return CodeResult(exit_code=0, output=f"ran {code_blocks[0].code.strip()}")

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def restart(self) -> None: ...


def approve(_: ApprovalRequest) -> ApprovalResponse:
    """Everything may run, since nothing does."""
    return ApprovalResponse(approved=True, reason="a test")


async def test_a_code_executor_with_a_model_is_a_fork_like_others(provide, new_client):
    """Its requests extend the shared prefix, and what it ran is public."""
    steps = {"coder": ("```python\nprint(1)\n```",)}
    provider = provide("openai", Says(steps))
    coder = CodeExecutorAgent(
        "coder",
        Executor(),
        model_client=new_client(provider),
        system_message=f"You are the coder.\n\n{HANDBOOK}",
        approval_func=approve,
    )
    team = wrap(RoundRobinGroupChat([role("planner", new_client(provider)), coder], max_turns=3))
    await team.run(task=TASK)
    sent = prompts(provider.requests)
    assert common(sent[0], sent[1]) == tail_index(sent[0])
    assert sent[2].sections[-1].text == "ran print(1)"
    assert any("[coder]" in section.text for section in sent[-1].sections)
    assert session_of(team).failures == {}


async def test_agents_without_a_model_are_heard_by_the_others(provide, new_client):
    """A user proxy's and a plain executor's messages stand in the transcript in their order."""
    provider = provide("openai", Says())
    agents = [
        role("planner", new_client(provider)),
        UserProxyAgent("human", input_func=lambda _: "I agree."),
        CodeExecutorAgent("runner", Executor(), approval_func=approve),
        role("critic", new_client(provider)),
    ]
    team = wrap(RoundRobinGroupChat(agents, max_turns=4))
    await team.run(task=TASK)
    heads = [s.text.split("\n")[0] for s in provider.requests[-1].prompt.tier("messages")]
    assert heads[:-1] == ["[user]", "[planner]", "[human]", "[runner]"]


class Verdict(BaseModel):
    """An answer in a form."""

    verdict: str


# AutoGen dumps the SDK's parsed answer, which the SDK's own types do not foresee.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_structured_answers_are_a_lane_of_their_own_with_their_own_tools(provide, new_client):
    """A response schema separates requests anyway, so the union is not carried along."""
    provider = provide("openai", Says({"critic": ('{"verdict": "good"}',)}))
    agents = [
        role("planner", new_client(provider), tools=[search()]),
        role("critic", new_client(provider), output_content_type=Verdict),
    ]
    types = [StructuredMessage[Verdict]]
    team = wrap(RoundRobinGroupChat(agents, max_turns=3, custom_message_types=types))
    result = await team.run(task=TASK)
    planner, critic, again = provider.requests
    assert isinstance(result.messages[2], StructuredMessage)
    assert "tools" in planner.json
    assert "tools" not in critic.json
    assert any('{"verdict":"good"}' in section.text for section in again.prompt.sections)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("written", ['{"verdict": "good-0"}', '{\n  "verdict": "good-0"\n}', '{"verdict":"good-0"}'])
async def test_a_structured_answer_stands_once_in_the_next_request_of_its_agent(provide, new_client, written):
    """AutoGen tells the others the value that it read, in JSON of its own; the agent's context has the model's."""
    provider = provide("openai", Says({"critic": (written, '{"verdict": "good-1"}')}))
    agents = [role("planner", new_client(provider)), role("critic", new_client(provider), output_content_type=Verdict)]
    types = [StructuredMessage[Verdict]]
    await wrap(RoundRobinGroupChat(agents, max_turns=4, custom_message_types=types), Session()).run(task=TASK)
    assert provider.requests[-1].body.count(b"good-0") == 1


class Dated(BaseModel):
    """An answer that pydantic writes in other words than a model does, and one with a field that it leaves out."""

    thoughts: str = Field(default="", exclude=True)
    when: datetime | None = None
    word: str


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize(
    "written",
    ['{"when": "2030-11-30T08:00:00.000+00:00", "word": "good-0"}', '{"thoughts": "hm", "word": "good-0"}'],
)
async def test_an_answer_whose_class_tells_it_otherwise_stands_once_and_in_its_place(provide, new_client, written):
    """The agent is shown what it said, in its own words and before what was said to that (invariant 9)."""
    # A tool's result that is a part of the answer says nothing about all of it.
    steps = {"critic": (ToolCall("search", {"query": "q"}), written, '{"word": "good-1"}')}
    provider = provide("openai", Says(steps))

    def search(query: str) -> str:
        """Looks things up."""
        return '{"word": "good-0"}'

    tool = FunctionTool(search, description="Looks things up.", strict=True)
    structured = {"output_content_type": Dated, "tools": [tool], "reflect_on_tool_use": True}
    agents = [role("planner", new_client(provider)), role("critic", new_client(provider), **structured)]
    types = [StructuredMessage[Dated]]
    team = wrap(RoundRobinGroupChat(agents, max_turns=4, custom_message_types=types), session := Session())
    await team.run(task=TASK)
    *_, said, since = [str(one["content"]) for one in provider.requests[-1].json["messages"]]
    assert said == written
    assert since.startswith("planner speaks")
    assert "the others are told something else" in str(session.report())


async def test_large_tool_results_are_shortened_once_for_everyone(provide, new_client):
    """In the agent's own loop and in what the others are told, a result stands in the same short form."""
    steps = {"planner": (ToolCall("search", {"query": "q"}),)}
    provider = provide("openai", Says(steps))
    agents = [role("planner", new_client(provider), tools=[search()]), role("critic", new_client(provider))]
    team = wrap(RoundRobinGroupChat(agents, max_turns=2), Session(budget=ToolResultBudget(max_tokens=100)))
    result = await team.run(task=TASK)
    told = provider.requests[-1].prompt.tier("messages")[1].text
    assert len(told) < 1000 < len(result.messages[-2].to_text())


async def test_an_agent_whose_context_the_application_bounds_keeps_its_own_messages(provide, new_client):
    """A bounded context is the application's way to save; the whole transcript would undo it."""
    provider = provide("openai", Says())
    agents = [
        role("planner", new_client(provider), model_context=BufferedChatCompletionContext(2)),
        role("critic", new_client(provider)),
    ]
    await wrap(RoundRobinGroupChat(agents, max_turns=3)).run(task=TASK)
    bounded = provider.requests[-1].json["messages"]
    assert len(bounded) == 3
    assert "You are the planner." in bounded[0]["content"]


async def test_tools_of_one_name_and_two_schemas_stay_with_their_agents(provide, new_client):
    """A clash keeps an agent out of the union; its calls work as before, and that is noted."""

    def search(query: str, limit: int) -> str:
        """Another search."""
        return f"{query} {limit}"

    from autogen_teams import search as other

    provider = provide("openai", Says())
    agents = [
        role("planner", new_client(provider), tools=[other()]),
        role("critic", new_client(provider), tools=[search]),
    ]
    team = wrap(RoundRobinGroupChat(agents, max_turns=2))
    await team.run(task=TASK)
    parameters = [record.json["tools"][0]["function"]["parameters"]["required"] for record in provider.requests]
    assert parameters == [["query"], ["query", "limit"]]
    assert any("keeps its own tools" in note for note in session_of(team).report().notes)


@pytest.mark.parametrize("scoped", [False, True])
async def test_teams_that_describe_a_tool_differently_share_each_among_their_own_agents(provide, new_client, scoped):
    """Made for a user each, by turns: a tool stays its user's, and cause and way out are told."""
    provider, session = provide("openai", Says()), Session(SharedPrefix(system=HANDBOOK))
    for user in ("ann", "bob", "bob", "ann"):
        seen = len(provider.requests)

        def ask(query: str) -> str:
            return query

        house = FunctionTool(ask, f"Asks the house of {user}.", name="house")
        agents = [role(name, new_client(provider), tools=[house] if name == "planner" else []) for name in ROLES]
        team = wrap(RoundRobinGroupChat(agents, max_turns=3), session, **({"scope": user} if scoped else {}))
        assert session_of(team) is session
        await team.run(task=TASK)
        shown = [record.body.decode() for record in provider.requests[seen:]]
        assert all(f"house of {user}" in body for body in shown)
        assert not any({"ann": "of bob", "bob": "of ann"}[user] in body for body in shown)
    assert {call.layout for call in session.calls} == {"fork"}
    reads = [call.usage.cache_read_tokens > 1_000 for call in session.calls]
    assert reads.count(False) == 2
    (told,) = [note for note in session.report().notes if "'house'" in note]
    assert "describe the tool alike for all" in told
    assert session.failures == {}


async def test_markers_stand_at_the_end_of_the_shared_part_on_anthropic(provide, new_client):
    """The last block before the role's text is marked, so the next fork reads all of it."""
    provider = provide("anthropic", Says())
    team = wrap(RoundRobinGroupChat([role(n, new_client(provider, api="anthropic")) for n in ROLES], max_turns=4))
    await team.run(task=TASK)
    for prompt in prompts(provider.requests):
        marked = [i for i, section in enumerate(prompt.sections) if section.marker is not None]
        assert marked[-1] == tail_index(prompt) - 1
    reads = [record.usage["cache_read_input_tokens"] for record in provider.requests]
    assert reads[0] == 0
    assert all(read > 2000 for read in reads[1:])


async def test_a_reflection_on_anthropic_is_told_in_words_and_keeps_the_tool_choice(provide, new_client):
    """tool_choice would invalidate the messages there; a reply that calls a tool all the same is asked again."""
    call = Reply(tool_calls=(ToolCall("search", {"query": "q"}),))
    provider = provide("anthropic", Queue([call, call, "found it"]))
    agents = [
        role(n, new_client(provider, api="anthropic"), tools=[search()], reflect_on_tool_use=True) for n in ROLES[:2]
    ]
    team = wrap(RoundRobinGroupChat(agents, max_turns=1))
    result = await team.run(task=TASK)
    first, reflection, again = provider.requests
    assert {str(r.json["tool_choice"]) for r in (first, reflection, again)} == {"{'type': 'auto'}"}
    assert reflection.prompt.sections[-1].text == "Answer now in text, without calling a tool."
    assert common(first.prompt, reflection.prompt) == len(first.prompt.sections)
    assert result.messages[-1].content == "found it"


async def test_a_response_cache_around_the_client_answers_without_a_call(provide, new_client):
    """AutoGen's own cache of responses stands outside, and its hits reach neither provider nor report."""
    from autogen_core.models import UserMessage
    from autogen_ext.models.cache import ChatCompletionCache

    from cacheprefix_autogen import PrefixClient

    provider = provide("openai")
    session = Session(SharedPrefix(system=HANDBOOK))
    client = ChatCompletionCache(PrefixClient(new_client(provider), session))
    for _ in range(2):
        await client.create([UserMessage(content=TASK, source="user")])
    assert len(provider.requests) == len(session.calls) == 1


@pytest.mark.parametrize("mode", ["observe", "fork"])
@pytest.mark.parametrize("own", [False, True])
async def test_a_response_cache_in_a_wrapped_team_answers_without_a_call(provide, new_client, mode, own):
    """Nor has the provider failed to give it; also around a client of the application's own class."""
    from autogen_core import InMemoryStore
    from autogen_ext.models.cache import ChatCompletionCache
    from autogen_ext.models.replay import ReplayChatCompletionClient

    answers = [CreateResult(finish_reason="stop", content=c, usage=RequestUsage(90, 7), cached=False) for c in "ab"]
    inner = ReplayChatCompletionClient(answers) if own else new_client(provide("openai"))
    client, session = ChatCompletionCache(inner, InMemoryStore()), Session(mode=mode)
    for _ in range(2):
        agents = [role(name, client) for name in ("planner", "critic")]
        await wrap(RoundRobinGroupChat(agents, max_turns=2), session).run(task=TASK)
    assert [call.agent for call in session.calls] == ["planner", "critic"]
    assert session.report().unanswered == 0


def look(q: str) -> str:
    """Look."""
    return f"saw {q}"


_LOOK = FunctionTool(look, description="Look.")
_PARAMETERS = _LOOK.schema["parameters"]


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize(
    "given",
    [
        {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": _PARAMETERS}},
        {"name": "look", "description": "Look.", "input_schema": _PARAMETERS},
        _LOOK.schema,
        _LOOK,
        look,
    ],
    ids=["openai", "anthropic", "schema", "tool", "function"],
)
async def test_a_shared_tool_is_sent_whole_in_whatever_form_it_was_given(provide, new_client, api, given):
    """AutoGen reads a schema of one form alone: of others it took no parameters, or raised in each request."""
    session = Session(SharedPrefix(system=HANDBOOK, tools=[given]))
    provider = provide(api, Says())
    agents = [
        role(name, new_client(provider, api=api), tools=[_LOOK] if name == ROLES[0] else None) for name in ROLES[:2]
    ]
    await wrap(RoundRobinGroupChat(agents, max_turns=4), session).run(task=TASK)
    asked = [request.json["tools"][0] for request in provider.requests]
    assert len(asked) == 4
    schemas = [one.get("input_schema") or one["function"]["parameters"] for one in asked]
    assert [list(one["properties"]) for one in schemas] == [["q"]] * 4
    assert not session.failures


def test_what_cannot_be_wrapped_or_called_for_text_is_refused_at_once(provide, new_client):
    """A client that is wrapped already would be counted twice or by nobody; what is awaited gives no text."""
    client = new_client(provide("openai", Says()))
    with pytest.raises(SetupError, match="wrapped already"):
        wrap(wrap(client, Session()), Session())

    async def looked_up():
        return {"time": "noon"}

    with pytest.raises(SetupError, match="async function"):
        wrap(RoundRobinGroupChat([role(ROLES[0], client)]), Session(), volatile=looked_up)
    with pytest.raises(SetupError, match=r"holds a \w*Path"):
        wrap(RoundRobinGroupChat([role(ROLES[0], client)]), Session(SharedPrefix(tools=[Path()])))


async def test_a_call_of_a_tool_that_nobody_has_is_answered_as_without_us(provide, new_client):
    """AutoGen says that there is none; it was taken for another role's tool, and asked again instead."""
    seen = []
    for wrapped in (False, True):
        call = Reply(tool_calls=(ToolCall("nothing", {"q": "x"}),))
        provider = provide("anthropic", Queue([call, "So be it.", "Yes."]))
        client = new_client(provider, api="anthropic")
        planner = role("planner", client, tools=[search("look")], max_tool_iterations=3)
        team = RoundRobinGroupChat([planner, role("critic", client, tools=[search("see")])], max_turns=2)
        team = wrap(team, Session(SharedPrefix(system=HANDBOOK))) if wrapped else team
        events = [one async for one in team.run_stream(task=TASK)][:-1]
        seen.append([(type(one), one.source, re.sub(r"toolu_\w+", "id", one.to_text())) for one in events])
        assert len(provider.requests) == 3
    assert len(provider.requests[0].json["tools"]) == 2
    assert seen[0] == seen[1]

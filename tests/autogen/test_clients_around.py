"""Clients of the application's around AutoGen's, which ask more than the agent did, and fields put over the body."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ChatCompletionClient, SystemMessage, UserMessage
from autogen_core.tools import FunctionTool
from autogen_teams import HANDBOOK, ROLES, Says, role, search
from openai import BadRequestError

from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix.server import Fault, Reply, ToolCall
from cacheprefix.testing import request_errors
from cacheprefix_autogen import PrefixClient, wrap

TASK = "Which proposal is the better one?"
NOW = "It is noon."
GUARD = [
    SystemMessage(content="You are the guard. Is this safe?"),
    UserMessage(content=f"{TASK} You are the planner.", source="user"),
]


class _Around(ChatCompletionClient):
    """A client around another one that passes on what it is asked."""

    def __init__(self, inner: ChatCompletionClient) -> None:
        self.client = inner

    async def create(self, messages: Any, **options: Any) -> Any:
        return await self.client.create(messages, **options)

    async def create_stream(self, messages: Any, **options: Any) -> Any:
        async for piece in self.client.create_stream(messages, **options):
            yield piece

    async def close(self) -> None:
        await self.client.close()

    def actual_usage(self) -> Any:
        return self.client.actual_usage()

    def total_usage(self) -> Any:
        return self.client.total_usage()

    def count_tokens(self, messages: Any, **options: Any) -> int:
        return self.client.count_tokens(messages, **options)

    def remaining_tokens(self, messages: Any, **options: Any) -> int:
        return self.client.remaining_tokens(messages, **options)

    @property
    def capabilities(self) -> Any:
        return self.client.capabilities

    @property
    def model_info(self) -> Any:
        return self.client.model_info


class _Guarded(_Around):
    """Asks a guard first."""

    async def create(self, messages: Any, **options: Any) -> Any:
        await self.client.create(GUARD)
        return await super().create(messages, **options)

    async def create_stream(self, messages: Any, **options: Any) -> Any:
        async for _ in self.client.create_stream(GUARD):
            pass
        async for piece in super().create_stream(messages, **options):
            yield piece


class _Persistent(_Around):
    """Asks once more where the first request fails."""

    async def create(self, messages: Any, **options: Any) -> Any:
        try:
            return await super().create(messages, **options)
        except Exception:
            return await super().create(messages, **options)

    async def create_stream(self, messages: Any, **options: Any) -> Any:
        try:
            async for piece in super().create_stream(messages, **options):
                yield piece
        except Exception:
            async for piece in super().create_stream(messages, **options):
                yield piece


class _Twice(_Around):
    """Asks for two answers and gives the second one."""

    async def create(self, messages: Any, **options: Any) -> Any:
        await super().create(messages, **options)
        return await super().create(messages, **options)

    async def create_stream(self, messages: Any, **options: Any) -> Any:
        async for _ in super().create_stream(messages, **options):
            pass
        async for piece in super().create_stream(messages, **options):
            yield piece


class _Upper(_Around):
    """Writes every text in capitals."""

    def _said(self, messages: Any) -> Any:
        return [one.model_copy(update={"content": one.content.upper()}) for one in messages]

    async def create(self, messages: Any, **options: Any) -> Any:
        return await super().create(self._said(messages), **options)

    async def create_stream(self, messages: Any, **options: Any) -> Any:
        async for piece in super().create_stream(self._said(messages), **options):
            yield piece


def _session() -> Session:
    return Session(SharedPrefix(system=HANDBOOK), gate=Gate(price=0.0))


async def _run(client: Any, session: Session | None, *, stream: bool = False) -> Any:
    agents = [role(name, client, model_client_stream=stream, tools=[search(f"find_{name}")]) for name in ROLES]
    team = RoundRobinGroupChat(agents, max_turns=3)
    if session is not None:
        wrap(team, session, volatile=lambda: {"now": NOW})
    return await team.run(task=TASK)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_a_guard_gets_nothing_of_the_agents_request(provide, new_client, api, stream):
    """It asks first, so that it was given the agent's volatile text, which the agent itself went without."""
    guards = []
    for session in (None, _session()):
        provider = provide(api, Says())
        await _run(_Guarded(new_client(provider, api=api)), session, stream=stream)
        guards.append([record.body for record in provider.requests[::2]])
        told = [NOW.encode() in record.body for record in provider.requests[1::2]]
        assert told == [session is not None] * 3
        marked = [b"cache_control" in record.body for record in provider.requests[1::2]]
        assert all(marked) == (session is not None and api == "anthropic")
    assert guards[0] == guards[1]
    assert [call.layout for call in session.calls] == ["fork"] * 3
    assert not session.failures


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_changes_what_agents_say_is_named(provide, new_client, stream):
    """Its requests are not known as the agents': what they lack then is said."""
    provider, session = provide("openai", Says()), _session()
    await _run(_Upper(new_client(provider)), session, stream=stream)
    assert not any(NOW.encode() in record.body for record in provider.requests)
    assert not session.calls
    assert any("_Upper changes its agents' system texts" in note for note in session.report().notes)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", [_Persistent, _Twice])
@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_a_request_that_is_sent_twice_is_the_same_twice(provide, new_client, api, kind, stream):
    """The second one went out without marks, volatile text and the limits on tools, and was in no report."""
    says, session = Says(), _session()

    def fails_first(request: Any) -> Any:
        fails_first.asked += 1
        return Fault(status=500) if kind is _Persistent and fails_first.asked % 2 else says(request)

    fails_first.asked = 0
    provider = provide(api, fails_first)
    await _run(kind(new_client(provider, api=api, max_retries=0)), session, stream=stream)
    sent = [record.json for record in provider.requests]
    assert len(sent) == 6
    said = [[str(body.get(name)) for name in ("messages", "system", "tool_choice", "tools")] for body in sent]
    assert said[::2] == said[1::2]
    assert all(NOW in one[0] for one in said)
    assert sum(call.usage is not None for call in session.calls) == (3 if kind is _Persistent else 6)
    assert not session.failures


async def test_what_comes_of_a_second_try_is_the_clients_usage(provide, new_client):
    """It is what the answer cost; the first try brought none."""
    says, asked = Says(), []

    def fails_first(request: Any) -> Any:
        asked.append(request)
        return Fault(status=500) if len(asked) == 1 else says(request)

    provider = provide("anthropic", fails_first)
    client = PrefixClient(_Persistent(new_client(provider, api="anthropic", max_retries=0)), _session(), role="critic")
    result = await client.create([SystemMessage(content=HANDBOOK), UserMessage(content=TASK, source="user")])
    assert client.last_usage is not None
    assert result.usage.prompt_tokens == client.last_usage.prompt_tokens > 1_000


OVER = {
    "tool_choice": "none",
    "messages": [{"role": "user", "content": "What?"}],
    "tools": [{"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}],
}


@pytest.mark.parametrize("name", OVER)
async def test_what_the_application_puts_over_a_body_stays(provide, new_client, name):
    """Its ``tool_choice`` was ours, and parts of a fork were lost under the others."""
    bodies = []
    for session in (None, _session()):
        provider = provide("openai", Says())
        await _run(new_client(provider, extra_body={name: OVER[name]}), session)
        bodies.append([record.json for record in provider.requests])
    assert [[body[name] for body in part] for part in bodies] == [[OVER[name]] * 3] * 2 or name == "messages"
    said = [[str(body["messages"]) + str(body.get("tools")) for body in part] for part in bodies]
    # Volatile text stands behind everything.
    assert [one.replace(f", {{'role': 'user', 'content': '<now>\\n{NOW}\\n</now>'}}", "") for one in said[1]] == said[0]
    assert {tuple(one.why for one in call.reasons) for call in session.calls} == {("own_prompt",)}


WAYS = {
    "chat": ("openai", lambda sdk: sdk.chat.completions.create),
    "beta": ("openai", lambda sdk: sdk.beta.chat.completions.parse),
    "messages": ("anthropic", lambda sdk: sdk.messages.create),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_copy_of_an_sdk_client_asks_by_itself(provide, new_client, way):
    """As with another customer's key: what we had made of the client that it was copied from was copied along."""
    api, method = WAYS[way]
    provider, keys = provide(api, Says()), []

    async def hear(request):
        keys.append(request.headers.get("x-api-key") or request.headers["authorization"])

    client = new_client(provider, api=api, fresh=True)
    client._client._client.event_hooks = {"request": [hear]}
    await _run(client, _session())
    twin = copy.copy(client._client)
    for name in ("chat", "messages"):
        # What the SDK has made of it when it was asked is its own. AutoGen asked by nothing else here.
        vars(twin).pop(name, None)
    twin.api_key = "other"
    most = {"max_tokens": 9} if api == "anthropic" else {}
    await method(twin)(model="m", messages=[{"role": "user", "content": "Alone."}], **most)
    assert ["other" in key for key in keys] == [False] * 3 + [True]


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("own", ["", "post", "_post"])
async def test_a_client_with_a_method_of_its_own_is_watched(provide, new_client, own, used):
    """So are its parts, which may have been made before by then, and hold the method that it had."""
    provider, session, paths = provide("openai", Says()), _session(), []
    client = new_client(provider, fresh=True)
    if used:
        await client.create([UserMessage(content=TASK, source="user")])
    if own:
        holder = client._client if own == "post" else client._client.chat.completions
        asked = getattr(holder, own)

        async def post(path: str, **request: Any) -> Any:
            paths.append(path)
            return await asked(path, **request)

        setattr(holder, own, post)
    await _run(client, session)
    # The SDK's parts take the client's method when they are made, which may have been before.
    assert len(paths) == 3 * (own == "_post" or (own == "post" and not used))
    assert [call.layout for call in session.calls] == ["fork"] * 3
    assert all(call.usage is not None for call in session.calls)


class _Forcing(_Around):
    """Has the model call a tool, whichever, or the first one."""

    def __init__(self, inner: ChatCompletionClient, choice: str) -> None:
        super().__init__(inner)
        self.choice = choice

    def _forced(self, options: Any) -> Any:
        given = options.get("tools") or ()
        chosen = self.choice if self.choice == "required" else _tool(self.choice)
        return {**options, "tool_choice": chosen} if given else options

    async def create(self, messages: Any, **options: Any) -> Any:
        return await super().create(messages, **self._forced(options))

    async def create_stream(self, messages: Any, **options: Any) -> Any:
        async for piece in super().create_stream(messages, **self._forced(options)):
            yield piece


def _tool(name: str) -> FunctionTool:
    return FunctionTool(search(name), description=f"Looks things up as {name}.", name=name)


def calls_another(request: Any) -> Reply:
    """Calls a tool that it may call, and another agent's rather than the agent's own."""
    body = request.body
    choice = body.get("tool_choice")
    named = choice.get("allowed_tools", {}).get("tools", ()) if isinstance(choice, dict) else ()
    one = (choice.get("function") or choice).get("name") if isinstance(choice, dict) else None
    offered = [(tool.get("function") or tool)["name"] for tool in named or body["tools"]]
    own = re.findall(r"You are the (\w+)\.", request.text)[-1]
    called = one or min(offered, key=lambda name: name == f"find_{own}")
    return Reply(tool_calls=(ToolCall(called, {"query": "q"}),))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", "find_critic"])
@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_a_call_that_a_client_around_forces_can_only_be_one_of_the_agents_own(
    provide, new_client, api, choice, stream
):
    """Behind us the client changed what an agent may call: it was free again, or of the union, another agent's tool."""
    provider, session = provide(api, calls_another), _session()
    forcing = _Forcing(new_client(provider, api=api), choice)
    agents = [role(name, forcing, model_client_stream=stream, tools=[search(f"find_{name}")]) for name in ROLES]
    wrap(RoundRobinGroupChat(agents), session, volatile=lambda: {"now": NOW})
    result = await agents[1].run(task=TASK)
    called = [call.name for one in result.messages if one.type == "ToolCallRequestEvent" for call in one.content]
    assert called == ["find_critic"]
    assert NOW in str(provider.requests[-1].json)
    _check_forced(provider, session, choice)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", "find_critic"])
@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_a_forced_call_can_only_be_one_of_the_roles_own(provide, new_client, api, choice, stream):
    """As an agent of the application's own class forces it, which asks the client itself."""
    union = [_tool(f"find_{name}") for name in ROLES]
    session = Session(SharedPrefix(system=HANDBOOK, tools=union), gate=Gate(price=0.0))
    provider = provide(api, calls_another)
    client = PrefixClient(new_client(provider, api=api), session, role="critic")
    asks = [SystemMessage(content=f"You are the critic.\n\n{HANDBOOK}"), UserMessage(content=TASK, source="user")]
    options = {"tools": [union[1]], "tool_choice": choice if choice == "required" else union[1]}
    if stream:
        result = [piece async for piece in client.create_stream(asks, **options)][-1]
    else:
        result = await client.create(asks, **options)
    assert [call.name for call in result.content] == ["find_critic"]
    assert [tool.get("function", tool)["name"] for tool in provider.requests[0].json["tools"]] == ["find_critic"]
    assert "forced_tool" in [one.why for one in session.calls[0].reasons]
    _check_forced(provider, session, choice)


CHOICES: dict[str, Any] = {
    "named": {"type": "function", "function": {"name": "find_planner"}},
    "listed": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "find_planner"}}]},
    },
}


@pytest.mark.invalid_requests  # a choice without tools, which the provider refuses
@pytest.mark.parametrize("own", [1, 0])
@pytest.mark.parametrize("choice", CHOICES)
async def test_a_choice_among_extra_arguments_of_a_tool_that_is_anothers_is_as_without_us(
    provide, new_client, choice, own
):
    """AutoGen's client puts its own over it; to a role without tools the union would make it one that can be met."""
    union, seen = [_tool(f"find_{name}") for name in ROLES], []
    asks = [SystemMessage(content=f"You are the critic.\n\n{HANDBOOK}"), UserMessage(content=TASK, source="user")]
    for session in (None, Session(SharedPrefix(system=HANDBOOK, tools=union))):
        provider = provide("openai", calls_another)
        native = new_client(provider, max_retries=0)
        client = native if session is None else PrefixClient(native, session, role="critic")
        try:
            extra = {"tool_choice": CHOICES[choice]}
            result = await client.create(asks, tools=union[1 : 1 + own], extra_create_args=extra)
            seen.append([call.name for call in result.content])
        except BadRequestError as error:
            seen.append(str(error))
        assert len(provider.requests) == 1
        assert bool(request_errors(provider.requests[0])) is (own == 0)
    assert seen[0] == seen[1]
    assert not own or seen[0] == ["find_critic"]


def _check_forced(provider: Any, session: Session, choice: str) -> None:
    """The one request forces a call of the role's own tools, and is in the report."""
    (sent,) = (record.json for record in provider.requests)
    offered = [(tool.get("function") or tool)["name"] for tool in sent["tools"]]
    listed = sent["tool_choice"].get("allowed_tools") if isinstance(sent["tool_choice"], dict) else None
    if listed:
        assert (listed["mode"], len(listed["tools"])) == ("required", 1)
    elif choice == "required":
        assert (offered, sent["tool_choice"]) in ((["find_critic"], "required"), (["find_critic"], {"type": "any"}))
    else:
        assert "find_critic" in str(sent["tool_choice"])
    assert [call.layout for call in session.calls] == ["fork"]
    assert not session.failures

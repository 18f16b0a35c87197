"""What the application does on a request's way: copies an SDK's client, gives it a method of its own, forces a call."""

from __future__ import annotations

import copy
import json

import anthropic
import openai
import pytest
from ag2 import MemoryStream, tool
from ag2.events import ImageInput, ModelReasoning, ToolResult
from ag2.exceptions import UnsupportedInputError
from ag2_driver import agent, configured, texts
from test_layout import named, session

from cacheprefix.server import Fault, Queue, Reply, SimulatedProvider, ToolCall
from cacheprefix_ag2 import client as client_module
from cacheprefix_ag2 import session_of, wrap
from cacheprefix_ag2.client import PrefixClient

APIS = ("openai-chat", "openai-responses", "anthropic")


@pytest.fixture
def clients(monkeypatch):
    """The SDKs' clients that ag2 makes, in order."""
    from ag2.config.anthropic import config as anthropic
    from ag2.config.openai import config as openai

    made = []
    for config in (openai.OpenAIConfig, openai.OpenAIResponsesConfig, anthropic.AnthropicConfig):

        def create(self, own=config.create):
            client = own(self)
            made.append(client._client)
            return client

        monkeypatch.setattr(config, "create", create)
    return made


@pytest.mark.parametrize("api", APIS)
async def test_a_copy_of_an_sdk_client_asks_by_itself(fresh, api, clients):
    """As with another customer's key: it asked through the client that it was copied from."""
    server, keys = fresh(api), []

    async def hear(request):
        keys.append(request.headers.get("x-api-key") or request.headers["authorization"])

    async with configured(api, server) as config:
        config.http_client.event_hooks = {"request": [hear]}
        for each in wrap([agent("planner", config), agent("critic", config)], session()):
            await each.ask("What now?", stream=MemoryStream())
        twin = copy.copy(clients[-1])
        # What the SDK has made of the first is the first's.
        for name in ("chat", "responses", "messages"):
            vars(twin).pop(name, None)
        twin.api_key = "other"
        asked = {"model": config.model, "messages": [{"role": "user", "content": "Alone."}]}
        if api == "openai-responses":
            await twin.responses.create(model=config.model, input="Alone.")
        elif api == "openai-chat":
            await twin.chat.completions.create(**asked)
        else:
            await twin.messages.create(**asked, max_tokens=9)
    assert ["other" in key for key in keys] == [False, False, True]


async def test_a_method_that_an_sdk_client_was_given_is_asked_through(fresh, clients):
    """It stands on that one client, in front of its class's: requests through it are forks, and measured."""
    server, paths = fresh("openai-chat"), []
    async with configured("openai-chat", server) as config:
        agents = wrap([agent("planner", config), agent("critic", config)], session())
        made = type(config).create

        def create(self):
            client = made(self)
            own = client._client.post

            async def post(path, **rest):
                paths.append(path)
                return await own(path, **rest)

            client._client.post = post
            return client

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(config), "create", create)
            for each in agents:
                await each.ask("What now?", stream=MemoryStream())
    assert paths == ["/chat/completions"] * 2
    assert [call.layout for call in session_of(agents).calls] == ["fork"] * 2


class Own:
    """A config of the application's own: no more than a turn of ag2's asks of one, around a config of ag2's."""

    def __init__(self, config, client):
        self.config, self.client = config, client

    def copy(self):
        """Another one."""
        return Own(self.config, self.client)

    def create(self):
        """A client of the application's own."""
        return self.client(self.config.create())


class Renamed:
    """A client that keeps something else where ag2's clients keep what they ask with."""

    def __init__(self, client):
        self.client, self._create_options = client, object()

    async def __call__(self, *given, **named):
        return await self.client(*given, **named)


def function(client):
    """A client that is a function."""

    async def ask(messages, context, **named):
        return await client(messages, context, **named)

    return ask


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("client", [Renamed, function])
@pytest.mark.parametrize("given", ["to the agent", "with the call"])
async def test_a_config_of_the_applications_own_asks_as_it_did(fresh, api, client, given):
    """With a client that nobody can look into: it raised ``AttributeError`` in ours, at once or in each turn."""
    server = fresh(api)
    async with configured(api, server) as config:
        own = Own(config, client)
        made = [agent(name, own if given == "to the agent" else config) for name in ("planner", "critic")]
        options = {"config": own} if given == "with the call" else {}
        bodies = []
        for wrapped in (False, True):
            for each in wrap(made, session()) if wrapped else made:
                await each.ask("What now?", **options)
            bodies.append([record.body for record in server.requests])
            server.reset()
    assert bodies[0] == bodies[1]
    assert session_of(made).failures == {}


_SDKS = {
    "openai-chat": lambda: type(openai.AsyncOpenAI(api_key="k").chat.completions),
    "openai-responses": lambda: type(openai.AsyncOpenAI(api_key="k").responses),
    "anthropic": lambda: type(anthropic.AsyncAnthropic(api_key="k").messages),
}


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("api", APIS)
async def test_a_body_that_is_only_counted_is_made_without_its_messages(fresh, api, copied, monkeypatch):
    """OpenAI's SDK goes through each of them on the event loop: a turn took twice the time. It is the same body."""
    given, made = [], []
    kind = _SDKS[api]()
    create, original = kind.create, PrefixClient._original

    async def asked(self, **named):
        given.append(len(named.get("messages") or named.get("input") or ()))
        return await create(self, **named)

    async def both(self, *named):
        slow = pytest.MonkeyPatch()
        slow.setattr(client_module, "_unsaying", lambda client, sending: client)
        whole = await original(self, *named)
        slow.undo()
        del given[-1]
        made.append((json.dumps(whole), json.dumps(await original(self, *named))))
        return whole

    def uncopied(client):
        def refuse(self, memo=None):
            raise TypeError("on purpose")

        client.__class__ = type("Uncopied", (type(client),), {"__copy__": refuse})
        return client

    monkeypatch.setattr(kind, "create", asked)
    monkeypatch.setattr(PrefixClient, "_original", both)
    stream = MemoryStream()
    async with configured(api, fresh(api)) as config:
        agents = wrap([agent(one, config, tools=[named("look")]) for one in ("planner", "critic")], session())
        own = config if copied else Own(config, uncopied)
        for each in agents:
            await each.ask("Call look.", ImageInput(data=b"png", media_type="image/png"), stream=stream, config=own)
    calls = session_of(agents).calls
    assert [call.layout for call in calls] == ["fork"] * len(calls) == ["fork"] * 4
    assert len(made) == 4
    assert all(whole == quick for whole, quick in made)
    assert [one > 0 for one in given] == ([False, True] if copied else [True, True]) * 4
    assert session_of(agents).failures == {}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_a_client_that_tries_again_sees_no_error_of_ours(fresh, api, streaming):
    """A request that was only made to be counted ended with an exception, after which such a client made it anew."""
    caught = []

    def patient(client):
        class Patient(type(client)):
            async def __call__(self, *given, **named):
                try:
                    return await super().__call__(*given, **named)
                except Exception as error:
                    caught.append(error)
                return await super().__call__(*given, **named)

        client.__class__ = Patient
        return client

    server = fresh(api)
    async with configured(api, server, streaming=streaming) as config:
        agents = wrap([agent(name, config) for name in ("planner", "critic")], session())
        stream = MemoryStream()
        for each in agents:
            await each.ask("What now?", stream=stream, config=Own(config, patient))
    assert caught == []
    assert session_of(agents).failures == {}
    assert [call.layout for call in session_of(agents).calls] == ["fork"] * 2


@pytest.mark.parametrize("api", APIS)
async def test_what_an_applications_client_says_of_a_request_it_says_once(fresh, api):
    """To those that listen, and in the context's variables: the request was made another time, to be counted."""
    heard = []

    def telling(client):
        class Telling(type(client)):
            async def __call__(self, messages, context, **named):
                context.variables["asked"] = context.variables.get("asked", 0) + 1
                await context.send(ModelReasoning("Asking."))
                return await super().__call__(messages, context, **named)

        client.__class__ = Telling
        return client

    stream = MemoryStream()
    stream.where(ModelReasoning).subscribe(lambda event: heard.append(event.content), sync_to_thread=False)
    async with configured(api, fresh(api)) as config:
        agents = wrap([agent(name, config) for name in ("planner", "critic")], session())
        noted = [
            (await each.ask("What now?", stream=stream, config=Own(config, telling))).context.variables["asked"]
            for each in agents
        ]
    assert [call.layout for call in session_of(agents).calls] == ["fork"] * 2
    assert (noted, len(heard)) == ([1, 1], 2)
    assert session_of(agents).failures == {}


@pytest.mark.parametrize("choice", ["required", "auto"])
async def test_a_chosen_call_can_only_be_one_of_the_roles_own(choice):
    """Of the union the model could call another role's tool, which ag2 does not find."""
    # The tool's result ends the turn: with a forced call there would be another request, and so on.
    answers = [Reply("Well."), Reply(tool_calls=(ToolCall("look", {}),))]
    with SimulatedProvider("openai-5.6", Queue(answers)) as server:
        bodies, calls = await asked_with(choice, server)
    offered = [{tool["function"]["name"] for tool in body["tools"]} for body in bodies]
    allowed = [str(body["tool_choice"]) for body in bodies]
    if choice == "required":
        assert (offered, allowed) == ([{"look"}], ["required"])
        assert {one.why for call in calls[1:] for one in call.reasons} >= {"forced_tool"}
    else:
        assert offered == [{"look", "write"}]
        assert all("allowed_tools" in said and "write" not in said for said in allowed)


@pytest.mark.invalid_requests
async def test_a_choice_of_another_agents_tool_is_refused_as_without_us():
    """Of the union the provider took it, and the model called what the agent does not have."""
    told = []
    for wrapped in (False, True):
        # Else a call that the agent does not find is forced again and again.
        replies = Queue([Reply("Well."), Reply("So."), Reply("", fault=Fault(status=500))])
        with SimulatedProvider("openai-5.6", replies) as server:
            with pytest.raises(openai.BadRequestError, match="not among the tools") as refused:
                await asked_with({"type": "function", "function": {"name": "write"}}, server, wrapped=wrapped)
            told.append((str(refused.value), len(server.requests)))
    assert told[0] == told[1]


async def asked_with(choice, server, *, wrapped=True):
    """The bodies and calls of an agent with such a ``tool_choice`` beside one that has another tool."""
    async with configured("openai-chat", server) as config:
        stream, forced = MemoryStream(), config.copy(tool_choice=choice)
        agents = [
            agent("planner", config, tools=[named("write")]),
            agent("critic", forced, tools=[named("look", ToolResult("seen", final=True))]),
        ]
        for each in wrap(agents, session()) if wrapped else agents:
            await each.ask("What now?", stream=stream)
        return [record.json for record in server.requests[1:]], session_of(agents).calls


# ag2's config for OpenAI's Responses API takes no such fields.
OVER = {
    "openai-chat": {
        "messages": [{"role": "user", "content": "What?"}],
        "tool_choice": "none",
        "prompt_cache_key": "mine",
    },
    "anthropic": {
        "messages": [{"role": "user", "content": "What?"}],
        "system": "Be brief.",
        "tools": [{"name": "other", "input_schema": {"type": "object"}}],
        "temperature": 0.5,
    },
}
NOW = "It is noon."
BESIDE_ALONE = f"<now>\n{NOW}\n</now>"
BESIDE = f", { ({'role': 'user', 'content': BESIDE_ALONE}) }"
"""Text for one request alone: it stands behind everything."""


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("api", "name"), [(api, name) for api, fields in OVER.items() for name in fields])
async def test_what_the_application_puts_over_a_body_takes_no_part_of_a_fork_away(fresh, api, name, streaming):
    """``extra_body`` took the role's text, or the shared one, or the tools that the fork's choice named."""
    found, value = {}, OVER[api][name]
    for wrapped in (False, True):
        server, whole = fresh(api), session()
        async with configured(api, server, extra_body={name: value}, streaming=streaming) as config:
            agents = [agent(each, config, tools=[named("look")]) for each in ("planner", "critic")]
            if wrapped:
                wrap(agents, whole, volatile=lambda: {"now": NOW})
            stream = MemoryStream()
            for each in agents:
                await each.ask("What now?", stream=stream)
        found[wrapped] = list(server.requests)
    layouts = [call.layout for call in whole.calls]
    assert [NOW in str(record.json) for record in found[True]] == [True] * 2
    if name in ("prompt_cache_key", "temperature"):
        assert layouts == ["fork"] * 2
        assert [record.json[name] for record in found[True]] == [value] * 2
        return
    said = {key: [[*texts(one), str(one.json.get(name))] for one in kept] for key, kept in found.items()}
    said[True] = [[text.replace(BESIDE, "") for text in one if text != BESIDE_ALONE] for one in said[True]]
    assert said[True] == said[False]
    assert "fork" not in layouts
    assert {tuple(one.why for one in call.reasons) for call in whole.calls} == {("own_prompt",)}


@pytest.mark.parametrize("streaming", [False, True])
async def test_what_a_client_cannot_send_is_no_failure_of_ours(fresh, streaming):
    """As an image that a tool gives back, in a chat of OpenAI's: we warned of it, and the application got it too."""

    @tool
    def picture() -> object:
        """Paints."""
        return ImageInput(data=b"png", media_type="image/png")

    async with configured("openai-chat", fresh("openai-chat"), streaming=streaming) as config:
        agents = wrap([agent("planner", config, tools=[picture]), agent("critic", config)], session())
        with pytest.raises(UnsupportedInputError):
            await agents[0].ask("Call picture.", stream=MemoryStream())
    assert session_of(agents).failures == {}

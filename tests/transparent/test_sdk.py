"""OpenAI's and Anthropic's own clients, unmodified, observed and forked."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import pickle
from functools import partial

import pytest

pytest.importorskip("cacheprefix_sdk", reason="the SDK adapter is tested in the core's environment (make test)")

import anthropic
import openai
from pydantic import BaseModel

from cacheprefix import Session, SharedPrefix
from cacheprefix.server import Fault, Reply, ToolCall
from cacheprefix_sdk import role as in_role
from cacheprefix_sdk import wrap
from tests.sdk.sdk_driver import MODELS, RULES, creator, final, make_client, streamer
from tests.transparent.compare import allowed_in
from tests.transparent.harness import Constructs, Stage

APIS = ("openai-chat", "openai-responses", "anthropic")
PARSING = APIS if hasattr(anthropic.resources.Messages, "parse") else APIS[:-1]
"""Anthropic's oldest release that is declared parses no answers outside of its beta."""
HANDBOOK = "The handbook. " + "Everyone keeps to these rules of the house and cites them by number. " * 120
TASK = "Compare the two proposals and say which one should be built first."


class Clients(Stage):
    """A real client of an SDK; calls of two roles with a common handbook."""

    rules = "openai-5.6"

    def __init__(self, mode, provider):
        super().__init__(mode, provider)
        self.api, self.later, self.made = "openai-chat", False, []

    def new_session(self, **options):
        return Session(SharedPrefix(system=HANDBOOK), **options)

    def client(self):
        """As it is, or wrapped."""
        made = make_client(self.api, self.provider, later=self.later)
        self.made.append(made)
        return made if self.unmodified else wrap(made, self.session())

    def role(self, name, conversation=""):
        """Calls inside are a role's."""
        return contextlib.nullcontext() if self.unmodified else in_role(name, conversation=conversation or name)

    def body(self, name, **more):
        """A call's arguments in the application's own layout."""
        system = f"You are the {name}.\n\n{HANDBOOK}"
        turn = {"role": "user", "content": TASK}
        model = {"model": MODELS[self.api], **more}
        if self.api == "anthropic":
            return {**model, "max_tokens": 100, "system": system, "messages": [turn]}
        if self.api == "openai-responses":
            return {**model, "instructions": system, "input": [turn]}
        return {**model, "messages": [{"role": "system", "content": system}, turn]}

    def tools(self):
        """One tool in the form of the API."""
        schema = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
        told = {"name": "look", "description": "Looks something up."}
        if self.api == "anthropic":
            return [{**told, "input_schema": schema}]
        if self.api == "openai-responses":
            return [{"type": "function", "strict": False, **told, "parameters": schema}]
        return [{"type": "function", "function": {**told, "parameters": schema}}]


CONSTRUCTS = Constructs("sdk", Clients)


def everywhere(run, apis=APIS):
    """Registers a construct for each API, synchronous and not; it is a coroutine function, see ``got``."""
    for api in apis:
        for later in (False, True):

            @CONSTRUCTS.add(f"{run.__name__}_{api}{'_async' if later else ''}", rules=RULES[api])
            def within(stage, api=api, later=later):
                stage.api, stage.later = api, later

                async def main():
                    try:
                        return await run(stage)
                    finally:
                        for client in stage.made:
                            await got(client.close())

                return asyncio.run(main())

    return run


async def got(value):
    """A value, or what an awaitable gives."""
    return await value if inspect.isawaitable(value) else value


async def listed(stream):
    """The events of a stream of either kind."""
    if hasattr(stream, "__aiter__"):
        return [event async for event in stream]
    return list(stream)


@contextlib.asynccontextmanager
async def entered(manager):
    """A context of either kind."""
    if hasattr(manager, "__aenter__"):
        async with manager as given:
            yield given
    else:
        with manager as given:
            yield given


@everywhere
async def create(stage):
    """Answers in text, and calls of tools."""
    stage.script(Reply(tool_calls=(ToolCall("look", {"at": "x"}, id="call_123456"),)), Reply("Two."), Reply("Three."))
    ask = creator(stage.client(), stage.api)
    gave = []
    for name, more in (("critic", {"tools": stage.tools()}), ("planner", {}), ("planner", {})):
        with stage.role(name, "one"):
            gave.append(await got(ask(**stage.body(name, **more))))
    return gave


@everywhere
async def create_streamed(stage):
    """Events as they come, with and without a call of a tool."""
    stage.script(Reply("One. " * 9), Reply("I look.", tool_calls=(ToolCall("look", {"at": "x"}, id="call_123456"),)))
    ask = creator(stage.client(), stage.api)
    gave = []
    for name, more in (("planner", {}), ("critic", {"tools": stage.tools()})):
        with stage.role(name):
            stream = await got(ask(**stage.body(name, stream=True, **more)))
            gave.append([type(stream), stream.response.status_code, await listed(stream)])
    return gave


@everywhere
async def stream_left_early(stage):
    """The connection is closed with the stream."""
    stage.script(Reply("One. " * 50))
    with stage.role("planner"):
        stream = await got(creator(stage.client(), stage.api)(**stage.body("planner", stream=True)))
        async with entered(stream) as events:
            first = await events.__anext__() if stage.later else next(events)
    return [first, stream.response.is_closed]


@everywhere
async def helper_that_streams(stage):
    """The SDK's own accumulating stream."""
    stage.script(Reply("One. " * 9))
    gave = []
    with stage.role("planner"):
        async with entered(streamer(stage.client(), stage.api)(**stage.body("planner"))) as stream:
            gave.append(await listed(stream))
            gave.append(await got(final(stream, stage.api)))
    return gave


class Verdict(BaseModel):
    """A form of answer."""

    built: str


@partial(everywhere, apis=PARSING)
async def parse(stage):
    """Answers in a form."""
    stage.script(Reply('{"built": "the first"}'))
    client = stage.client()
    with stage.role("planner"):
        if stage.api == "anthropic":
            return await got(client.messages.parse(**stage.body("planner"), output_format=Verdict))
        if stage.api == "openai-responses":
            return await got(client.responses.parse(**stage.body("planner"), text_format=Verdict))
        return await got(client.chat.completions.parse(**stage.body("planner"), response_format=Verdict))


@partial(everywhere, apis=("openai-responses",))
async def going_on_from_a_stored_answer(stage):
    """Two roles go on from one answer, whole and streamed: each answer names the one that it was asked after."""
    stage.script(Reply("One."), Reply("Two."), Reply("Three."))
    responses = stage.client().responses
    with stage.role("planner"):
        first = await got(responses.create(**stage.body("planner")))
    with stage.role("critic"):
        second = await got(responses.create(**stage.body("critic", previous_response_id=first.id)))
    with stage.role("planner"):
        asked = stage.body("planner", previous_response_id=first.id)
        third = await listed(await got(responses.create(stream=True, **asked)))
    named = [one.previous_response_id == first.id for one in (second, third[0].response, third[-1].response)]
    return [first, second, third, named]


@partial(everywhere, apis=("openai-responses",))
async def bytes_of_an_answer_that_goes_on(stage):
    """What a raw response holds, unparsed, of the answer that its request went on from."""
    stage.script(Reply("One."), Reply("Two."))
    responses = stage.client().responses
    with stage.role("planner"):
        first = await got(responses.create(**stage.body("planner")))
    with stage.role("critic"):
        asked = stage.body("critic", previous_response_id=first.id)
        raw = await got(responses.with_raw_response.create(**asked))
    return [raw.http_response.json()["previous_response_id"] == first.id, await got(raw.parse())]


def _resource(client, api):
    return {"anthropic": lambda: client.messages, "openai-chat": lambda: client.chat.completions}.get(
        api, lambda: client.responses
    )()


@everywhere
async def raw_responses(stage):
    """Headers, status, and what they parse to."""
    stage.script(Reply("One."), Reply("Two."))
    client = stage.client()
    gave = []
    with stage.role("planner"):
        raw = await got(_resource(client, stage.api).with_raw_response.create(**stage.body("planner")))
        kept = {name: value for name, value in raw.headers.items() if name not in ("date", "content-length")}
        gave += [type(raw), raw.status_code, raw.retries_taken, kept, await got(raw.parse())]
        manager = _resource(client, stage.api).with_streaming_response.create(**stage.body("planner"))
        async with entered(manager) as streamed:
            gave += [type(streamed), streamed.status_code, await got(streamed.parse())]
    return gave


@everywhere
async def errors(stage):
    """The SDK's own errors, and the client goes on."""
    stage.script(Reply(fault=Fault(status=400, message="no")), Reply(fault=Fault(status=500, message="later")), "Yes.")
    ask = creator(stage.client(), stage.api)
    gave = []
    with stage.role("planner"):
        for _ in range(3):
            try:
                gave.append(await got(ask(**stage.body("planner"))))
            except (openai.APIStatusError, anthropic.APIStatusError) as error:  # noqa: PERF203 - two of three
                gave.append([error, error.status_code, error.body])
    return gave


@everywhere
async def requests_that_ask_nothing(stage):
    """Without a message, and with nothing or white space to ask: what a provider refuses, it refuses."""
    stage.script(lambda _: Reply("Yes."))
    ask = creator(stage.client(), stage.api)
    gave = []
    blocks = [{"type": "input_text" if stage.api == "openai-responses" else "text", "text": " "}]
    for said in ([], [""], ["  \n"], ["", " "], [blocks], ["Go on."]):
        body = stage.body("planner")
        name = "input" if stage.api == "openai-responses" else "messages"
        lead = [one for one in body[name] if one["role"] == "system"]
        body[name] = [*lead, *({"role": "user", "content": one} for one in said)]
        with stage.role("planner"):
            try:
                gave.append(await got(ask(**body)))
            except (openai.APIStatusError, anthropic.APIStatusError) as error:
                gave.append([error, error.status_code, error.body])
    return gave


@partial(everywhere, apis=("openai-chat",))
async def refused_for_one_message(stage):
    """A result that answers no call, behind what a long role was answered: the provider names its place."""
    stage.script("So it is.")
    ask = creator(stage.client(), stage.api)
    body = stage.body("planner. " + "You plan what others build, and say why. " * 60)
    result = {"role": "tool", "tool_call_id": "none", "content": "x"}
    body["messages"] = [*body["messages"], {"role": "assistant", "content": "So it is."}, result]
    with stage.role("planner"):
        gave = [await got(ask(**{**body, "messages": body["messages"][:-2]}))]
        try:
            gave.append(await got(ask(**body)))
        except openai.APIStatusError as error:
            return [*gave, error, error.status_code, error.body]


@partial(everywhere, apis=("anthropic",))
async def prefill_that_a_model_refuses(stage):
    """The beginning of an answer, which Claude from 4.6 on takes of nobody."""
    stage.script("So it is.")
    body = stage.body("planner")
    body["messages"] = [*body["messages"], {"role": "assistant", "content": "It"}]
    with stage.role("planner"):
        try:
            return await got(creator(stage.client(), stage.api)(**body))
        except anthropic.BadRequestError as error:
            return [error, error.body]


@everywhere
async def copies_of_a_client(stage):
    """A copy of a client, with other options too, is one of the same kind."""
    stage.script(*["Yes."] * 3)
    client = stage.client()
    gave = [type(client).__name__, type(client).__module__, isinstance(client, (openai.OpenAI, openai.AsyncOpenAI))]
    gave += [str(client.base_url), client.max_retries, client.timeout, sorted(client.default_headers)]
    for other in (client.copy(), client.with_options(timeout=9), copy.copy(client)):
        with stage.role("planner"):
            gave.append(await got(creator(other, stage.api)(**stage.body("planner"))))
    for one in (client, _resource(client, stage.api)):
        for make in (pickle.dumps, copy.deepcopy):
            try:
                gave.append(type(make(one)))
            except Exception as error:  # noqa: PERF203 - which of them can be, is what is compared
                gave.append([type(error), str(error)])
    return gave


@everywhere
async def calls_of_nobody(stage):
    """Outside of a role, and of what is no call of a model."""
    stage.script("Yes.")
    client = stage.client()
    gave = [await got(creator(client, stage.api)(**stage.body("planner")))]
    try:
        gave.append(await got(client.models.retrieve("none")))
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        gave.append(type(error))
    with stage.role("critic"):
        gave.append(await got(creator(client, stage.api)(**stage.body("critic"))))
    return gave


@pytest.mark.parametrize("mode", ["observed", "forked"])
@pytest.mark.parametrize("name", CONSTRUCTS.names)
def test_the_application_sees_the_same(name, mode):
    """Without us, observed and forked, but for what is listed."""
    CONSTRUCTS.check(name, mode)


@pytest.mark.parametrize("entry", allowed_in("sdk"), ids=str)
def test_each_listed_difference_is_there(entry):
    """What no construct shows any more is taken out of the list."""
    CONSTRUCTS.check_used(entry)

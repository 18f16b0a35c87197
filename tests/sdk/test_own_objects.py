"""What the SDKs answered, given back to them as it is, and histories that Anthropic keeps."""

from __future__ import annotations

import asyncio
import base64
import inspect
from importlib.util import find_spec

import anthropic
import pytest
from sdk_driver import MODELS, make_client

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, SimulatedProvider, ToolCall
from cacheprefix_sdk import role, wrap

HANDBOOK = "The handbook says that every statement needs a source. " * 200
AT = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
LOOK = {"name": "look", "description": "Looks it up.", "input_schema": AT}
ROLES = ("planner", "critic")
CALLS = 3


def _script(request):
    look = ToolCall("look", {"at": str(request.rounds)})
    return Reply("I look.", (look,)) if request.rounds < CALLS else Reply("So.")


@pytest.fixture
def claude():
    """Anthropic's side: a few calls of a tool, then words."""
    with SimulatedProvider("anthropic", _script) as provider:
        yield provider


def session(**options):
    """A session with the handbook, which counts as the provider does."""
    return Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE), gate=None, **options)


def _body(name, messages):
    asked = {"model": MODELS["anthropic"], "max_tokens": 100, "messages": messages}
    return {**asked, "system": f"You are the {name}.\n\n{HANDBOOK}"}


async def _talk(create, name):
    """A loop as Anthropic's own pages write it: the answer's content is the next request's."""
    messages = [{"role": "user", "content": f"Go on, {name}."}]
    while True:
        answer = create(**_body(name, messages), tools=[LOOK])
        answer = await answer if inspect.isawaitable(answer) else answer
        used = [block for block in answer.content if block.type == "tool_use"]
        if not used:
            return
        found = [{"type": "tool_result", "tool_use_id": one.id, "content": "Found."} for one in used]
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": found}]


def _played(client, name, way):
    async def main():
        with role(name, conversation=name):
            await _talk(client.beta.messages.create if way == "beta" else client.messages.create, name)

    asyncio.run(main())


@pytest.mark.parametrize("later", [False, True], ids=["", "async"])
@pytest.mark.parametrize("way", ["messages", "beta"])
def test_answers_given_back_as_the_sdks_own_objects_are_laid_out(claude, way, later):
    """Each request of a tool loop is a fork, and counted, whatever its messages hold."""
    own = session()
    for name in ROLES:
        _played(wrap(make_client("anthropic", claude, later=later), own), name, way)
    assert [call.layout for call in own.calls] == ["fork"] * len(claude.requests) == ["fork"] * 2 * (CALLS + 1)
    assert not own.failures


@pytest.mark.parametrize("mode", ["observe", "fork"])
def test_outside_a_role_such_requests_are_those_of_the_client(claude, mode):
    """Byte for byte, whatever becomes of them on the way: the SDK's own objects, sequences, what is left out."""
    client = make_client("anthropic", claude)
    said = client.messages.create(**_body("planner", [{"role": "user", "content": "Go on."}]), tools=[LOOK])
    given = [{"role": "assistant", "content": said.content}]
    found = {"type": "tool_result", "tool_use_id": said.content[1].id, "content": ({"type": "text", "text": "Found."},)}
    claude.reset()
    for asked in (client, wrap(client, session(mode=mode))):
        history = ({"role": "user", "content": "Go on."}, *given, {"role": "user", "content": [found]})
        asked.messages.create(**_body("planner", iter(history)), tools=[LOOK], stop_sequences=anthropic.NOT_GIVEN)
    assert claude.requests[0].body == claude.requests[1].body


def _tool_runner(client, name, **options):
    @anthropic.beta_tool
    def look(at: str) -> str:
        """Look it up."""
        return f"Found at {at}."

    with role(name, conversation=name):
        body = _body(name, [{"role": "user", "content": f"Go on, {name}."}])
        return client.beta.messages.tool_runner(**body, tools=[look], **options).until_done()


def test_a_tool_runner_with_its_whole_history_is_one_conversation_of_forks(claude):
    """It costs less than half of what it costs unmodified."""
    pytest.importorskip("anthropic.lib.threads", reason="this release has no message threads to turn off")
    own = session()
    for name in ROLES:
        _tool_runner(wrap(make_client("anthropic", claude), own), name, thread=False)
    assert [call.layout for call in own.calls] == ["fork"] * 2 * (CALLS + 1)
    assert own.report().total.ratio < 0.5


def test_a_message_thread_keeps_its_layout(claude):
    """What goes on from a history that Anthropic keeps goes out as it was asked, and no call of a tool is refused."""
    pytest.importorskip("anthropic.lib.threads", reason="this release has no message threads")
    client, own = make_client("anthropic", claude), session()
    for name in ROLES:
        _tool_runner(client, name)
    plain = [request.body for request in claude.requests]
    claude.reset()
    for name in ROLES:
        _tool_runner(wrap(client, own), name)
    sent = [request.body for request in claude.requests]
    assert len(sent) == len(plain)
    assert [b'"thread":{"type":"continue"' in one for one in sent] == [False, True, True, True] * 2
    assert {str(why) for call in own.calls for why in call.reasons} == {"kept_by_provider"}
    # Only ids of messages differ, which the provider makes of its count of them.
    assert [len(one) for one in sent] == [len(one) for one in plain]


def test_a_message_thread_is_told_what_the_session_alone_knows_with_its_first_request(claude):
    """The provider refuses system text behind it."""
    pytest.importorskip("anthropic.lib.threads", reason="this release has no message threads")
    rule = "Nobody answers before noon."
    own = Session(SharedPrefix(system=HANDBOOK, context={"noon": rule}), caching=Caching(counter=ESTIMATE), gate=None)
    _tool_runner(wrap(make_client("anthropic", claude), own), "planner")
    assert [rule in str(request.json.get("system")) for request in claude.requests] == [True, False, False, False]
    assert not own.failures


@pytest.mark.parametrize("mode", ["observe", "fork"])
@pytest.mark.parametrize("later", [False, True], ids=["", "async"])
@pytest.mark.parametrize("opened", [False, True], ids=["path", "file"])
def test_an_image_given_as_a_path_or_a_file_goes_out_as_without_us(claude, tmp_path, opened, later, mode):
    """Only the SDK reads it, once: the request keeps the application's own layout, and a failure names that."""
    path = tmp_path / "seal.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"seal" * 20)

    async def ask(client):
        with path.open("rb") as file:
            source = {"type": "base64", "media_type": "image/png", "data": file if opened else path}
            said = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
            answer = client.messages.create(**_body("critic", [{"role": "user", "content": said}]))
            if inspect.isawaitable(answer):
                await answer

    held = Session(SharedPrefix(system=HANDBOOK), mode=mode)

    async def main():
        client = make_client("anthropic", claude, later=later)
        with role("critic"):
            await ask(client)
            await ask(wrap(client, held))

    asyncio.run(main())
    plain, ours = (request.body for request in claude.requests)
    if find_spec("anthropic._utils._transform"):
        # A release of before 1.0 has read it when we see the request, which is one like any other then.
        assert base64.b64encode(path.read_bytes()) in ours
        assert not held.failures
    else:
        assert ours == plain
        assert held.failures

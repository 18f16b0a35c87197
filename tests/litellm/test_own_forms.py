"""What LiteLLM takes and gives in forms of its own: the application asks and reads in them as without us."""

from __future__ import annotations

import asyncio
import gc

import litellm
import pytest
from litellm_driver import HANDBOOK, MODELS, messages, place
from pydantic import BaseModel

from cacheprefix import Session, SharedPrefix
from cacheprefix_litellm import install, role, wrap

# What of LiteLLM's own an asynchronous stream that cannot be read so had begun, goes with it.
pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]
MODE = pytest.mark.parametrize("mode", ["observe", "fork"])
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


class Tool(BaseModel):
    """A tool as an object."""

    type: str = "function"
    function: dict


def to(provider):
    """Where calls go."""
    return {"model": MODELS["openai"], **place("openai", provider)}


async def awaited(stream):
    """The chunks of a stream that is read with ``await``, asked for with it or without."""
    return [chunk async for chunk in stream]


async def closed(stream):
    """A first chunk, and the stream closed."""
    first = await anext(stream)
    await stream.aclose()
    return [first]


async def listed(stream):
    """What comes of an asynchronous stream that is read without ``await``."""
    with pytest.raises(Exception) as raised:
        list(stream)
    return raised.type


@MODE
@pytest.mark.parametrize(("name", "read"), [("completion", awaited), ("completion", closed), ("acompletion", listed)])
def test_a_stream_is_read_and_closed_in_every_way_that_litellms_can(fresh, mode, name, read):
    """One that was asked for without ``await`` may be read with it; the other way round it is LiteLLM's own error."""
    provider, session = fresh("openai"), Session(SharedPrefix(system=HANDBOOK), mode=mode)

    async def asked(ask):
        with role("critic"):
            stream = ask(messages=messages("critic"), stream=True, **to(provider))
        stream = await stream if asyncio.iscoroutine(stream) else stream
        return await read(stream)

    own = getattr(litellm, name)
    plain, seen = (asyncio.run(asked(each)) for each in (own, wrap(own, session)))
    gc.collect()
    if read is listed:
        assert seen is plain
    else:
        assert [_shape(chunk) for chunk in seen] == [_shape(chunk) for chunk in plain]
        assert [call.layout for call in session.calls] == ["fork" if mode == "fork" else "observed"]
    assert session.failures == {}


def _shape(chunk):
    (choice,) = chunk.choices
    return type(chunk), choice.finish_reason, bool(choice.delta.content)


@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211")
def test_a_stream_that_litellm_puts_together_is_an_answer_as_without_us(fresh):
    """``complete_response``: it had two fields of a stream, for the usage that we asked for."""
    provider, session = fresh("openai"), Session(SharedPrefix(system=HANDBOOK))
    shown = []
    for ask in (litellm.completion, wrap(litellm.completion, session)):
        with role("critic"):
            answer = ask(messages=messages("critic"), stream=True, complete_response=True, **to(provider))
        shown.append((type(answer), sorted(vars(answer)), sorted(answer.model_extra or ())))
    assert shown[0] == shown[1]
    assert session.failures == {}


@pytest.mark.parametrize("handed", ["", "image"])
def test_a_model_that_takes_no_system_message_is_asked_as_without_us(fresh, handed):
    """LiteLLM puts the system text before the next message's, as texts: on a marked one, which is a list, it failed."""
    provider, session = fresh("openai"), Session(SharedPrefix(system=HANDBOOK))
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    answer = {"role": "assistant", "content": "It is the third."}
    later = [answer, {"role": "user", "content": [{"type": "text", "text": "And this?"}, picture]}] if handed else []
    for ask in (litellm.completion, wrap(litellm.completion, session)):
        for name in ("planner", "critic"):
            with role(name):
                said = [*messages(name), *later]
                assert ask(messages=said, supports_system_message=False, **to(provider)).choices
    bodies = [record.json for record in provider.requests]
    assert all({one["role"] for one in body["messages"]} <= {"user", "assistant"} for body in bodies)
    for said in (HANDBOOK.strip(), "How do we find the slow step?"):
        assert [str(body).count(said) for body in bodies] == [1] * 4
    assert [f"You are the {name}." in str(body) for body, name in zip(bodies, ("planner", "critic") * 2, strict=True)]
    assert {call.layout for call in session.calls} == {"fork"}
    # What has no marks is cached by the provider's own rules.
    assert not any("prompt_cache_options" in body for body in bodies)
    assert session.failures == {}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", ["completion", "acompletion"])
@pytest.mark.parametrize("made_up", [{"mock_response": "Yes."}, {"mock_response": ValueError("no")}], ids=str)
def test_what_litellm_makes_up_is_no_call(fresh, name, stream, made_up):
    """No provider has read it: the next request was said to have been missed there."""
    provider, session = fresh("openai"), Session(SharedPrefix(system=HANDBOOK))
    ask = wrap(getattr(litellm, name), session)

    def asked(**options):
        answer = ask(messages=messages("critic"), **to(provider), **options)
        return asyncio.run(answer) if name == "acompletion" else answer

    with role("critic", conversation="one"):
        if isinstance(made_up["mock_response"], str):
            assert asked(stream=stream, **made_up)
        else:
            with pytest.raises(Exception, match="no"):
                asked(stream=stream, **made_up)
        gc.collect()
        assert (session.calls, session.report().unanswered, len(provider.requests)) == ((), 0, 0)
        asked()
    assert [call.verdict.cause for call in session.calls] == ["cold_start"]


def test_a_call_of_several_deployments_is_one_for_each(fresh):
    """LiteLLM calls itself for them; the call around them was counted and laid out as well."""
    provider, session = fresh("openai"), Session(SharedPrefix(system=HANDBOOK))
    group = {"model_name": "openai/gpt-5.6", "litellm_params": to(provider)}
    with install(session, role="critic"):
        litellm.completion("openai/gpt-5.6", messages("critic"), model_list=[group])
    assert [call.layout for call in session.calls] == ["fork"]
    assert len(provider.requests) == 1
    assert session.failures == {}


def test_tools_that_are_objects_are_shared(fresh):
    """LiteLLM writes them; such a request was neither measured nor a fork."""
    provider, session = fresh("openai"), Session(SharedPrefix(system=HANDBOOK))
    for ask in (litellm.completion, wrap(litellm.completion, session)):
        with role("critic"):
            ask(messages=messages("critic"), tools=[Tool(**TOOL)], **to(provider))
    assert [record.json["tools"] for record in provider.requests] == [[TOOL]] * 2
    assert [call.layout for call in session.calls] == ["fork"]
    assert session.failures == {}

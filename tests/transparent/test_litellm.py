"""LiteLLM's functions and routers, unmodified, observed and forked."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import inspect
import pickle
import warnings

import pytest

pytest.importorskip("cacheprefix_litellm", reason="this adapter is tested in its own environment (make test-litellm)")
from tests.litellm.conftest import OF_LITELLM  # isort: skip - it sets what LiteLLM reads when it is loaded

import litellm
import openai
from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER
from litellm.router import Router
from pydantic import BaseModel

from cacheprefix import Session, SharedPrefix
from cacheprefix.server import Fault, Reply, ToolCall
from cacheprefix_litellm import install, role, wrap
from tests.collecting import by_hand, collected  # noqa: F401 - fixtures
from tests.transparent.compare import allowed_in
from tests.transparent.harness import ApiStage, Constructs

pytestmark = [pytest.mark.filterwarnings(one) for one in OF_LITELLM]

RULES = {"openai": "openai-5.6", "anthropic": "anthropic"}
MODELS = {"openai": "openai/gpt-5.6", "anthropic": "anthropic/claude-sonnet-4-6"}
HANDBOOK = "The handbook. " + "Everyone keeps to these rules of the house and cites them by number. " * 120
TASK = "Compare the two proposals and say which one should be built first."
PLACE = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
LOOK = {"type": "function", "function": {"name": "look", "description": "Looks it up.", "parameters": PLACE}}


def _untimed(fields):
    timed = ("_ms", "_time", "headers")
    return {name: value for name, value in fields.items() if name == "additional_headers" or not name.endswith(timed)}


def _shown(answer):
    return [_untimed({**vars(answer), **(answer.model_extra or {})}), sorted(answer.model_fields_set)]


SHAPES = {"litellm.types.utils.ModelResponse": _shown}


class Calls(ApiStage):
    """LiteLLM's functions; calls of roles whose system messages end with a common handbook."""

    apis = RULES
    once = ("using the `ReadOnly` qualifier",)
    opaque = ("litellm.litellm_core_utils.litellm_logging", "openai.", "anthropic.")
    shapes = SHAPES

    async def aclose(self):
        # Older releases keep a queue of an event loop that is gone.
        with contextlib.suppress(RuntimeError):
            await GLOBAL_LOGGING_WORKER.flush()
            await GLOBAL_LOGGING_WORKER.stop()

    def new_session(self, **options):
        return Session(SharedPrefix(system=HANDBOOK), **options)

    def asking(self, target):
        """As it is, or wrapped."""
        return target if self.unmodified else wrap(target, self.session())

    def role(self, name):
        """Calls inside are a role's."""
        return contextlib.nullcontext() if self.unmodified else role(name, conversation=name)

    @property
    def place(self):
        """Where calls go."""
        base = self.provider.anthropic_base_url if self.api == "anthropic" else self.provider.openai_base_url
        return {"model": MODELS[self.api], "api_base": base, "api_key": "k", "max_retries": 0}

    def said(self, name, *more):
        """A role's messages."""
        first = {"role": "system", "content": f"You are the {name}.\n\n{HANDBOOK}"}
        return [first, {"role": "user", "content": TASK}, *more]

    def router(self, **options):
        """A router with one group, and one that it falls back to."""
        groups = [{"model_name": name, "litellm_params": self.place} for name in ("team", "spare")]
        return self.asking(Router(model_list=groups, num_retries=0, **options))


CONSTRUCTS = Constructs("litellm", Calls)
construct, everywhere = CONSTRUCTS.later, CONSTRUCTS.everywhere
CALL = Reply("I look.", tool_calls=(ToolCall("look", {"at": "x"}, id="call_look_123456"),))


def told(answer):
    """An answer, and what LiteLLM keeps beside it for whoever knows; a duration is no part of it."""
    hidden = _untimed(answer._hidden_params)
    # Older releases keep there what was sent.
    hidden.pop("optional_params", None)
    hidden["additional_headers"] = sorted(hidden.get("additional_headers") or {})
    return [answer, hidden]


async def answered(stage, ask, *names, **options):
    """Answers to roles one after the other."""
    gave = []
    for name in names:
        with stage.role(name):
            answer = ask(messages=stage.said(name), **{**stage.place, **options})
            gave.append(told(await answer if asyncio.iscoroutine(answer) else answer))
    return gave


@everywhere
async def completion(stage):
    """Answers in text and with a call of a tool, which a role's history goes on from."""
    stage.script("One.", CALL, "Three.")
    ask = stage.asking(litellm.completion)
    gave = await answered(stage, ask, "planner")
    with stage.role("critic"):
        called = ask(messages=stage.said("critic"), tools=[LOOK], **stage.place)
        message = called.choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Found."}
        gave += [told(called), told(ask(messages=stage.said("critic", message, result), tools=[LOOK], **stage.place))]
    # Its module is ``litellm`` from the first ``wrap`` on, where pickle finds it.
    return [gave, ask.__name__, ask.__module__.partition(".")[0]]


@everywhere
async def acompletion(stage):
    """Roles that ask at the same time, by the asynchronous function."""
    stage.script(lambda request: Reply("Planned." if "the planner" in request.text else "No."))
    ask = stage.asking(litellm.acompletion)
    return await asyncio.gather(*(answered(stage, ask, name) for name in ("planner", "critic")))


@everywhere
async def streamed(stage):
    """Chunks of both functions as they come, and what LiteLLM builds of them."""
    stage.script("One. " * 9, CALL, "Three. " * 9)
    gave = []
    usage = {"stream_options": {"include_usage": True}}
    for name, more in (("planner", {}), ("critic", {"tools": [LOOK]}), ("planner", usage)):
        with stage.role(name):
            stream = stage.asking(litellm.completion)(messages=stage.said(name), stream=True, **stage.place, **more)
            chunks = list(stream)
        built = litellm.stream_chunk_builder(chunks, messages=stage.said(name))
        gave.append([type(stream), chunks, stream.chunks, built])
    with stage.role("planner"):
        stream = await stage.asking(litellm.acompletion)(messages=stage.said("planner"), stream=True, **stage.place)
    return [gave, [chunk async for chunk in stream], stream.chunks]


@construct()
async def stream_left_early(stage):
    """Closed after its first chunk."""
    stage.script("One. " * 50)
    with stage.role("planner"):
        stream = await stage.asking(litellm.acompletion)(messages=stage.said("planner"), stream=True, **stage.place)
        first = await anext(stream)
        await stream.aclose()
    return [first, type(stream)]


class Verdict(BaseModel):
    """A form of answer."""

    built: str


@everywhere
async def answer_in_a_form(stage):
    """By a class."""
    stage.script('{"built": "the first"}')
    return await answered(stage, stage.asking(litellm.completion), "planner", response_format=Verdict)


@everywhere
async def errors(stage):
    """LiteLLM's own exceptions, and the next call is answered."""
    stage.script(Reply(fault=Fault(status=400, message="no")), Reply(fault=Fault(status=500, message="later")), "Yes.")
    gave = []
    for _ in range(3):
        try:
            gave.append(await answered(stage, stage.asking(litellm.completion), "planner"))
        except openai.APIStatusError as error:  # noqa: PERF203 - two of three
            gave.append([error, error.status_code, error.llm_provider, error.model])
    return gave


@everywhere
async def requests_that_ask_nothing(stage):
    """A system message alone, and with nothing or white space to ask: Anthropic refuses them, and OpenAI does not."""
    stage.script(lambda _: Reply("Yes."))
    gave = []
    for said in ([], [""], ["  \n"], ["", " "]):
        with stage.role("planner"):
            messages = [*stage.said("planner")[:1], *({"role": "user", "content": one} for one in said)]
            for ask in (litellm.completion, litellm.acompletion):
                try:
                    answer = stage.asking(ask)(messages=messages, **stage.place)
                    gave.append(told(await answer if asyncio.iscoroutine(answer) else answer))
                except openai.APIError as error:  # noqa: PERF203 - some of them
                    gave.append([error, error.llm_provider, error.model])
    return gave


@construct()
async def refused_for_one_message(stage):
    """A result that answers no call, behind what a long role was answered: the provider names its place."""
    stage.script("So it is.")
    name = "planner. " + "You plan what others build, and say why. " * 60
    more = {"role": "assistant", "content": "So it is."}, {"role": "tool", "tool_call_id": "none", "content": "x"}
    with stage.role("planner"):
        gave = [told(stage.asking(litellm.completion)(messages=stage.said(name), **stage.place))]
        try:
            stage.asking(litellm.completion)(messages=stage.said(name, *more), **stage.place)
        except openai.APIStatusError as error:
            gave += [error, error.status_code]
    return gave


@construct(api="anthropic")
async def prefill_that_a_model_refuses(stage):
    """The beginning of an answer, which Claude from 4.6 on takes of nobody."""
    stage.script("So it is.")
    try:
        with stage.role("planner"):
            messages = stage.said("planner", {"role": "assistant", "content": "It"})
            return told(stage.asking(litellm.completion)(messages=messages, **stage.place))
    except openai.APIStatusError as error:
        return [error, error.status_code]


@everywhere
async def router(stage):
    """Both functions of a router, streamed too; it is the application's own object."""
    stage.script("One.", "Two.", "Three. " * 9)
    one = stage.router()
    gave = await answered(stage, one.completion, "planner", model="team")
    gave += await answered(stage, one.acompletion, "critic", model="team")
    with stage.role("planner"):
        stream = await one.acompletion("team", stage.said("planner"), stream=True)
        chunks = [chunk async for chunk in stream]
    return [gave, type(stream), chunks, isinstance(one, Router), type(one).__name__, one.get_model_names()]


@construct()
async def router_looked_at(stage):
    """Copied, pickled, and what its methods are, those for one attempt too, where this release has them."""
    stage.script("One.")
    one = stage.router()
    gave = await answered(stage, one.completion, "planner", model="team")
    for each in (one, one.completion):
        for make in (pickle.dumps, copy.copy, copy.deepcopy):
            try:
                gave.append(type(make(each)).__name__)
            except Exception as error:  # noqa: PERF203 - which of them can be, is what is compared
                gave.append([type(error), str(error)])
    for name in ("completion", "acompletion", "_completion", "_acompletion"):
        held = getattr(one, name, None)
        gave.append([type(held), inspect.ismethod(held), inspect.iscoroutinefunction(held)])
        bound = getattr(held, "__self__", None) is one
        gave.append([bound, getattr(held, "__qualname__", ""), str(inspect.signature(held)) if held else ""])
    return gave


@construct()
async def router_that_falls_back(stage):
    """The first group fails, the second answers."""
    stage.script(Reply(fault=Fault(status=500, message="down")), "From the spare one.")
    one = stage.router(fallbacks=[{"team": ["spare"]}])
    return await answered(stage, one.acompletion, "planner", model="team")


@construct()
async def fallbacks_of_a_call(stage):
    """Without a router."""
    stage.script(Reply(fault=Fault(status=500, message="down")), "From the other one.")
    more = {"fallbacks": [{**stage.place, "model": "openai/gpt-4.1"}]}
    return await answered(stage, stage.asking(litellm.acompletion), "planner", **more)


@construct()
async def callbacks(stage):
    """What a callback of the application's is told, its result and usage; times are no part of it."""

    class Noting(litellm.integrations.custom_logger.CustomLogger):
        def __init__(self):
            super().__init__()
            self.seen = []

        async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
            names = ("model", "messages", "input", "stream_options", "optional_params")
            said = {name: kwargs.get(name) for name in names}
            self.seen.append({**said, "answer": response_obj})

    noting = Noting()
    litellm.callbacks.append(noting)
    try:
        stage.script("One.", "Two.")
        await answered(stage, stage.asking(litellm.acompletion), "planner")
        with stage.role("critic"):
            stream = await stage.asking(litellm.acompletion)(messages=stage.said("critic"), stream=True, **stage.place)
            assert [chunk async for chunk in stream]
        for _ in range(300):
            if len(noting.seen) == 2:
                break
            await asyncio.sleep(0.01)
    finally:
        for each in (litellm.callbacks, litellm.success_callback, litellm._async_success_callback):
            if noting in each:
                each.remove(noting)
    return noting.seen


@construct()
async def callback_that_edits(stage):
    """A callback that writes into the messages it is told, some of them the application's own; the next call too."""

    class Marking(litellm.integrations.custom_logger.CustomLogger):
        def log_pre_api_call(self, model, messages, kwargs):
            for one in messages:
                if isinstance(one["content"], str):
                    one["content"] = one["content"].replace("the first", "the very first")

    marking = Marking()
    litellm.callbacks.append(marking)
    try:
        stage.script("So it is.", "As I said.")
        messages, gave = stage.said("planner", {"role": "user", "content": "Why the first?"}), []
        with stage.role("planner"):
            for said in ("Not the first?", "Thanks."):
                gave.append(told(stage.asking(litellm.completion)(messages=messages, **stage.place)))
                messages += [{"role": "assistant", "content": "So it is."}, {"role": "user", "content": said}]
        return [gave, messages]
    finally:
        ways = ("input_callback", "success_callback", "failure_callback")
        lists = [vars(litellm)[name] for way in ways for name in (way, f"_async_{way}")]
        for each in (litellm.callbacks, *lists):
            if marking in each:
                each.remove(marking)


@construct()
async def library_that_calls_by_its_module(stage):
    """Inside ``install`` and behind it."""
    stage.script("One.", "Two.")
    gave = []
    with contextlib.nullcontext() if stage.unmodified else install(stage.session(), role="planner"):
        gave.append(told(litellm.completion(messages=stage.said("planner"), **stage.place)))
    return [*gave, told(litellm.completion(messages=stage.said("planner"), **stage.place))]


@pytest.fixture(scope="module", autouse=True)
def left_behind():
    """Connections that LiteLLM leaves open end here; the harness keeps them from the garbage collector."""
    yield
    gc.unfreeze()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize("mode", ["observed", "forked"])
@pytest.mark.parametrize("name", CONSTRUCTS.names)
def test_the_application_sees_the_same(name, mode):
    """Without us, observed and forked, but for what is listed."""
    CONSTRUCTS.check(name, mode)


@pytest.mark.parametrize("entry", allowed_in("litellm"), ids=str)
def test_each_listed_difference_is_there(entry):
    """What no construct shows any more is taken out of the list."""
    CONSTRUCTS.check_used(entry)

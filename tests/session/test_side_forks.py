"""Side forks over real SDK clients: every field of a policy has its effect, and the prefix stays the parent's."""

import asyncio

import anthropic
import openai
import pytest

from cacheprefix import AbortHandle, Caching, ForkPolicy, Session, SharedPrefix, ToolResultBudget
from cacheprefix.adapter import Request
from cacheprefix.errors import AbortedError, UnsafeForkError
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, SimulatedProvider, ToolCall
from cacheprefix.wire import decode

SYSTEM = "The handbook says that every statement needs a source. " * 90
KINDS = ["openai-chat", "openai-responses", "anthropic"]
RULES = {"openai-chat": "openai-5.6", "openai-responses": "openai-5.6", "anthropic": "anthropic"}


def script(request):
    """Call the tool as long as the fork's question asks for it and no result has come."""
    if "use the tool" in request.text and request.rounds < 2 and request.asked.tools:
        return Reply(tool_calls=(ToolCall("look", {"n": request.rounds}),))
    return Reply(text="the answer")


class Client:
    def __init__(self, kind, provider):
        self.kind = kind
        self.provider = provider
        self.openai = openai.OpenAI(base_url=provider.openai_base_url, api_key="k", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=provider.anthropic_base_url, api_key="k", max_retries=0)

    def send(self, body):
        if self.kind == "openai-chat":
            return self.openai.chat.completions.create(**body)
        if self.kind == "openai-responses":
            return self.openai.responses.create(**body)
        return self.anthropic.messages.create(**body)

    def parent(self):
        """A request of the parent: history, one tool, settings."""
        history = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        if self.kind == "anthropic":
            tool = {"name": "look", "description": "Look.", "input_schema": schema}
            return {
                "model": "claude-opus-4-1",
                "max_tokens": 500,
                "system": SYSTEM,
                "tools": [tool],
                "messages": history,
            }
        if self.kind == "openai-responses":
            tool = {"type": "function", "name": "look", "description": "Look.", "parameters": schema, "strict": False}
            return {"model": "gpt-5.6", "instructions": SYSTEM, "tools": [tool], "input": history}
        tool = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": schema}}
        return {"model": "gpt-5.6", "tools": [tool], "messages": [{"role": "system", "content": SYSTEM}, *history]}

    def bodies(self):
        return [record.json for record in self.provider.requests]

    def prompts(self):
        return [decode(record.body, self.kind) for record in self.provider.requests]


@pytest.fixture(params=KINDS)
def client(request):
    """Both SDK clients and the provider they talk to."""
    with SimulatedProvider(rules=RULES[request.param], script=script) as provider:
        made = Client(request.param, provider)
        yield made
        made.openai.close()
        made.anthropic.close()


def session(**options):
    """A session that counts as the provider does."""
    return Session(SharedPrefix(system=SYSTEM), caching=Caching(counter=ESTIMATE), **options)


def ask(client, text="a side question", on=None, **options):
    """Ask a side question of the parent."""
    return (on or session()).fork(text, body=client.parent(), api=client.kind, send=client.send, **options)


def test_a_fork_extends_exactly_its_parents_sections_and_reads_them(client):
    """Parent first, then the fork: identical sections, and the provider reads them."""
    client.send(client.parent())
    parent = client.prompts()[0]
    marked = session()
    first = ask(client, on=marked, role="one")
    second = ask(client, "another", on=marked, role="two")
    for prompt in client.prompts()[1:]:
        assert prompt.sections[: len(parent.sections)] == parent.sections
        assert len(prompt.sections) == len(parent.sections) + 1
    # OpenAI takes no breakpoint on an assistant's text, so the parent's last words may be left out.
    assert client.provider.requests[2].outcome.read_tokens >= parent.tokens - parent.sections[-1].tokens
    assert (first.text, second.text) == ("the answer", "the answer")
    assert first.compatibility.level in ("safe", "warns")


def test_a_fork_beside_a_loop_reads_the_newest_tool_output_too(client):
    """Its mark stands on the output itself, so that none of the loop's rounds is paid for again."""
    made, body = session(), client.parent()
    for number in range(2):
        field = "input" if client.kind == "openai-responses" else "messages"
        result = f"row {number} says that every statement needs a source. " * 60
        body = {**body, field: [*body[field], *rounds(client.kind, f"c{number}", result)]}
        with made.adapter.begin(Request(body, client.kind, conversation="loop", continues=True)) as turn:
            turn.finish(client.send(dict(turn.body)).usage)
    ask = {"policy": ForkPolicy.ephemeral(), "conversation": "loop"}
    made.fork("how far are you?", body=body, api=client.kind, send=client.send, **ask)
    parent = decode(body, client.kind)
    assert client.provider.requests[-1].outcome.read_tokens == parent.tokens


def rounds(kind, name, result):
    """One call of the tool and its result, as each API has them."""
    if kind == "openai-responses":
        call = {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"}
        return [call, {"type": "function_call_output", "call_id": name, "output": result}]
    if kind == "openai-chat":
        call = {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        return [{"role": "user", "content": "go on"}, said, {"role": "tool", "tool_call_id": name, "content": result}]
    said = {"role": "assistant", "content": [{"type": "tool_use", "id": name, "name": "look", "input": {}}]}
    told = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": name, "content": result}]}
    return [{"role": "user", "content": "go on"}, said, told]


def test_the_tool_loop_runs_with_results_and_errors_back_to_the_model(client):
    """Values go back as text, exceptions as error results, and no executor is an error result too."""
    seen = []

    def executor(call, name, arguments):
        seen.append((name, arguments))
        if arguments["n"] == 1:
            raise ValueError("no such place")
        return {"found": arguments["n"]}

    done = ask(client, "use the tool", tool_executor=executor)
    assert seen == [("look", {"n": 0}), ("look", {"n": 1})]
    assert (done.turns, done.stopped, done.text) == (3, "done", "the answer")
    texts = "\n".join(s.text for s in client.prompts()[-1].sections)
    assert "found" in texts
    assert "error: ValueError: no such place" in texts
    without = ask(client, "use the tool")
    assert without.text == "the answer"
    assert "has no tool executor" in "\n".join(s.text for s in client.prompts()[-1].sections)


def test_the_result_says_what_all_its_requests_used(client):
    """By the provider's counts, the tool loop included."""
    made = session()
    result = ask(client, "use the tool", on=made, tool_executor=lambda *_: "seen")
    own = [record.outcome for record in client.provider.requests]
    assert result.usage.calls == result.turns == len(own) == 3
    assert result.usage.input_tokens == sum(one.input_tokens for one in own)
    assert result.usage.cache_read_tokens == sum(one.read_tokens for one in own) > 0
    assert result.usage.output_tokens == sum(call.usage.output_tokens for call in made.calls)


def test_max_turns_ends_the_loop_with_the_last_reply(client):
    """One turn: the tool is asked for and not run."""
    done = ask(client, "use the tool", policy=ForkPolicy(max_turns=1), tool_executor=lambda *a: "x")
    assert (done.turns, done.stopped) == (1, "max_turns")
    assert len(client.provider.requests) == 1


def test_max_output_tokens_goes_out_in_the_apis_own_field(client):
    """And leaves everything else of the parent's body as it was."""
    ask(client, policy=ForkPolicy(max_output_tokens=77))
    body = client.bodies()[0]
    field = {"openai-chat": "max_completion_tokens", "openai-responses": "max_output_tokens", "anthropic": "max_tokens"}
    assert body[field[client.kind]] == 77


@pytest.mark.parametrize("safe", [True, False])
def test_an_unsafe_fork_raises_before_any_call_unless_it_is_meant(client, safe):
    """Another model cannot read the prefix; ``rewrite`` says that this is intended."""
    policy = ForkPolicy() if safe else ForkPolicy.rewrite()
    overrides = {"model": "claude-opus-4-8" if client.kind == "anthropic" else "gpt-6"}
    if safe:
        with pytest.raises(UnsafeForkError, match="another model"):
            ask(client, policy=policy, overrides=overrides)
        assert not client.provider.requests
    else:
        assert ask(client, policy=policy, overrides=overrides).compatibility.level == "unsafe"
        assert client.bodies()[0]["model"] == overrides["model"]


@pytest.mark.parametrize("skip", [True, False])
def test_skip_cache_write_leaves_no_marker_behind_the_shared_part(client, skip):
    """In a tool loop the growing tail is marked, unless nobody will read it again."""
    parent = len(decode(client.parent(), client.kind).sections)
    ask(client, "use the tool", policy=ForkPolicy(skip_cache_write=skip), tool_executor=lambda *a: "x" * 4000)
    last = client.prompts()[-1]
    if client.kind == "anthropic":
        behind = [i for i, s in enumerate(last.sections) if s.marker is not None and i >= parent]
        assert bool(behind) != skip
    else:
        # The provider marks the newest message itself unless it is told not to.
        assert (client.bodies()[-1].get("prompt_cache_options") == {"mode": "explicit"}) == skip
    assert any(s.marker is not None for s in last.sections[:parent])


@pytest.mark.parametrize("share", [True, False])
def test_share_state_decides_whose_state_the_tools_change(client, share):
    """The parent's mapping itself, or a deep copy of it."""
    state = {"notes": []}

    def executor(call, name, arguments, state):
        state["notes"].append(name)
        return "ok"

    ask(client, "use the tool", policy=ForkPolicy(share_state=share), tool_executor=executor, state=state)
    assert bool(state["notes"]) == share


@pytest.mark.parametrize("share", [True, False])
def test_share_abort_stops_the_fork_with_its_parent(client, share):
    """Stopped between the tool and the next call."""
    parent = AbortHandle()

    def executor(*call):
        parent.abort()
        return "ok"

    def go():
        return ask(client, "use the tool", policy=ForkPolicy(share_abort=share), tool_executor=executor, abort=parent)

    if share:
        with pytest.raises(AbortedError):
            go()
        assert len(client.provider.requests) == 1
    else:
        assert go().text == "the answer"


@pytest.mark.parametrize("skip", [True, False])
def test_skip_transcript_leaves_no_trace_in_the_parents_history(client, skip):
    """Otherwise the fork's messages are handed over when it has finished."""
    history = []
    done = ask(client, policy=ForkPolicy(skip_transcript=skip), commit=history.extend)
    assert bool(history) != skip
    if not skip:
        assert tuple(history) == done.messages


@pytest.mark.parametrize("isolated", [True, False])
def test_isolated_keeps_the_forks_decisions_out_of_the_parents_ledger(client, isolated):
    """A shortened result is decided in the fork; the parent learns of it only when they are one."""
    mine = session(budget=ToolResultBudget(max_tokens=100))
    options = {"policy": ForkPolicy(isolated=isolated), "tool_executor": lambda *a: "word " * 2000}
    ask(client, "use the tool", on=mine, conversation="c", **options)
    assert bool(len(mine.conversation("c").ledger)) != isolated
    assert max(s.tokens for s in client.prompts()[-1].tier("messages")) < 400


def test_purpose_and_role_stand_in_the_calls(client):
    """Reports can tell helpers from workers."""
    mine = session()
    ask(client, on=mine, role="memory", policy=ForkPolicy.memory_update())
    assert [(call.agent, call.purpose) for call in mine.calls] == [("memory", "memory_update")]


def test_an_async_fork_takes_async_and_sync_executors(client):
    """The same loop without blocking."""

    async def send(body):
        return await asyncio.to_thread(client.send, body)

    async def executor(call, name, arguments):
        await asyncio.sleep(0)
        return "ok"

    async def go():
        mine = session()
        options = {"body": client.parent(), "api": client.kind, "send": send}
        both = [
            await mine.afork("use the tool", tool_executor=executor, **options),
            await mine.afork("use the tool", tool_executor=lambda *a: "ok", **options),
        ]
        return [done.turns for done in both]

    assert asyncio.run(go()) == [3, 3]


def test_a_provider_error_leaves_no_trace(client):
    """The user's exception passes through, and no call is counted."""
    mine = session()

    def send(body):
        raise ConnectionError("down")

    with pytest.raises(ConnectionError):
        mine.fork("x", body=client.parent(), api=client.kind, send=send)
    assert mine.calls == ()


async def test_a_cancelled_fork_leaves_no_trace(client):
    """What it would have written is no longer under way: the next one is a first one too, and nothing is counted."""
    mine = session()

    async def never(body):
        await asyncio.Event().wait()

    task = asyncio.create_task(mine.afork("x", body=client.parent(), api=client.kind, send=never))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert mine.calls == ()
    assert (await asyncio.to_thread(ask, client, on=mine)).verdicts[0].cause == "cold_start"


class ShoutingTail:
    def cacheprefix_fork(self, fork):
        from dataclasses import replace

        from cacheprefix.prompt import section

        loud = section("messages", fork.tail[0].path, "text", "user", b"LOUD", len)
        return replace(fork, tail=(loud,))


class PrefixChanger:
    def cacheprefix_fork(self, fork):
        from dataclasses import replace

        return replace(fork, prefix=replace(fork.prefix, sections=fork.prefix.sections[:1]))


def test_a_plugin_may_change_the_tail_and_nothing_else(client):
    """A changed prefix is refused and named; the fork goes on."""
    ask(client, on=session(plugins=[ShoutingTail()]))
    assert client.prompts()[-1].sections[-1].text == "LOUD"
    with pytest.warns(UserWarning, match="only the tail may change"):
        ask(client, "plain", on=session(plugins=[PrefixChanger()]))
    assert "plain" in client.prompts()[-1].sections[-1].text


def test_a_fork_extends_what_was_sent_though_its_dictionary_was_changed_since(client):
    """An application goes on in its own list of messages, and may rewrite what stands there."""
    mine, body = session(), client.parent()
    turn = mine.adapter.begin(Request(body, client.kind, agent="worker"))
    sent = client.send(dict(turn.body))
    turn.finish(sent.usage)
    messages = body["input" if client.kind == "openai-responses" else "messages"]
    messages[-1]["content"] = "rewritten"
    messages.append({"role": "user", "content": "and then?"})
    body["tools"].clear()
    result = mine.fork("What is open?", body=turn, api=client.kind, send=client.send, role="helper")
    assert result.text == "the answer"
    parent, fork = client.prompts()[-2:]
    assert fork.digests[: len(parent.sections)] == parent.digests
    assert len(fork.sections) == len(parent.sections) + 1


def test_a_way_to_summarise_copies_nothing_until_it_is_asked():
    """Adapters make one for each request, and hardly any request compacts."""
    copied = []

    class Message(dict):
        def __deepcopy__(self, memo):
            copied.append(self)
            return Message(self)

    body = {"model": "gpt-5", "messages": [Message(role="user", content="hello")]}
    forks = session().adapter.side_forks
    forks.summary(body, "openai-chat", dict)
    forks.asummary(body, "openai-chat", dict)
    assert not copied


def test_a_fork_goes_on_as_it_began_though_the_parents_dictionary_changes_meanwhile(client):
    """What its tools do to the parent's list is not in its later requests."""
    body = client.parent()
    field = "input" if client.kind == "openai-responses" else "messages"

    def executor(*_):
        body[field][-1]["content"] = "rewritten"
        return "ok"

    options = {"policy": ForkPolicy(max_turns=2), "tool_executor": executor}
    session().fork("use the tool", body=body, api=client.kind, send=client.send, **options)
    first, second = client.prompts()[-2:]
    assert second.digests[: len(first.sections)] == first.digests

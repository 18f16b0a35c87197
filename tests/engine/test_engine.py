"""A real prefix cache reads what the session says it will read, through the SDKs' own clients."""

from __future__ import annotations

import random

import anthropic
import openai
import pytest

from benchmarks import local_engine
from benchmarks.local_engine import (
    COUNTER,
    MODEL,
    TINY_COUNTER,
    TINY_MODEL,
    LocalEngine,
    missing,
    rules,
    write_model,
)
from cacheprefix import Caching, Session
from cacheprefix.adapter import Request
from cacheprefix.errors import SetupError
from cacheprefix.profiles import normalise_usage

HANDBOOK = "Every statement needs a source that the reader can open. " * 4
ROLES = ("Plan the work.", "Criticise it.", "Write it down.")
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": 'Read a file, "as it is" (é, 漢).',
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}},
    },
}


@pytest.fixture(scope="module")
def session():
    """A session that counts as the engine does, knows its rules, and has seen all that these tests send to it."""
    return Session(caching=Caching(provider="llama.cpp", profiles=rules(), counter=COUNTER), gate=None)


@pytest.fixture(scope="module")
def tiny_session():
    """The same for the tiny model."""
    return Session(caching=Caching(provider="llama.cpp", profiles=rules(), counter=TINY_COUNTER), gate=None)


def asking(client, session, model):
    """``ask(messages, **settings)`` sends a request through the session; its verdict."""

    def ask(messages, *, stream=False, **settings):
        turn = session.adapter.begin(
            Request({"model": model, "messages": messages, "max_tokens": 2, **settings}, "openai-chat")
        )
        if not stream:
            return turn.finish(client.chat.completions.create(**turn.body).usage.model_dump())
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *_, last = client.chat.completions.create(**turn.body, **options)
        return turn.finish(last.usage.model_dump())

    return ask


@pytest.fixture
def client(engine):
    """OpenAI's own client of the engine."""
    with openai.OpenAI(base_url=engine.openai_base_url, api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture
def chat(client, session):
    """Asks SmolLM2."""
    return asking(client, session, MODEL)


@pytest.fixture
def tiny_chat(tiny_engine, tiny_session):
    """Asks the tiny model."""
    with openai.OpenAI(base_url=tiny_engine.openai_base_url, api_key="any", max_retries=0) as made:
        yield asking(made, tiny_session, TINY_MODEL)


def exact(verdict):
    """Whether the engine read what was expected, to the token."""
    return verdict.reported_tokens == verdict.expected_tokens


def system(text):
    """A system message."""
    return {"role": "system", "content": text}


def user(text):
    """A user message."""
    return {"role": "user", "content": text}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tools", [{}, {"tools": [TOOL]}])
def test_forks_read_the_shared_part_from_a_real_cache(chat, fresh_text, stream, tools):
    """Role last: every fork but the first reads the handbook, and exactly as much as expected."""
    handbook = system(fresh_text(HANDBOOK))
    verdicts = [chat([handbook, user("Go."), user(role)], stream=stream, **tools) for role in ROLES]
    # What an earlier test left behind, the tools at most, the session cannot know.
    assert verdicts[0].reported_tokens < verdicts[1].reported_tokens - COUNTER(HANDBOOK)
    assert all(map(exact, verdicts[1:])), [(one.expected_tokens, one.reported_tokens) for one in verdicts]
    assert all(one.reported_tokens > COUNTER(HANDBOOK) for one in verdicts[1:])
    assert [one.cause for one in verdicts[1:]] == ["hit", "hit"]


@pytest.mark.slow
def test_roles_in_front_read_nothing(chat, fresh_text):
    """The same texts with the role first share no more than the markers before them."""
    handbook = fresh_text(HANDBOOK)
    verdicts = [chat([system(f"{role} {handbook}"), user("Go.")]) for role in ROLES]
    assert all(map(exact, verdicts)), [(one.expected_tokens, one.reported_tokens) for one in verdicts]
    assert all(one.reported_tokens <= COUNTER.envelope.opening for one in verdicts[1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["planner", "critic", "clerk", "Übersetzer"])
def test_forks_that_part_within_a_word_read_what_was_expected(chat, fresh_text, name):
    """The space in front of a word belongs to its token, and two words may begin alike."""
    handbook = system(fresh_text(HANDBOOK))
    chat([handbook, user("You are the clean one. Go.")])
    assert exact(chat([handbook, user(f"You are the {name}. Go.")]))


def test_an_identical_request_reads_all_but_its_last_token(chat, session, fresh_text):
    """The engine computes the last token again, because it needs what follows it."""
    messages = [system(fresh_text(HANDBOOK)), user("Go.")]
    chat(messages)
    again = chat(messages)
    assert again.reported_tokens == again.expected_tokens == session.calls[-1].usage.input_tokens - 1
    assert again.kind == "hit"


@pytest.mark.parametrize("seed", range(3))
def test_edits_anywhere_cost_what_was_expected(tiny_chat, fresh_text, seed):
    """A history that grows and is edited in places: the engine's own count follows the expectation each time."""
    draw = random.Random(seed)
    history = [system(fresh_text(HANDBOOK))]
    for step in range(8):
        history.append(user("".join(draw.choices("abcd ", k=60))))
        if step % 3 == 2:
            at = draw.randrange(1, len(history))
            history[at] = user(history[at]["content"][:30] + draw.choice("xyz") + history[at]["content"][31:])
        verdict = tiny_chat(list(history))
        # The engine is shared: of what another test left, a letter or two may begin as the first prompt does.
        by_chance = step == 0 and verdict.reported_tokens < 4
        assert exact(verdict) or by_chance, (step, verdict.expected_tokens, verdict.reported_tokens)


@pytest.mark.slow
def test_a_calls_history_with_tool_results_reads_as_expected(chat, fresh_text):
    """Calls and results count as the template renders them."""
    call = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}
    history = [
        system(fresh_text(HANDBOOK)),
        user("Read."),
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "x = 1\n" * 20},
    ]
    verdicts = [chat([*history, user(role)], tools=[TOOL]) for role in ROLES]
    assert all(map(exact, verdicts[1:]))
    assert verdicts[1].reported_tokens > COUNTER(HANDBOOK) + 60


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_the_anthropic_endpoint_reads_as_expected(engine, session, fresh_text, stream):
    """Anthropic's client, breakpoints and usage against the same cache."""
    handbook = fresh_text(HANDBOOK)
    verdicts = []
    with anthropic.Anthropic(base_url=engine.anthropic_base_url, api_key="any", max_retries=0) as client:
        for role in ROLES:
            messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "I go."}, user(role)]
            turn = session.adapter.begin(
                Request({"model": MODEL, "max_tokens": 2, "system": handbook, "messages": messages}, "anthropic")
            )
            if stream:
                with client.messages.stream(**turn.body) as answer:
                    usage = answer.get_final_message().usage
            else:
                usage = client.messages.create(**turn.body).usage
            assert normalise_usage(usage.model_dump(), "anthropic").cache_read_tokens is not None
            verdicts.append(turn.finish(usage.model_dump()))
    assert all(map(exact, verdicts)), [(one.expected_tokens, one.reported_tokens) for one in verdicts]
    assert all(one.reported_tokens > COUNTER(HANDBOOK) for one in verdicts[1:])


@pytest.mark.slow
def test_the_engine_counts_what_the_session_counts(chat, session, fresh_text):
    """With the engine's own tokenizer the input is the same to the token."""
    texts = ("abc", "é漢😀", '{"a": [1]}')
    for content in texts:
        chat([system(fresh_text(content)), user(content)], tools=[TOOL])
    calls = session.calls[-len(texts) :]
    begun = COUNTER.envelope.answer
    assert [call.usage.input_tokens for call in calls] == [call.input_tokens + begun for call in calls]


@pytest.mark.slow
def test_a_fork_reads_what_a_sibling_called_a_tool_with_and_was_told(client, chat, session, fresh_text):
    """The model's own call of a tool, its stop reason, and the result in the conversation that the forks share."""
    shown = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}
    history = [system(fresh_text("You read files.")), user("Read a.py.")]
    for path in ("a.py", "b.py"):
        call = {**shown, "id": path, "function": {"name": "read_file", "arguments": f'{{"path": "{path}"}}'}}
        history += [{"role": "assistant", "content": "I look.", "tool_calls": [call]}]
        history += [{"role": "tool", "tool_call_id": path, "content": "x = 1"}, user("Read the next one.")]
    body = {"model": MODEL, "messages": history, "tools": [TOOL], "max_tokens": 60, "temperature": 0}
    turn = session.adapter.begin(Request(body, "openai-chat"))
    answer = client.chat.completions.create(**turn.body)
    turn.finish(answer.usage.model_dump())
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    (called,) = choice.message.tool_calls
    assert called.function.name == "read_file"
    spoken = {"role": "assistant", "content": choice.message.content or "", "tool_calls": [called.model_dump()]}
    told = [*history, spoken, {"role": "tool", "tool_call_id": called.id, "content": "y = 2"}]
    first, second = (chat([*told, user(role)], tools=[TOOL]) for role in ROLES[:2])
    assert first.reported_tokens >= answer.usage.prompt_tokens - COUNTER.envelope.answer
    assert exact(second)
    assert second.reported_tokens > answer.usage.prompt_tokens


def test_a_model_is_the_same_bytes_every_time(tmp_path):
    """So that a cache, a checksum and a measurement mean the same model."""
    if missing():
        pytest.skip(missing())
    for name in ("a", "b"):
        write_model(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_engine_that_cannot_start_says_why(tmp_path):
    """No address, but what the server said."""
    if missing():
        pytest.skip(missing())
    (tmp_path / "broken.gguf").write_bytes(b"GGUF, or not")
    with pytest.raises(SetupError, match="did not start"):
        LocalEngine(tmp_path / "broken.gguf")


def test_without_its_packages_there_is_no_engine_and_the_reason_is_told(monkeypatch):
    """What the tests of an environment without the wheel say when they are skipped."""
    monkeypatch.setattr(local_engine, "find_spec", lambda name: None if name == "xllamacpp" else object())
    assert missing() == "no local engine: xllamacpp not installed (extra test)"


@pytest.mark.slow
def test_slots_are_chosen_as_the_engine_chooses_them(tmp_path, fresh_text):
    """Two agents and interludes on three slots: each request reads what its slot, or a stored prompt, still holds."""
    if missing():
        pytest.skip(missing())
    write_model(tmp_path / "tiny.gguf")
    session = Session(caching=Caching(provider="llama.cpp", profiles=rules(3), counter=TINY_COUNTER), gate=None)
    draw = random.Random(5)
    histories = [[system(fresh_text(HANDBOOK))] for _ in range(5)]
    with (
        LocalEngine(tmp_path / "tiny.gguf", slots=3) as running,
        openai.OpenAI(base_url=running.openai_base_url, api_key="any", max_retries=0) as client,
    ):
        for step in range(30):
            history = draw.choice(histories)
            history.append(user("".join(draw.choices("abcd ", k=draw.choice([20, 900])))))
            if step % 7 == 6:
                del history[1:-1]
            turn = session.adapter.begin(
                Request({"model": TINY_MODEL, "messages": list(history), "max_tokens": 3}, "openai-chat")
            )
            verdict = turn.finish(client.chat.completions.create(**turn.body).usage.model_dump())
            assert exact(verdict), (step, verdict.expected_tokens, verdict.reported_tokens)
    assert sum(call.usage.cache_read_tokens > 0 for call in session.calls) > 15

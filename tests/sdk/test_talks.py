"""Whose words stand in a prompt: one wrapped client that serves several people, by turns and at a time."""

import asyncio
import gc
import re
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context

import pytest
from sdk_driver import MODELS, RULES, creator, make_client

from cacheprefix import Caching, Session, SharedPrefix, hookimpl
from cacheprefix.errors import StateError
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, SimulatedProvider
from cacheprefix.wire.apis import chat_of
from cacheprefix_sdk import role, wrap
from tests.talks import BOUNDS, LONG, USERS, asking, check, played, question

HANDBOOK = "The handbook says that every statement needs a source. " * 90


@pytest.fixture(scope="module")
def servers():
    """One provider for each API's rules."""
    with SimulatedProvider("openai-5.6") as chat, SimulatedProvider("anthropic") as claude:
        yield {"openai-chat": chat, "openai-responses": chat, "anthropic": claude}


def _body(api, history):
    messages = [dict(message) for message in history]
    if api == "anthropic":
        return {"model": MODELS[api], "max_tokens": 50, "system": f"{HANDBOOK}\n\nYou help.", "messages": messages}
    if api == "openai-responses":
        return {"model": MODELS[api], "instructions": f"{HANDBOOK}\n\nYou help.", "input": messages}
    system = {"role": "system", "content": f"{HANDBOOK}\n\nYou help."}
    return {"model": MODELS[api], "messages": [system, *messages]}


def _said(user, number, *, wordy):
    words = " ".join(f"{user}-value-{number}-{k}" for k in range(60))
    return {"role": "user", "content": f"{user} {number}: {words}" if wordy else "Go on."}


def _answer(request):
    """What the model says to someone: their own words, where it was told any."""
    number, named = request.index, re.search("|".join(USERS), request.text)
    return Reply(f"{named.group()} is answered: {named.group()}-answer-{number}." if named else f"Well {number}.")


def _reply(answer, api):
    """The text of an answer."""
    if api == "openai-responses":
        return answer.output_text
    return answer.content[0].text if api == "anthropic" else answer.choices[0].message.content


@pytest.mark.slow
@BOUNDS
@pytest.mark.parametrize("api", tuple(RULES))
@pytest.mark.parametrize("way", ["messages", "named"])
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@played
def test_no_section_of_one_conversation_is_in_anothers_prompt_and_no_message_is_missing(
    servers, api, bounds, way, later, given_turns, people
):
    """Two and three people with equal texts ask the same two roles by one client, by turns and at a time.

    By their messages alone, or with an id of each one's conversation.
    """
    server, script = servers[api], servers[api].simulator.script
    server.reset()
    caching = Caching(provider=RULES[api], counter=ESTIMATE)
    session = Session(SharedPrefix(system=HANDBOOK), caching=caching, gate=None, **bounds)
    talks = {user: [] for user in USERS[:people]}
    compacted = 0

    def asked(user, name):
        return role(name, conversation=user if way == "named" else ""), _body(api, talks[user])

    def ask(client, user, name):
        block, body = asked(user, name)
        with block:
            return creator(client, api)(**body)

    async def aask(client, user, name):
        block, body = asked(user, name)
        with block:
            return await creator(client, api)(**body)

    def play(all_ask):
        nonlocal compacted
        for number, turn in enumerate(given_turns):
            now, start = asking(turn, people), len(server.requests)
            for user in now:
                talks[user].append({"role": "user", "content": question(user, number, turn)})
            answers = all_ask(now, ("helper", "critic")[number % 3 // 2])
            said = {user: [message["content"] for message in talks[user]] for user in now}
            compacted += check(server.requests[start:], said)
            for user, made in zip(now, answers, strict=True):
                talks[user].append({"role": "assistant", "content": _reply(made, api)})

    def synchronous():
        with make_client(api, server) as plain, ThreadPoolExecutor(people) as pool:
            client = wrap(plain, session)
            play(lambda now, name: list(pool.map(lambda user: ask(client, user, name), now)))

    def asynchronous():
        loop = asyncio.new_event_loop()
        plain = make_client(api, server, later=True)
        client = wrap(plain, session)

        async def all_ask(now, name):
            return await asyncio.gather(*(aask(client, user, name) for user in now))

        play(lambda now, name: loop.run_until_complete(all_ask(now, name)))
        loop.run_until_complete(plain.close())
        loop.close()

    server.simulator.script = _answer
    try:
        (asynchronous if later else synchronous)()
    finally:
        server.simulator.script = script
    assert compacted or given_turns is not LONG or "compaction" not in bounds
    assert not session.failures


@pytest.mark.parametrize("api", tuple(RULES))
def test_a_conversation_resumed_after_each_turn_sends_what_one_process_sends(servers, api):
    """Also where a long text leaves its place: what it is reckoned from is saved with the conversation."""
    texts = {name: f"You are the {name}. " + f"{name} rule, and its reason. " * 60 for name in ("planner", "critic")}
    server, kept = servers[api], servers[api].simulator.script

    def turns(*, resumed):
        def made():
            return Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider=RULES[api], counter=ESTIMATE))

        server.reset()
        server.simulator.script = lambda request: Reply("fine " * (len(request.text) % 50))
        session, said = made(), []
        with make_client(api, server) as plain:
            for number, size in enumerate((400, 1000, 400, 20, 400, 100)):
                if resumed:
                    text = session.conversation("talk").dumps()
                    session = made()
                    session.conversation("talk").restore(text)
                for name, text in texts.items():
                    said.append({"role": "user", "content": f"{number} for the {name}: {'pad ' * size}"})
                    with role(name, instruction=text, conversation="talk"):
                        creator(wrap(plain, session), api)(**{**_body(api, said), **_shared(api)})
                    said.append({"role": "assistant", "content": f"fine {number}"})
        return [record.json for record in server.requests]

    try:
        assert turns(resumed=True) == turns(resumed=False)
    finally:
        server.simulator.script = kept


def _shared(api):
    """The system text as all have it."""
    if api == "openai-chat":
        return {}
    return {"instructions" if api == "openai-responses" else "system": HANDBOOK}


POINTS = {name: {"index": 0, "digest": ""} for name in ("line", "before", "last")}


@pytest.mark.parametrize("standing", [{"line": 3}, {**POINTS, "seats": []}, "gone"])
def test_places_that_are_none_are_refused_and_nothing_changes(standing):
    """What stands in a saved conversation is checked before anything is taken from it."""
    session = Session(SharedPrefix(system=HANDBOOK))
    talk = session.conversation("talk")
    saved = {**talk.to_json(), "ledger": {"version": 1, "lanes": {"a": "b"}}, "standing": {"gpt": standing}}
    with pytest.raises(StateError, match="standing"):
        talk.restore(saved)
    assert not len(talk.ledger)


def test_going_back_to_a_state_without_places_drops_those_of_now():
    """As the decisions that came about behind it are dropped; a merge keeps them."""
    talk = Session(SharedPrefix(system=HANDBOOK)).conversation("talk")
    before = talk.to_json()
    seat = {"text": "its digest", "at": None, "end": {"index": 0, "digest": ""}, "kept": True}
    talk.restore({**before, "standing": {"gpt": {**POINTS, "saved": -1, "seats": {"critic": seat}}}})
    talk.restore(before)
    assert "standing" in talk.to_json()
    talk.restore(before, merge=False)
    assert "standing" not in talk.to_json()


@pytest.mark.parametrize("api", tuple(RULES))
def test_the_tools_of_one_tenant_are_in_no_request_of_another(servers, api):
    """Whose session is made when those of the first one have been asked with."""
    server = servers[api]
    server.reset()
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider=RULES[api], counter=ESTIMATE))
    declare = chat_of(api).tool
    schema = {"type": "object", "properties": {"at": {"type": "string"}}}
    look, house = (
        declare({"name": name, "description": f"Asks {name}.", "parameters": schema})
        for name in ("look", "alices_house")
    )
    with make_client(api, server) as plain:
        for tenant, tools in (("", [look, house]), ("bob", [look])):
            its = session.child(tenant, scope=tenant) if tenant else session
            for name in ("planner", "critic"):
                with role(name, conversation="talk"):
                    body = _body(api, [_said(tenant or "alice", 0, wordy=True)])
                    creator(wrap(plain, its), api)(**body, tools=tools if name == "planner" else [look])
    sent = [record.body.decode() for record in server.requests]
    assert ["alices_house" in body for body in sent] == [True, True, False, False]
    assert not session.failures


@pytest.mark.parametrize("api", tuple(RULES))
def test_how_many_tenants_a_process_has_met_changes_nothing_in_a_conversation(servers, api):
    """Each tenant has one agent: another process, which meets one tenant alone, sends the same."""
    server = servers[api]

    def sent(tenants):
        server.reset()
        session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider=RULES[api], counter=ESTIMATE))
        with make_client(api, server) as plain:
            for tenant in tenants:
                its = session.child(tenant, scope=tenant) if tenant else session
                history = []
                for turn in range(3):
                    history += [_said(tenant or "alice", turn, wordy=True)]
                    with role("checker", conversation="talk", instruction="You check. " * 50):
                        creator(wrap(plain, its), api)(**_body(api, history))
                    history += [{"role": "assistant", "content": "Done."}]
        assert not session.failures
        return [record.body for record in server.requests]

    assert sent(["", "bob"])[3:] == sent(["bob"])
    assert sent(["bob", ""])[3:] == sent([""])


@pytest.mark.filterwarnings("ignore::cacheprefix.CacheprefixWarning")
@pytest.mark.parametrize("keys", ["one", "each"])
@pytest.mark.parametrize("mode", ["observe", "fork"])
def test_what_tenants_would_have_read_of_one_another_is_reckoned_by_their_keys(keys, mode):
    """With one key for all it is what they do read; with one each nothing, as soon as the provider's counts show it."""
    api, handbook = "openai-chat", HANDBOOK * 3

    def units(mode):
        session = Session(
            SharedPrefix(system=handbook), caching=Caching(provider="openai", counter=ESTIMATE), mode=mode
        )
        with SimulatedProvider("openai") as server, make_client(api, server) as plain:
            for tenant in range(12):
                its = session.child(f"t{tenant}", scope=f"t{tenant}")
                plain.api_key = f"key-{tenant if keys == 'each' else 0}"
                for name in ("planner", "critic"):
                    with role(name, conversation="talk"):
                        body = {**_body(api, [_said(f"user{tenant}", 0, wordy=True)]), "model": "gpt-4.1"}
                        body["messages"][0] = {"role": "system", "content": f"{handbook}\n\nYou are the {name}."}
                        creator(wrap(plain, its), api)(**body)
            rules = server.simulator.profile_for("gpt-4.1", api)
            return sum(record.outcome.cost_units(rules) for record in server.requests), session.report().total

    (own, _), (paid, said) = units("off"), units(mode)
    assert said.cost_units == pytest.approx(paid)
    # Until three of them found nothing they are taken to have one.
    assert said.unmodified_units == pytest.approx(own, rel=0.01 if keys == "one" or mode == "observe" else 0.25)


@pytest.mark.parametrize("way", ["dropped", "closed"])
def test_a_generator_that_is_left_inside_a_role_leaves_its_role_to_nobody(servers, way):
    """A web answer whose reader went away: what its worker serves next is no part of that conversation."""
    server = servers["openai-chat"]
    server.reset()
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider=RULES["openai-chat"], counter=ESTIMATE))
    session.conversation("alice").set_zone("memories", "alice's memories")
    errors = []

    async def go():
        asyncio.get_running_loop().set_exception_handler(lambda _, told: errors.append(told))
        async with make_client("openai-chat", server, later=True) as plain:
            client = wrap(plain, session)

            async def answers():
                with role("helper", conversation="alice"):
                    yield await creator(client, "openai-chat")(**_body("openai-chat", [_said("alice", 1, wordy=False)]))
                    yield None

            reading = answers()
            await anext(reading)
            if way == "closed":
                await asyncio.create_task(reading.aclose())
            del reading
            gc.collect()
            await asyncio.sleep(0.05)
            await creator(client, "openai-chat")(**_body("openai-chat", [_said("bob", 1, wordy=False)]))

    asyncio.run(go())
    first, second = (record.body for record in server.requests)
    assert b"alice's memories" in first
    assert b"alice's memories" not in second
    assert [call.conversation for call in session.calls] == ["alice", ""]
    assert not errors


def _house(api, name, user):
    """A tool, as a body declares it, that speaks of its user."""
    told, form = f"Asks the house of {user}.", {"type": "object", "properties": {"at": {"type": "string"}}}
    tool = {"name": name, "description": told, "parameters": form}
    return {
        "anthropic": {"name": name, "description": told, "input_schema": form},
        "openai-chat": {"type": "function", "function": tool},
        "openai-responses": {"type": "function", **tool},
    }[api]


@pytest.mark.parametrize("talks", ["named", "unnamed"])
@pytest.mark.parametrize("tools", ["one name", "other names"])
@pytest.mark.parametrize("api", tuple(RULES))
def test_no_conversation_is_shown_a_tool_that_another_one_brought(servers, api, tools, talks):
    """Whoever's request brings a tool, what it says may be of that user, in a session's first request too."""
    server, history = servers[api], {}
    server.reset()
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider=RULES[api], counter=ESTIMATE), gate=None)
    with make_client(api, server) as client:
        for user in ("alice", "bob", "carol") * 2:
            seen, said = len(server.requests), history.setdefault(user, [])
            house = _house(api, f"house_{user}" if tools == "other names" else "house", user)
            for name, kit in (("planner", {"tools": [house]}), ("critic", {})):
                said.append(_said(user, len(said), wordy=False))
                with role(name, conversation=user if talks == "named" else ""):
                    creator(wrap(client, session), api)(**_body(api, said), **kit)
                said.append({"role": "assistant", "content": "Yes."})
            shown = [str(record.json) for record in server.requests[seen:]]
            assert f"house of {user}" in shown[0]
            assert not [text for text in shown if text.count("house of ") != text.count(f"house of {user}")]
    assert session.failures == {}


@pytest.mark.parametrize("api", tuple(RULES))
def test_no_tenant_is_shown_anothers_tool_of_the_same_name(servers, api):
    """Nor are its roles that have none of that name; tenants are children of one session."""
    server = servers[api]
    server.reset()
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider=RULES[api], counter=ESTIMATE), gate=None)
    with make_client(api, server) as client:
        for tenant, other in (("acme", "beta"), ("beta", "acme")) * 2:
            seen, house = len(server.requests), _house(api, "house", tenant)
            wrapped = wrap(client, session.child(tenant, scope=tenant))
            for name, kit in (("planner", {"tools": [house]}), ("critic", {})):
                with role(name, conversation="one"):
                    creator(wrapped, api)(**_body(api, [_said(tenant, 0, wordy=False)]), **kit)
            shown = [record.body for record in server.requests[seen:]]
            assert f"house of {tenant}".encode() in shown[0]
            assert not [body for body in shown if f"house of {other}".encode() in body]
    assert session.failures == {}


def _asked_behind(client, system, history):
    marked = [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]
    creator(client, "anthropic")(**{**_body("anthropic", history), "system": marked})


def _asked_alone(client, system, question):
    _asked_behind(client, system, [{"role": "user", "content": question}])


@pytest.mark.parametrize("scribe", ["Translate all.", f"Take down what each party says. {'Be exact. ' * 200}"])
def test_two_applications_on_one_client_without_a_role_are_no_break(servers, scribe):
    """Their system texts begin alike, and neither is the other's, edited."""
    servers["anthropic"].reset()
    session = Session(caching=Caching(provider="anthropic"))
    with make_client("anthropic", servers["anthropic"]) as plain:
        client = wrap(plain, session)
        for number in range(2):
            _asked_alone(client, f"{HANDBOOK}You bill.", f"Bill {number}.")
            _asked_alone(client, f"{HANDBOOK}{scribe}", f"Take {number}.")
    assert not any(call.verdict.alarm or call.verdict.broken for call in session.calls)
    assert session.report().breaks == ()


@pytest.mark.parametrize(
    "systems",
    [
        (f"{HANDBOOK}It is Monday, March 31, 10:02.", f"{HANDBOOK}It is Tuesday, April 1, 10:03."),
        (f"You serve alice. {HANDBOOK}", f"You serve bob. {HANDBOOK}"),
    ],
    ids=["a clock at the end", "a name in front"],
)
def test_what_changes_in_the_system_text_of_calls_without_a_role_is_a_break(servers, systems):
    """The same application asked: a date differs, or what stands behind a name is the same."""
    servers["anthropic"].reset()
    session = Session(caching=Caching(provider="anthropic"))
    with make_client("anthropic", servers["anthropic"]) as plain:
        client = wrap(plain, session)
        for number, system in enumerate(systems):
            _asked_alone(client, system, f"Bill {number}.")
    assert [call.verdict.cause for call in session.calls] == ["cold_start", "system_changed"]
    assert session.last_verdict.alarm


def test_a_system_text_that_is_reworded_in_the_middle_of_a_conversation_is_a_break(servers):
    """The conversation goes on, so the same application asked, whatever its words are."""
    servers["anthropic"].reset()
    session = Session(caching=Caching(provider="anthropic"))
    history = [_said("alice", 0, wordy=True)]
    with make_client("anthropic", servers["anthropic"]) as plain:
        client = wrap(plain, session)
        for words in ("You bill.", "You bill with care."):
            _asked_behind(client, f"{HANDBOOK}{words}", history)
            history += [{"role": "assistant", "content": "Done."}, _said("alice", 1, wordy=True)]
    assert session.last_verdict.cause == "system_changed"


@pytest.mark.parametrize("ends", ["read", "closed", "dropped"])
def test_a_stream_that_ends_in_another_users_context_is_told_to_plugins_in_its_own(servers, ends):
    """What a plugin or a log handler finds in a context variable is whose request it was."""
    user, told = ContextVar("user"), []

    class Tells:
        @hookimpl
        def cacheprefix_after_call(self, call):
            told.append((user.get(), call.conversation))

    session = Session(SharedPrefix(system=HANDBOOK), plugins=[Tells()])
    kept = []

    def asks(client):
        user.set("alice")
        with role("helper", conversation="of alice"):
            body = _body("openai-chat", [_said("alice", 1, wordy=True)])
            kept.append(client.chat.completions.create(**body, stream=True))
        next(kept[0])

    def serves():
        user.set("bob")
        if ends == "read":
            list(kept[0])
        elif ends == "closed":
            kept[0].close()
        kept.clear()
        gc.collect()

    with make_client("openai-chat", servers["openai-chat"]) as plain:
        copy_context().run(asks, wrap(plain, session))
        copy_context().run(serves)
    assert told == [("alice", "of alice")]


@pytest.mark.parametrize("api", tuple(RULES))
def test_roles_that_are_asked_in_one_short_conversation_after_another_read_their_texts(servers, api):
    """From the second one on a long text stands in front of what is said, and from the third one on it is read."""
    texts = {name: f"You are the {name}. " + f"{name} rule, and its reason. " * 60 for name in ("planner", "critic")}
    server, session = servers[api], Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider=RULES[api]))
    server.reset()
    with make_client(api, server) as plain:
        client = wrap(plain, session)
        for number in range(3):
            for name, text in texts.items():
                said = [{"role": "user", "content": f"About item {number}, {name}."}]
                with role(name, instruction=text, conversation=f"talk {number}"):
                    creator(client, api)(**{**_body(api, said), **_shared(api)})
    assert session.failures == {}
    for first, later in zip(server.requests[:2], server.requests[4:], strict=True):
        marks = [
            [at for at, one in enumerate(each.prompt.sections) if "rule, and" in one.text] for each in (first, later)
        ]
        asked = [[at for at, one in enumerate(each.prompt.sections) if "item" in one.text] for each in (first, later)]
        assert marks[0] > asked[0]
        assert marks[1] < asked[1]
        assert later.outcome.read_tokens > first.prompt.tokens - 300

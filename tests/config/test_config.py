"""Options from files and variables: which counts, what they make, and how a mistake is told."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix import Caching, Session
from cacheprefix.adapter import given_or_configured
from cacheprefix.config import load, variables
from cacheprefix.config_fields import FIELDS, SHORT, line_of
from cacheprefix.errors import ConfigError, SetupError
from cacheprefix.history import Compaction, RequestBudget, ToolResultBudget

FULL = """
[project]
name = "mine"

[tool.cacheprefix]
mode = "observe"
tail = "cards"
gate = 2
provider = "anthropic"
scope = "team"
profiles = ["rules.toml"]
compaction = 50_000

[tool.cacheprefix.budget]
max_tokens = 900
strategy = "tail"
by_tool = { read_file = 4000, secrets = false, log = { max_tokens = 100, strategy = "head" }, shell = "tail" }

[tool.cacheprefix.request_budget]
window = 200_000
reserve = 8_000

[tool.cacheprefix.tool_cache]
ttl_secs = 60
allow = ["read_*"]
deny = ["write_*"]
max_entries = 10
"""


@pytest.fixture
def project(tmp_path):
    """``project(pyproject)`` writes a pyproject.toml and gives its folder."""

    def make(text, name="pyproject.toml"):
        (tmp_path / name).write_text(text, "utf-8")
        return tmp_path

    return make


def _options(folder, **environ):
    return load(start=folder, environ=environ).options()


def test_a_pyproject_sets_everything(project, rules_file):
    """Each option arrives as the object that ``Session`` takes."""
    folder = project(FULL)
    rules_file(folder)
    made = _options(folder)
    caching, found = made["caching"], made["history"]
    assert (made["mode"], made["gate"].limit) == ("observe", 2.0)
    assert (caching.tail, caching.provider, caching.scope) == ("cards", "anthropic", "team")
    assert made["compaction"] == Compaction(50_000)
    assert found.request_budget == RequestBudget(200_000, 8_000)
    assert made["budget"].limit("read_file")[0] == 4_000
    assert made["budget"].limit("secrets")[1].name == "none"
    assert (made["budget"].limit("log")[0], made["budget"].limit("log")[1].name) == (100, "head")
    assert made["budget"].limit("shell")[1].name == "tail"
    assert (made["budget"].max_tokens, made["budget"].strategy) == (900, "tail")
    assert made["tool_cache"].ttl == 60
    assert caching.profiles.get("house").name == "house"


@pytest.fixture
def rules_file():
    """Rules of one's own beside the file that names them."""

    def write(folder):
        (folder / "rules.toml").write_text("[[profile]]\nname = 'house'\nlike = 'openai'\n", "utf-8")

    return write


def test_a_session_is_made_of_it(project, monkeypatch, rules_file):
    """From the working directory, and what the program says wins."""
    folder = project(FULL)
    rules_file(folder)
    monkeypatch.chdir(folder)
    session = Session.from_config("handbook", caching=Caching(scope="mine"))
    assert (session.mode, session.adapter.scope, session.prefix.system) == ("observe", "mine", "handbook")
    assert session.tool_cache is not None


def test_without_any_configuration_nothing_is_set(tmp_path):
    """Then a session has its defaults."""
    found = load(start=tmp_path, environ={})
    assert found.options() == {}
    assert found.path is None or "tmp" not in str(found.path)


def test_the_nearest_file_counts(project):
    """Upwards from the start; a pyproject.toml without our table is passed over."""
    folder = project('[tool.cacheprefix]\nmode = "observe"\n')
    inner = folder / "a" / "b"
    inner.mkdir(parents=True)
    (folder / "a" / "pyproject.toml").write_text('[project]\nname = "x"\n', "utf-8")
    assert load(start=inner, environ={}).path == folder / "pyproject.toml"


def test_a_file_of_its_own_comes_before_pyproject(project):
    """Its keys stand at the top level."""
    project('[tool.cacheprefix]\nmode = "observe"\n')
    folder = project('mode = "fork"\n[budget]\nmax_tokens = 7\n', "cacheprefix.toml")
    found = load(start=folder, environ={})
    assert [(one.key, one.value, one.source) for one in found.settings] == [
        ("mode", "fork", f"{folder / 'cacheprefix.toml'}:1"),
        ("budget.max_tokens", 7, f"{folder / 'cacheprefix.toml'}:3"),
    ]


def test_a_variable_wins_key_by_key(project):
    """What it does not name stays as the file says."""
    folder = project('[tool.cacheprefix]\nmode = "observe"\n[tool.cacheprefix.budget]\nmax_tokens = 7\nper_turn = 70\n')
    made = _options(folder, CACHEPREFIX_BUDGET_MAX_TOKENS="9_000", CACHEPREFIX_TOOL_CACHE="on")
    assert made["mode"] == "observe"
    assert made["budget"] == ToolResultBudget(max_tokens=9_000, per_turn=70)
    assert made["tool_cache"].enabled
    assert _options(folder, CACHEPREFIX_MODE="fork")["mode"] == "fork"


def test_one_value_stands_for_a_table(project):
    """And false switches it off, also from a variable."""
    folder = project("[tool.cacheprefix]\nbudget = 500\ntool_cache = true\ncompaction = 1000\n")
    made = _options(folder)
    assert made["budget"].max_tokens == 500
    off = _options(folder, CACHEPREFIX_BUDGET="off", CACHEPREFIX_TOOL_CACHE="false", CACHEPREFIX_COMPACTION="no")
    assert off == {}
    again = _options(folder, CACHEPREFIX_BUDGET="off", CACHEPREFIX_BUDGET_PER_TURN="40")
    assert again["budget"].per_turn == 40


def test_no_gate_is_false():
    """In a file and in a variable."""
    assert load("", environ={"CACHEPREFIX_GATE": "off"}).options() == {"gate": None}


def test_a_variable_names_the_file_or_none(project):
    """``CACHEPREFIX_CONFIG``; a named file must be there."""
    folder = project('mode = "observe"\n', "other.toml")
    found = load(start="/", environ={"CACHEPREFIX_CONFIG": str(folder / "other.toml")})
    assert found.get("mode") == "observe"
    (folder / "cacheprefix.toml").write_text('mode = "observe"\n', "utf-8")
    assert load(start=folder, environ={"CACHEPREFIX_CONFIG": ""}).settings == ()
    with pytest.raises(ConfigError, match=r"absent\.toml: cannot be read"):
        load(folder / "absent.toml", environ={})


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('mode = "obserfe"', 3, r"mode: 'obserfe' is not one of 'off', 'observe', 'fork'"),
        ('mod = "fork"', 3, "mod: no such key; did you mean 'mode'"),
        ("gate = -1", 3, "gate: -1 is not a number from 0 on or false"),
        ("gate = nan", 3, "is not a number"),
        ("gate = true", 3, "is not a number"),
        ('profiles = "one.toml"', 3, "is not a list of strings"),
        ("budget = true", 3, "budget: True is not a whole number"),
        ("\n[tool.cacheprefix.budget]\n\nmax_tokens = 0", 6, r"budget.max_tokens: 0 is not a whole number from 1 on"),
        ("budget = { max_tokens = 0 }", 3, "budget.max_tokens: 0"),
        ("budget.by_tool.x = 'middle'", 3, "budget.by_tool"),
        ("[tool.cacheprefix.budget.by_tool]\nx = { tokens = 1 }", 3, "max_tokens and strategy for 'x'"),
        ("[tool.cacheprefix.compaction]\ntrigger = 10\ntarget = 20", 4, "compaction: Compaction.target 20 is above"),
        ("[tool.cacheprefix.request_budget]\nreserve = 5", 4, "request_budget: .*window"),
        ("[tool.cacheprefix.tool_cache]\nlease = 5", 4, "tool_cache.lease: no such key"),
        ('[tool.cacheprefix.tool_cache]\n"ttl_secs" = "5"', 4, "tool_cache.ttl_secs: '5' is not a number"),
        ('profiles = ["absent.toml"]', 3, "absent.toml: cannot be read"),
    ],
)
def test_a_mistake_is_told_with_file_and_line(project, text, line, said):
    """And with what is expected there."""
    folder = project(f"\n[tool.cacheprefix]\n{text}\n")
    with pytest.raises(ConfigError, match=said) as failure:
        _options(folder)
    assert (failure.value.source, failure.value.line) == (str(folder / "pyproject.toml"), line)
    assert str(failure.value).startswith(f"{folder / 'pyproject.toml'}:{line}: ")
    assert isinstance(failure.value, SetupError)


def test_a_file_that_is_no_toml_is_told_with_its_line(project):
    """As the parser says it."""
    folder = project("[tool.cacheprefix]\nmode = \n")
    with pytest.raises(ConfigError, match="is not TOML") as failure:
        _options(folder)
    assert failure.value.line == 2


def test_a_pyproject_that_is_not_about_us_is_none_of_our_business(project):
    """Even a broken one."""
    folder = project("[project\n")
    assert load(start=folder, environ={}).path != folder / "pyproject.toml"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("CACHEPREFIX_MODE", "on", "CACHEPREFIX_MODE: mode: 'on' is not one of"),
        ("CACHEPREFIX_BUDGET_MAX_TOKENS", "many", "'many' is not a whole number"),
        ("CACHEPREFIX_COMPACTION_SLACK", "1.5", r"is not a number from 0 on and below 1"),
    ],
)
def test_a_mistake_in_a_variable_names_it(name, value, said):
    """There is no line then."""
    with pytest.raises(ConfigError, match=said) as failure:
        load("", environ={name: value})
    assert (failure.value.source, failure.value.line) == (name, None)


def test_values_that_do_not_go_together_name_the_variable():
    """Each is right by itself."""
    environ = {"CACHEPREFIX_COMPACTION": "10", "CACHEPREFIX_COMPACTION_TARGET": "20"}
    with pytest.raises(ConfigError, match=r"CACHEPREFIX_COMPACTION.*target 20 is above"):
        load("", environ=environ).options()


def test_an_unknown_variable_is_listed_and_not_refused():
    """It may be another program's, or another version's."""
    found = load("", environ={"CACHEPREFIX_MODUS": "x", "CACHEPREFIX_PLUGINS": "", "OTHER": "y"})
    assert found.unknown == ("CACHEPREFIX_MODUS",)


@given(st.sampled_from(sorted(variables())), st.text(max_size=20))
def test_any_text_in_a_variable_is_a_value_or_a_named_mistake(name, said):
    """Never another exception."""
    try:
        load("", environ={name: said})
    except ConfigError as error:
        assert error.source == name  # noqa: PT017 - either outcome is right


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(st.recursive(_LEAVES, lambda one: st.lists(one) | st.dictionaries(st.text(), one), max_leaves=4))
def test_every_key_takes_a_value_or_says_what_it_expects(value):
    """With ``ValueError`` alone."""
    for field in FIELDS.values():
        try:
            field.read(value)
        except ValueError as error:  # noqa: PERF203 - each key by itself
            assert str(error)  # noqa: PT017 - as above


def test_every_key_says_what_it_is_for():
    """And short forms stand for keys that exist."""
    assert all(field.says for field in FIELDS.values())
    assert set(SHORT.values()) <= set(FIELDS)


def test_lines_are_found_in_any_spelling():
    """Quoted keys, dotted keys, inline tables, and not inside of strings."""
    text = 'a = """\nb = 1\n"""\n[ t . "u" ]\nb = 1\nc.d = 2\n[t]\ne = { f = 3 }\n'
    assert line_of(text, ("t", "u", "b")) == 5
    assert line_of(text, ("t", "u", "c", "d")) == 6
    assert line_of(text, ("t", "e", "f")) == 8
    assert line_of(text, ("b",)) is None


@pytest.mark.parametrize(
    "content",
    [
        b'[project]\ndependencies = ["cacheprefix"\n',
        b"# cacheprefix\n\xff\xfe = 1\n",
        b'[tool.other]\ncacheprefix = "yes"\n',
    ],
)
def test_a_foreign_pyproject_is_passed_over_in_whatever_state_it_is(tmp_path, content):
    """A front door must not fail for a file that only mentions the package; the one above counts."""
    (tmp_path / "cacheprefix.toml").write_text('mode = "observe"\n', "utf-8")
    inner = tmp_path / "theirs"
    inner.mkdir()
    (inner / "pyproject.toml").write_bytes(content)
    assert load(start=inner, environ={}).path == tmp_path / "cacheprefix.toml"


def test_a_working_directory_that_is_gone_holds_no_file(tmp_path, monkeypatch):
    """A session can still be made there, and variables count."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load(environ={"CACHEPREFIX_MODE": "observe"}).options() == {"mode": "observe"}


def test_a_session_that_is_given_stays_as_it_is(monkeypatch):
    """Only where a front door is called without one does the configuration count, and its mistakes."""
    given_one = Session()
    monkeypatch.setenv("CACHEPREFIX_MODE", "observe")
    assert given_or_configured(given_one) is given_one.adapter
    assert given_one.mode == "fork"
    assert given_or_configured(None).mode == "observe"
    monkeypatch.setenv("CACHEPREFIX_MODE", "sideways")
    assert given_or_configured(given_one) is given_one.adapter
    with pytest.raises(ConfigError, match="CACHEPREFIX_MODE"):
        given_or_configured(None)


def test_no_front_door_makes_a_session_past_the_configuration(repository):
    """``Session()`` without options reads neither files nor variables, so no package may make one."""
    sources = [*repository.glob("cacheprefix/*.py"), *repository.glob("adapters/*/cacheprefix_*/*.py")]
    assert len(sources) > 50
    assert not [path.name for path in sources if re.search(r"\bSession\(\)", path.read_text("utf-8"))]


LEAST = {"budget.max_tokens": 1, "compaction.trigger": 1, "request_budget.reserve": 0, "tool_cache.repeats": 0}
NUMBERS = {"gate": 0, "compaction.keep_head": 0, "compaction.horizon": 0, "tool_cache.ttl_secs": 0}


@pytest.mark.parametrize(("key", "least"), [*LEAST.items(), *NUMBERS.items()])
def test_the_least_that_an_option_takes_is_taken_and_one_less_is_not(key, least):
    """The bound that the message names is the first value that fits."""
    assert FIELDS[key].read(least) == least
    with pytest.raises(ValueError, match=f"from {least} on"):
        FIELDS[key].read(least - 1)


def test_a_share_is_below_the_bound_that_its_message_names():
    """Everything below one fits, one itself does not."""
    read = FIELDS["compaction.keep_head"].read
    assert read(0.999) == 0.999
    with pytest.raises(ValueError, match="below 1"):
        read(1)

"""The examples without a framework: each runs offline in both layouts and with both APIs."""

from __future__ import annotations

import gzip
import json
import re
import runpy
import sys

import pytest

NAMES = (
    "agent_team",
    "compaction",
    "deep_research",
    "side_question",
    "task_dag",
    "text_injection",
    "tool_cache",
    "volatile_context",
)
VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "MODEL")


_told = {}
"""What examples printed, by name and arguments: a run is the same each time, and several tests look at it."""


@pytest.fixture
def example(repository, monkeypatch, capsys):
    """``example(name, *arguments)`` runs one and gives what it printed and its exit code."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for folder in ("examples", "skills/shared-prefix/scripts"):
        monkeypatch.syspath_prepend(str(repository / folder))
    # Other examples have modules of the same names.
    for module in ("_plain", "research"):
        monkeypatch.delitem(sys.modules, module, raising=False)

    def run(name, *arguments):
        if (name, arguments) in _told:
            return _told[name, arguments]
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        code = 0
        try:
            runpy.run_path(str(repository / "examples" / f"{name}.py"), run_name="__main__")
        except SystemExit as end:
            code = end.code
        return _told.setdefault((name, arguments), (capsys.readouterr(), code))

    return run


def _data(shown):
    printed, code = shown
    assert code == 0, printed.err
    return json.loads(printed.out)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sharing_is_cheaper_than_the_usual_layout(example, name):
    """On OpenAI, with JSON as output, no failure and no alarm in the shared layout."""
    plain = _data(example(name, "--layout", "unmodified", "--json"))
    shared = _data(example(name, "--layout", "shared", "--json"))
    assert shared["cost_units"] < plain["cost_units"]
    assert shared["report"]["failures"] == plain["report"]["failures"] == {}
    assert shared["report"]["breaks"] == []
    assert shared["answer"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["basic_chat", "compaction"])
def test_the_examples_speak_anthropics_api_too(example, name):
    """Where nothing is cached without marks, so that even a lone chat gains."""
    plain = _data(example(name, "--layout", "unmodified", "--api", "anthropic", "--json"))
    shared = _data(example(name, "--layout", "shared", "--api", "anthropic", "--json"))
    assert plain["report"]["total"]["cache_read_tokens"] == 0
    assert shared["cost_units"] < plain["cost_units"] / 2
    assert shared["report"]["failures"] == {}


def test_a_plain_chat_costs_the_same_where_the_provider_caches_by_itself(example):
    """The example says so, and it is so: not one token more, not one less."""
    plain = _data(example("basic_chat", "--layout", "unmodified", "--json"))
    shared = _data(example("basic_chat", "--layout", "shared", "--json"))
    assert shared["cost_units"] == plain["cost_units"]


def test_an_example_prints_for_people_without_json(example):
    """The answer, then a line an agent."""
    printed, _ = example("side_question")
    assert printed.out.startswith("Asked on the side: ")
    assert "observer" in printed.out


def test_cached_tools_run_once_and_again_after_a_write(example):
    """Nine lookups and writes are asked for; what was corrected is looked up anew."""
    plain = _data(example("tool_cache", "--layout", "unmodified", "--json"))
    shared = _data(example("tool_cache", "--layout", "shared", "--json"))
    assert plain["tools_run"] == {"look_up": 8, "take_note": 1}
    assert shared["tools_run"] == {"look_up": 4, "take_note": 1}


def test_helpers_that_are_forks_read_nearly_all_of_their_input(example):
    """And those that get the text pasted read none of it."""
    assert _data(example("text_injection", "--layout", "unmodified", "--json"))["helpers_cached_share"] == 0.0
    assert _data(example("text_injection", "--layout", "shared", "--json"))["helpers_cached_share"] > 0.95


@pytest.mark.slow
def test_workers_in_other_processes_read_what_the_parent_has_written(example):
    """Each continues the saved conversation with the very same bytes; both layouts are the same to the parent."""
    told = _data(example("multi_process", "--layout", "shared", "--json"))
    for report in told["workers"]:
        assert report["failures"] == {}
        assert report["total"]["cached_share"] > 0.9
    assert len(told["workers"]) == 2


@pytest.mark.parametrize("model", ["gpt-4.1-2025-04-14", "claude-haiku-4-5-20251001"])
def test_the_smoke_test_pads_past_the_models_minimum(example, model):
    """4,096 tokens for the one, 1,024 for the other; both requests after the first are read."""
    api = "anthropic" if model.startswith("claude") else "openai"
    told = _data(example("cache_smoke_test", "--api", api, "--model", model, "--json"))
    assert told["works"]
    assert [row["cause"] for row in told["requests"]] == ["cold_start", "hit", "hit"]
    assert told["requests"][0]["input_tokens"] > (4096 if api == "anthropic" else 1024)


def test_the_smoke_test_says_when_the_provider_cannot_be_asked(example, monkeypatch):
    """Exit code 2 and one line, no traceback."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    printed, code = example("cache_smoke_test")
    assert code == 2
    assert printed.err.startswith("the provider could not be asked: ")
    assert printed.err.count("\n") == 1


@pytest.mark.slow
def test_the_notebook_runs_in_a_kernel(repository):
    """As its reader runs it: inside the kernel's own event loop, from the folder it lies in, saved without outputs."""
    nbformat = pytest.importorskip("nbformat", reason="the extra `notebooks` is not installed")
    nbclient = pytest.importorskip("nbclient", reason="the extra `notebooks` is not installed")
    pytest.importorskip("ipykernel", reason="the extra `notebooks` is not installed")
    folder = repository / "examples"
    book = nbformat.read(folder / "deep_research.ipynb", as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in code)
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    shown = "".join(output.text for cell in code for output in cell.outputs)
    assert "The documents answer the question" in shown
    assert "researcher-3" in shown
    (share,) = re.findall(r"^all .*? ([\d.]+)%", shown, re.MULTILINE)
    assert float(share) > 50


@pytest.fixture
def skill(repository, monkeypatch, capsys):
    """``skill(script, *arguments)`` runs a script of the skill and gives its exit code and what it printed."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(repository)

    def run(script, *arguments):
        path = repository / "skills" / "shared-prefix" / "scripts" / script
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(path), run_name="__main__")
        shown = capsys.readouterr()
        return end.value.code, shown.out, shown.err

    return run


def test_the_skill_is_described_for_agents(repository):
    """Front matter with a name that is its folder's, and a description; every script it names is there."""
    folder = repository / "skills" / "shared-prefix"
    _, front, text = (folder / "SKILL.md").read_text("utf-8").split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in front.splitlines())
    assert fields["name"] == folder.name
    assert 40 < len(fields["description"]) < 1024
    scripts = {path.name for path in (folder / "scripts").glob("*.py")}
    assert scripts == {name for name in ("research.py", "audit.py") if f"scripts/{name}" in text}


def test_the_skill_researches_a_folder_offline(skill):
    """Exit code 0 and a report; without key and without --offline a line that says what to set."""
    code, out, _ = skill("research.py", "What may never break?", "--sources", "docs", "--offline", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["answer"].startswith("The documents answer")
    assert told["report"]["total"]["calls"] == 11
    code, _, complaint = skill("research.py", "What?", "--sources", "docs")
    assert (code, complaint) == (2, "set OPENAI_API_KEY, or try --offline\n")


def test_the_skill_reads_no_document_outside_its_folder(repository, monkeypatch, tmp_path):
    """Names with dots in them, absolute names, and links are no way out."""
    monkeypatch.syspath_prepend(str(repository / "skills" / "shared-prefix" / "scripts"))
    monkeypatch.delitem(sys.modules, "research", raising=False)
    from research import Library

    (tmp_path / "secret.md").write_text("secret", "utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "open.md").write_text("# open\n" + "line\n" * 300, "utf-8")
    (tmp_path / "docs" / "link.md").symlink_to(tmp_path / "secret.md")
    library = Library(tmp_path / "docs")
    assert list(library.documents) == ["open.md"]
    for name in ("../secret.md", str(tmp_path / "secret.md"), "link.md"):
        with pytest.raises(LookupError):
            library.use("1", "read", {"name": name})
    assert library.read("open.md").endswith("(181 more lines from 121)")
    assert library.use("1", "search", {"words": "OPEN"}) == "open.md:1: # open"
    monkeypatch.delitem(sys.modules, "research")


def test_the_skill_finds_and_audits_a_projects_logs(skill, tmp_path):
    """Logs are told from other JSON by content, gzip too; without one the exit code is 2."""
    body = {"model": "gpt-4.1", "messages": [{"role": "system", "content": "rule " * 3000}]}
    body["messages"].append({"role": "user", "content": "hi"})
    lines = [{"ts": at, "agent": "a", "request": body} for at in (1, 2)]
    (tmp_path / "package.json").write_text('{"name": "x"}', "utf-8")
    (tmp_path / "logs").mkdir()
    with gzip.open(tmp_path / "logs" / "calls.jsonl.gz", "wt") as file:
        file.write("\n".join(json.dumps(line) for line in lines))
    code, _, named = skill("audit.py", str(tmp_path), "--json", str(tmp_path / "audit.out"), "--quiet")
    assert code == 0
    assert named.endswith("calls.jsonl.gz\n")
    assert json.loads((tmp_path / "audit.out").read_text("utf-8"))["totals"]["calls"] == 2
    (tmp_path / "empty").mkdir()
    assert skill("audit.py", str(tmp_path / "empty"))[0] == 2

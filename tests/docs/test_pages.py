"""The documentation: links lead somewhere, code compiles and runs, and what it names exists."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [*PAGES, ROOT / "README.md", *ROOT.glob("adapters/*/README.md"), *ROOT.glob("[A-Z]*.md")]
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```python(?: title=\"([^\"]+)\")?\n(.*?)^```", re.DOTALL | re.MULTILINE)


def _anchors(path):
    heads = re.findall(r"^#+ (.+?)(?: \{ #(.+?) \})?$", path.read_text("utf-8"), re.MULTILINE)
    return {given or re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text, given in heads}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_inside_the_repository_lead_somewhere(page):
    """To a file, and to a heading where one is named; `make docs` checks the built pages too."""
    for target in LINK.findall(page.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page}: {target}"
        assert not anchor or "hooks" in target or anchor in _anchors(path), f"{page}: {target}"


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_on_a_page_compiles(page):
    """Also where it is only a fragment, or awaits at its top."""
    for title, code in BLOCK.findall(page.read_text("utf-8")):
        compile(code, title or page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_navigation_names_only_pages_that_exist():
    """Each once; pages that it leaves out are appended when the documentation is built."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    named = re.findall(r": (\S+\.md)$", text, re.MULTILINE)
    assert set(named) <= {page.relative_to(ROOT / "docs").as_posix() for page in PAGES}
    assert len(named) == len(set(named)) > 30


def test_a_page_that_the_navigation_leaves_out_is_put_into_it():
    """Under its own heading, so that no page is out of reach."""
    put = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["on_config"]
    config = put({"docs_dir": str(ROOT / "docs"), "nav": [{"Topics": [{"x": "audit.md"}]}, {"Why": "index.md"}]})
    topics = config["nav"][0]["Topics"]
    assert {"Limits": "limits.md"} in topics
    assert {"Auditing a log": "audit.md"} not in topics
    assert not [entry for entry in topics if "index.md" in entry.values()]


def test_every_adapter_has_a_page_that_the_first_page_and_the_navigation_lead_to():
    """Who reads README.md and docs alone finds how to use each, also where no framework is in play."""
    first = LINK.findall((ROOT / "README.md").read_text("utf-8"))
    named = (ROOT / "mkdocs.yml").read_text("utf-8")
    for adapter in (path.parent.name for path in ROOT.glob("adapters/*/pyproject.toml")):
        assert {f"docs/{adapter}.md", f"docs/tutorials/{adapter}.md"} & set(first), adapter
        assert f" {adapter}.md\n" in named, adapter


@pytest.mark.parametrize("adapter", sorted(path.parent.name for path in ROOT.glob("adapters/*/pyproject.toml")))
def test_the_page_of_an_adapter_is_enough(adapter):
    """A line that installs, lines to begin with, what changes, what is left out, when not to use it, how to undo it."""
    page = (ROOT / "docs" / f"{adapter}.md").read_text("utf-8")
    assert f"./adapters/{adapter}" in next(line for line in page.splitlines() if line.startswith("pip install"))
    assert "```python\n" in page
    for part in ("What is sent", "What changes in your application", "When not to use it"):
        assert f"\n## {part}\n" in page
    assert re.search(r"\n## (Limits|What is not covered|What it leaves out)\n", page)
    assert re.search(r"\n(## (How to undo it|Undo)\n|\*\*How to undo\*\*)", page)


@pytest.mark.parametrize("name", ["write-a-plugin", "write-an-adapter", "test-in-ci"])
def test_a_program_on_a_how_to_page_runs(name, tmp_path, capsys):
    """Its tests too, where it has some."""
    page = ROOT / "docs" / "how-to" / f"{name}.md"
    programs = [(title, code) for title, code in BLOCK.findall(page.read_text("utf-8")) if title]
    assert programs
    for title, code in programs:
        (tmp_path / title).write_text(code, "utf-8")
        names = runpy.run_path(str(tmp_path / title))
        for found, value in names.items():
            if found.startswith("test_"):
                value()


def test_blocks_of_how_to_pages_run_one_after_the_other():
    """Budgets, compaction, tail placement and the page on context, as they stand there."""
    for name in ("budgets", "compaction", "tail-placement", "../context"):
        names = {}
        for _, code in BLOCK.findall((ROOT / "docs" / "how-to" / f"{name}.md").read_text("utf-8")):
            exec(compile(code, name, "exec"), names)


def test_the_table_of_examples_is_complete():
    """Every script beside it, and no other."""
    shown = (ROOT / "docs" / "examples.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*?) \|", shown, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    there = {path.stem for path in (ROOT / "examples").glob("[a-z]*.py")} | {"deep_research.ipynb"}
    assert listed == there


def test_the_invariants_name_tests_that_exist():
    """A promise without a test is none."""
    for page in ("invariants", "architecture"):
        named = re.findall(r"`(tests/[^`]+)`", (ROOT / "docs" / f"{page}.md").read_text("utf-8"))
        assert named
        assert not [name for name in named if not (ROOT / name).exists()]


def test_every_make_target_that_a_page_names_exists():
    """A figure names its command, and the command is there."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)) | {
        "bench-" + path.stem.removeprefix("bench_") for path in (ROOT / "benchmarks").glob("bench_*.py")
    }
    for page in TEXTS:
        named = set(re.findall(r"`make ([a-z-]+)[ `]", page.read_text("utf-8")))
        assert named <= targets, page


def test_every_row_of_the_rules_has_a_source(monkeypatch):
    """The page that is made while the documentation is built: one section a row, none without evidence."""
    from cacheprefix.profiles import default_registry

    made = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["rules"]()
    for row in default_registry():
        section = made.partition(f"### {row.name} ")[2].partition("\n### ")[0]
        assert row.source in section, row.name
        assert row.checked_on.isoformat() in section


def _measured(page):
    """Each row of a table that gives costs: its workload, and cells such as ``15,658 -> 5,938 = 0.38``."""
    for line in page.read_text("utf-8").splitlines():
        cells = re.findall(r"[\d,]+ -> [\d,]+ = [\d.]+", line)
        if line.startswith("| ") and cells:
            yield line.split("|")[1].strip(), cells


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_workload_costs_the_same_on_every_page(page):
    """What a page shows of a benchmark is what the benchmarks' page was made from."""
    known = {}
    for workload, cells in _measured(ROOT / "docs" / "benchmarks.md"):
        known.setdefault(workload, set()).update(cells)
    assert len(known) > 100
    stale = {workload: cells for workload, cells in _measured(page) if not known.get(workload, {*cells}) >= {*cells}}
    assert not stale


def test_no_docstring_speaks_sphinx():
    """The reference is Markdown and would show ``:class:`` and its like as they are."""
    sources = [*ROOT.glob("cacheprefix/**/*.py"), *ROOT.glob("adapters/*/cacheprefix_*/**/*.py")]
    assert len(sources) > 100
    for path in sources:
        assert not re.search(r":(?:mod|class|func|meth|attr|data|exc|obj):`", path.read_text("utf-8")), path

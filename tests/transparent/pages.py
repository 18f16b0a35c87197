"""The section "What changes in your application" of each adapter's page, made from the listed differences."""

from __future__ import annotations

from pathlib import Path

from tests.transparent.compare import allowed_in

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "langgraph": "docs/langgraph.md",
    "autogen": "docs/autogen.md",
    "crewai": "docs/crewai.md",
    "maf": "docs/maf.md",
    "ag2": "docs/ag2.md",
    "litellm": "docs/litellm.md",
    "openai_agents": "docs/openai_agents.md",
    "sdk": "docs/sdk.md",
}
BEGIN = "<!-- made by python -m tests.transparent from tests/transparent/differences.toml -->"
END = "<!-- made until here -->"

_HEAD = """## What changes in your application

In `observe`: nothing but {}lines of the logger `cacheprefix`.
The tests in `tests/transparent` run each construct of the framework unmodified, observed and forked
against the same scripted provider, and compare results and their types, metadata, usage, events and their order,
callbacks, graphs, schemas, saved states, exceptions and stream chunks; observed, also the bytes of every request.
"""
_BUT = {"langgraph": "the key of a state that you mix `PrefixState` into (below), and "}
"""What an application itself adds in every mode."""
_NOTHING = "In `fork`, apart from the requests themselves: nothing either."
_LISTED = "In `fork`, apart from the requests themselves, this and nothing else:\n\n| what | why |\n| --- | --- |"


def driven() -> list[str]:
    """The frameworks that have a driver: of others nothing is known."""
    return [name for name in PAGES if Path(__file__).with_name(f"test_{name}.py").exists()]


def section(framework: str) -> str:
    """The section as it must stand on the page, its marks included."""
    told = dict.fromkeys((one.what, one.reason) for one in allowed_in(framework))
    body = "\n".join([_LISTED, *(f"| {what} | {why} |" for what, why in told)]) if told else _NOTHING
    return f"{BEGIN}\n{_HEAD.format(_BUT.get(framework, ''))}\n{body}\n{END}"


def current(framework: str) -> str | None:
    """The section as it stands; None where the page has none."""
    text = (ROOT / PAGES[framework]).read_text("utf-8")
    return BEGIN + text.split(BEGIN, 1)[1].split(END, 1)[0] + END if BEGIN in text else None


def write(framework: str) -> bool:
    """Put the section in place, at the page's end where there is none yet; whether anything changed."""
    page = ROOT / PAGES[framework]
    text = page.read_text("utf-8")
    now = current(framework)
    wanted = section(framework)
    if now == wanted:
        return False
    page.write_text(text.replace(now, wanted) if now else f"{text.rstrip()}\n\n{wanted}\n", "utf-8")
    return True

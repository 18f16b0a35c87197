"""What mkdocs makes while it builds: the table of providers' rules, and the rest of the navigation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cacheprefix.profiles import Evidence, Profile, default_registry

MARK = "<!-- rules -->"


def on_config(config: Any) -> Any:
    """Append pages that the navigation leaves out to its section of topics, under their own headings."""
    folder = Path(config["docs_dir"])
    named = set(_pages(config["nav"]))
    topics = next(section["Topics"] for section in config["nav"] if "Topics" in section)
    for page in sorted(folder.rglob("*.md")):
        path = page.relative_to(folder).as_posix()
        if path not in named:
            heading = re.search(r"^# (.+)$", page.read_text("utf-8"), re.MULTILINE)
            topics.append({heading[1] if heading else path: path})
    return config


def _pages(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [page for one in inner for page in _pages(one)]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the rows where a page asks for them."""
    return markdown.replace(MARK, rules()) if MARK in markdown else markdown


def rules() -> str:
    """One table of all rows, then a section each with where its values come from."""
    rows = tuple(default_registry())
    lines = [
        "| row | marks | minimum | block | lifetimes (write price) | read price | input count includes cached |",
        "| --- | --- | ---: | ---: | --- | ---: | --- |",
        *(_row(row) for row in rows),
        "",
    ]
    for row in rows:
        lines += _section(row)
    return "\n".join(lines)


def _row(row: Profile) -> str:
    marks = f"{row.control}, up to {row.max_breakpoints}" if row.max_breakpoints else row.control
    lives = ", ".join(f"{ttl.name} ({ttl.write:g}x)" for ttl in row.ttls)
    included = "yes" if row.input_includes_cached else "no"
    name = f"[{row.name}](#{_anchor(row.name)})"
    return f"| {name} | {marks} | {row.min_tokens:,} | {row.block_tokens} | {lives} | {row.read:g}x | {included} |"


def _section(row: Profile) -> list[str]:
    models = ", ".join(f"`{name}`" for name in row.models) or "chosen by provider or by name"
    lines = [f"### {row.name} {{ #{_anchor(row.name)} }}", "", f"Provider {row.provider}; models {models}."]
    if row.note:
        lines.append(f"{row.note[0].upper()}{row.note[1:]}.")
    lines += ["", "| values | source | checked on | confidence |", "| --- | --- | --- | --- |"]
    found: dict[tuple[str, str, str], list[str]] = {}
    for name, one in row.evidence.items():
        found.setdefault(_evidence(one), []).append(f"`{name}`")
    found.setdefault((row.source, row.checked_on.isoformat(), row.confidence), []).append("all others")
    lines += [f"| {', '.join(names)} | {' | '.join(told)} |" for told, names in found.items()]
    return [*lines, ""]


def _evidence(one: Evidence) -> tuple[str, str, str]:
    return (one.source, one.checked_on.isoformat(), one.confidence)


def _anchor(name: str) -> str:
    return "row-" + name.replace(".", "-").replace("/", "-")

"""A frozen prefix committed beside the tests: whoever changes it sees where, how, and what it costs."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cacheprefix.errors import StateError
from cacheprefix.layout import SharedPrefix
from cacheprefix.profiles import lost_money
from cacheprefix.prompt import Kind, Prompt, Tier, dumps, estimate_tokens, loads, placed, section
from cacheprefix.session import Session
from cacheprefix.testing.assertions import assert_prefix_stable, head_of, parted, profile_of, prompts_of
from cacheprefix.wire import decode

_VERSION = 1
_DIFF = 40
_LINES = re.compile(r"[^\n]{1,100}(?:\s|$)|[^\n]{1,100}|\n")
"""Lines of a text, long ones cut between words; together they are the text again."""


def frozen_prefix(what: Any, *, model: str = "", provider: str | None = None) -> Prompt:
    """What all calls begin with: tools, system text, and the settings that separate caches.

    ``what`` is a ``SharedPrefix``, a ``Session`` (tools of a framework count once its adapter has frozen them), a
    ``prefix_recorder``, a list of calls, prompts or bodies, or one prompt. Raises ``AssertionError`` where calls
    do not begin alike, ``StateError`` where there is nothing to freeze.
    """
    if isinstance(what, Session):
        what = what.prefix
    if isinstance(what, SharedPrefix):
        what = what.frozen()
        tools = [{"type": "function", "function": loads(tool.schema)} for tool in what.tools]
        messages = [{"role": "system", "content": what.text}] if what.text else []
        return decode({"model": model, "tools": tools, "messages": messages}, "openai-chat")
    prompts = (what,) if isinstance(what, Prompt) else prompts_of(what)
    if not prompts:
        raise StateError("there are no calls to take a prefix from: was the run recorded?")
    assert_prefix_stable(prompts, volatile=False, provider=provider)
    head = head_of(prompts[0])
    lane = placed(head, profile_of(head, provider).settings, "lane")
    return Prompt(head.api, model or head.model, head.sections, lane)


@dataclass(frozen=True, slots=True)
class PrefixSnapshot:
    """The fixture ``prefix_snapshot``: call it with what holds the prefix.

    Snapshots are JSON files in ``__cacheprefix__`` beside the test, one a test (and ``name``). A missing one fails,
    so that a test that was renamed does not pass unseen: run pytest with ``--cacheprefix-update`` and commit it.
    """

    folder: Path
    test: str
    update: bool = False
    on_write: Callable[[Path], None] = field(default=lambda _: None, repr=False)

    def path(self, name: str = "") -> Path:
        """The file of a snapshot."""
        parts = [self.test, name] if name else [self.test]
        return self.folder / (re.sub(r"[^\w.-]+", "-", "--".join(parts)).strip("-") + ".json")

    def __call__(self, what: Any, *, name: str = "", model: str = "", provider: str | None = None) -> None:
        """Compare the prefix of ``what`` (see ``frozen_prefix``) with the snapshot.

        ``model`` and ``provider`` say whose prices count. Raises ``AssertionError`` with the path of the first
        difference, the diff, and the money per thousand calls.
        """
        __tracebackhide__ = True
        now = frozen_prefix(what, model=model, provider=provider)
        path = self.path(name)
        text = _written(now)
        if self.update:
            if not path.exists() or path.read_text("utf-8", "surrogatepass") != text:
                _replace(path, text)
                self.on_write(path)
            return
        if not path.exists():
            raise AssertionError(
                f"no snapshot of this prefix at {path}: run pytest with --cacheprefix-update and commit the file"
            )
        was = _read(path)
        if [one.data for one in was.sections] == [one.data for one in now.sections] and _frame(was) == _frame(now):
            return
        raise AssertionError(_difference(was, now, path, provider))


def _difference(was: Prompt, now: Prompt, path: Path, provider: str | None) -> str:
    """What became of a prefix since it was written down, and what that costs in 1,000 calls."""
    profile = profile_of(now, provider)
    parting = parted(was, now, profile)
    if parting is None:
        cause = f"the API form changed, {was.api} became {now.api}" if was.api != now.api else "the prefix changed"
        lines = [cause]
    else:
        lines = [f"the frozen prefix changed: {parting.cause} at {parting.path}", f"  {parting.said}"]
    lines += _diff(was, now)
    behind = parting.tokens if parting is not None else now.tokens
    lost = lost_money(behind, now.model, profile)
    if lost is not None:
        each = f"${lost * 1000:,.2f}"
    else:
        whose = f"no price is known for {now.model!r}" if now.model else "name the model= for money"
        each = f"{behind * (1 - profile.read) * 1000:,.0f} uncached input tokens ({whose})"
    lines.append(
        f"  {behind:,} of the {now.tokens:,} tokens stand behind the change: {each} more per 1,000 calls that cannot "
        f"read them from the cache ({profile.name})."
    )
    if now.tokens != was.tokens:
        more = "longer" if now.tokens > was.tokens else "shorter"
        lines.append(f"  The prefix is {abs(now.tokens - was.tokens):,} tokens {more} in every call.")
    lines.append(f"  If it is meant, run pytest with --cacheprefix-update and commit {path}")
    return "\n".join(lines)


def _diff(was: Prompt, now: Prompt) -> list[str]:
    old, new = _written(was).splitlines(), _written(now).splitlines()
    rows = list(difflib.unified_diff(old, new, "snapshot", "now", lineterm="", n=2))
    shown = [f"    {row}" for row in rows[:_DIFF]]
    return [*shown, f"    ... {len(rows) - _DIFF} more lines"] if len(rows) > _DIFF else shown


def _frame(prompt: Prompt) -> tuple[Any, ...]:
    envelopes = [(one.tier, one.kind, one.head) for one in prompt.sections]
    return prompt.api, prompt.model, dict(prompt.settings), envelopes


def _written(prompt: Prompt) -> str:
    """The snapshot: one line of text a line, one field of a schema a line, so that a diff reads well."""
    sections = [
        {"path": one.path, "tier": one.tier, "kind": one.kind, "head": one.head, **_content(one.kind, one.text)}
        for one in prompt.sections
    ]
    data = {
        "version": _VERSION,
        "api": prompt.api,
        "model": prompt.model,
        "settings": dict(sorted(prompt.settings.items())),
        "sections": sections,
    }
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _content(kind: Kind, text: str) -> dict[str, Any]:
    if kind == "text":
        return {"text": _LINES.findall(text)}
    value = loads(text.encode("utf-8", "surrogatepass"))
    # What JSON cannot give back byte for byte (1e5, -0) is kept as it stands.
    exact = dumps(value, "section").decode("utf-8", "surrogatepass") == text
    return {"json": value} if exact else {"raw": text}


def _read(path: Path) -> Prompt:
    """The prefix that a file holds; raises ``StateError`` for one of another version or none."""
    try:
        data = json.loads(path.read_text("utf-8", "surrogatepass"))
        if data["version"] != _VERSION:
            raise StateError(f"{path} has version {data['version']}, this one reads {_VERSION}; write it anew")
        sections = tuple(_section(one, str(data["model"])) for one in data["sections"])
        settings = {str(name): str(value) for name, value in data["settings"].items()}
        return Prompt(data["api"], str(data["model"]), sections, settings)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(
            f"{path} is no snapshot of a prefix ({type(error).__name__}: {error}); "
            "write it anew with --cacheprefix-update"
        ) from error


def _section(one: Mapping[str, Any], model: str) -> Any:
    if "text" in one:
        data = "".join(one["text"]).encode("utf-8", "surrogatepass")
    else:
        data = one["raw"].encode("utf-8", "surrogatepass") if "raw" in one else dumps(one["json"], "section")
    tier: Tier = one["tier"]
    return section(tier, one["path"], one["kind"], one["head"], data, lambda text: estimate_tokens(text, model))


def _replace(path: Path, text: str) -> None:
    """Write at once, so that parallel test processes never see half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(text, "utf-8", "surrogatepass")
    draft.replace(path)

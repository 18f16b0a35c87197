"""The layout of a fork's body: the shared system text and tools, the conversation as it is, the role's text last."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cacheprefix import Session, Turn
from cacheprefix.context import MessageView, apply, form_of, views_of
from cacheprefix.prefix import FOLLOW, Pass
from cacheprefix.prompt import Api, Prompt, loads
from cacheprefix_sdk._role import Role

_SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Laid:
    """A body ready to be sent, and what it was before."""

    session: Session
    api: Api
    body: dict[str, Any]
    given: dict[str, Any]
    role: Role | None
    tail: str = ""
    forked: bool = False

    def begin(self, leave: Pass | None) -> Turn:
        """The turn of this request."""
        role, session = self.role, self.session
        plain = (lambda _: session.decode(self.given, self.api)) if self.forked else None
        return session.begin(
            self.body,
            self.api,
            agent=role.name if role else "",
            conversation=role.conversation if role else "",
            boundary=self.boundary if self.forked else None,
            original=plain,
            rewrite=self.forked,
            leave=leave or FOLLOW,
        )

    def boundary(self, prompt: Prompt) -> int:
        """Where the shared part ends: before the role's text."""
        data = self.tail.encode("utf-8", "surrogatepass")
        found = (at for at in range(len(prompt.sections) - 1, -1, -1) if prompt.sections[at].data == data)
        return next(found, len(prompt.sections)) if self.tail else len(prompt.sections)

    def hides(self, event: Any) -> bool:
        """Whether an event of a stream came only because we asked for the usage."""
        asked = self.body.get("stream_options") != self.given.get("stream_options")
        return asked and getattr(event, "usage", None) is not None and not getattr(event, "choices", None)


def laid_out(session: Session, body: dict[str, Any], api: Api, role: Role | None) -> Laid:
    """The body as a fork of ``role``; as it came without a role, in observe mode, where sharing gains nothing."""
    plain = Laid(session, api, body, body, role)
    if role is None or session.mode == "observe":
        return plain
    session.join(role.name)
    found = session.attempt("layout", lambda: _forked(session, body, api, role), None)
    if found is None:
        return plain
    history, system, tail, tools, field = found
    history = _condensed(session, history, role, str(body.get("model", "")), api)
    laid = {**body, field: [*system, *history, *([{"role": "user", "content": tail}] if tail else [])], **tools}
    for name in ("system", "instructions"):
        laid.pop(name, None)
    if api == "anthropic" and session.prefix.text:
        laid["system"] = session.prefix.text
    if api == "openai-chat" and body.get("stream") and "stream_options" not in body:
        laid["stream_options"] = {"include_usage": True}
    return Laid(session, api, laid, body, role, tail, forked=True)


def _condensed(session: Session, history: list[Any], role: Role, model: str, api: Api) -> list[Any]:
    """The history with large results shortened and, where that is due and pays, compacted."""
    form = form_of(api)
    none: tuple[MessageView, ...] = ()
    if form is None:
        return history
    views = session.attempt("views", lambda: views_of(history, form, session.counter(model)), none)
    # Outside of attempt: it fails open by itself, and a request budget that cannot be met is to be heard of.
    decisions = session.condense(session.conversation(role.conversation), views, model, api) if views else ()
    return session.attempt("condense", lambda: apply(history, decisions, form), history) if decisions else history


def _forked(
    session: Session, body: Mapping[str, Any], api: Api, role: Role
) -> tuple[list[Any], list[Any], str, dict[str, Any], str] | None:
    field = "input" if api == "openai-responses" else "messages"
    given = body.get(field) or []
    history = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
    own = [_text(body.get("system" if api == "anthropic" else "instructions"))] if api != "openai-chat" else []
    while history and isinstance(history[0], Mapping) and history[0].get("role") in _SYSTEM:
        own.append(_text(history.pop(0).get("content")))
    shared = session.prefix.system.strip()
    parts = [role.instruction, *(text.replace(shared, "", 1).strip() if shared else text for text in own)]
    tools, said = _tools(session, body, api)
    tail = session.tail_for(
        role.name, "\n\n".join(dict.fromkeys(part for part in parts if part)), tools=said, volatile=role.volatile
    )
    model = str(body.get("model", ""))
    spoken = sum(session.count(str(message), model) for message in history)
    schemas = sum(session.count(tool.schema.decode(), model) for tool in session.prefix.tools)
    if not session.shares(role.conversation, model, lambda: spoken + schemas):
        return None
    text = session.prefix.text
    system = [{"role": "system", "content": text}] if text and api != "anthropic" else []
    return history, system, tail, tools, field


def _tools(session: Session, body: Mapping[str, Any], api: Api) -> tuple[dict[str, Any], Sequence[str] | None]:
    """The union in place of the role's tools, and what the tail has to say about them."""
    own = list(body.get("tools") or [])
    if any(not _plain(tool) for tool in own) or not (own or session.prefix.tools):
        return {}, None
    # Copies: what the application later does to its dicts must not change the prefix.
    union = session.adopt_tools(copy.deepcopy(own), dict)
    names = set(session.prefix.tool_names)
    extra = [tool for tool in own if _name(tool) not in names]
    listed = [_rendered(tool.native, loads(tool.schema), api) for tool in union]
    bound = [_name(tool) for tool in own]
    fields: dict[str, Any] = {"tools": [*listed, *extra]}
    if set(bound) >= names:
        return fields, None
    safe = session.profile(str(body.get("model", "")), api).tool_choice_safe
    if safe != "keep" and not bound and "tool_choice" not in body:
        return {**fields, "tool_choice": {"type": "none"} if api == "anthropic" else "none"}, None
    return fields, bound


def _rendered(native: Any, schema: Mapping[str, Any], api: Api) -> Any:
    """A tool as the application declared it, where that is this API's form."""
    if isinstance(native, Mapping) and _plain(native):
        forms = {"openai-chat": "function" in native, "anthropic": "input_schema" in native}
        if forms.get(api, native.get("type") == "function" and "function" not in native):
            return dict(native)
    if api == "anthropic":
        rest = {key: value for key, value in schema.items() if key != "parameters"}
        return {**rest, "input_schema": schema["parameters"]}
    if api == "openai-responses":
        return {"type": "function", "strict": False, **schema}
    return {"type": "function", "function": dict(schema)}


def _plain(tool: Any) -> bool:
    """Whether a tool is a function of the application's, and not one that the provider runs."""
    if not isinstance(tool, Mapping):
        return False
    return "function" in tool or "input_schema" in tool or tool.get("type") == "function"


def _name(tool: Mapping[str, Any]) -> str:
    inner = tool.get("function")
    return str((inner if isinstance(inner, Mapping) else tool).get("name") or "")


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n\n".join(str(block.get("text", "")) for block in content if isinstance(block, Mapping))
    return content if isinstance(content, str) else ""

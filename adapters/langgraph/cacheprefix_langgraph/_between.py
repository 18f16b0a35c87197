"""Somewhere for a breakpoint to stand behind an assistant's words, where the provider takes none on them.

GPT-5.6 reads what ends at a breakpoint, and takes one on the words of users and tools alone (langchain4j's
``OpenAiOfficialPromptCacheBreakpoint``, read 2026-11-21). Where one role follows another without a user between them,
each answer would be sent uncached with every later request. A short message of the user's behind it carries the mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from cacheprefix import Session
from cacheprefix.prompt import Prompt
from cacheprefix_langgraph._decided import Decided

_NEXT: Final = "<next/>"
_BETWEEN: Final = "cacheprefix_between"
_HANDED_BACK: Final = "__is_handoff_back"
"""In the metadata of what a supervisor's worker is made to say right behind its answer: nobody is asked in between."""


def parted(done: Decided, session: Session, model: str) -> Decided:
    """The conversation with a mark's place behind each answer that ended a request, or may end this one's shared part.

    That goes by the messages alone, so every fork and every later request has the same.
    """
    profile = session.profile(model)
    if session.mode == "observe" or profile.markers != "openai" or profile.match != "breakpoint":
        return done
    out: list[BaseMessage] = []
    border = done.border
    for index, message in enumerate(done.messages):
        out.append(message)
        if _ends_a_request(message, done.messages[index + 1 : index + 2], shared_ends=index + 1 == done.border):
            out.append(HumanMessage(_NEXT, additional_kwargs={_BETWEEN: True}))
            border += index < done.border
    return done if len(out) == len(done.messages) else done._replace(messages=out, border=border)


def together(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The conversation without what ``parted`` put into it."""
    return [message for message in messages if _BETWEEN not in message.additional_kwargs]


def apart(prompt: Prompt) -> Prompt:
    """A prompt without what ``parted`` put into its conversation, for what the application would have sent."""
    data = _NEXT.encode()
    return replace(prompt, sections=tuple(one for one in prompt.sections if one.data != data))


def _ends_a_request(message: BaseMessage, behind: Sequence[BaseMessage], *, shared_ends: bool) -> bool:
    if not isinstance(message, AIMessage) or message.tool_calls or not message.text:
        return False
    spoken = any(isinstance(one, AIMessage) and not one.response_metadata.get(_HANDED_BACK) for one in behind)
    return shared_ends or spoken

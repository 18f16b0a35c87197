"""Answers as the SDKs' objects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from cacheprefix.errors import BodyError
from cacheprefix.wire.answers import read_answer


class Block(BaseModel):
    type: str
    text: str
    citations: list[str] | None = None
    parsed_output: str | None = None


class Answer(BaseModel):
    content: list[Block]


def test_a_parsed_answer_is_read_without_a_warning_and_without_what_it_left_out() -> None:
    """Pydantic warns of fields that hold more than they declare, which the application would see as its own."""
    answer = Answer(content=[Block(type="text", text="yes")])
    answer.content[0].parsed_output = {"good": True}  # type: ignore[assignment]  # as ``parse`` does
    said: Any = read_answer(answer, "anthropic").messages
    assert said == ({"role": "assistant", "content": [{"type": "text", "text": "yes"}]},)


@pytest.mark.parametrize("given", [7, SimpleNamespace(content=[]), SimpleNamespace(model_dump=lambda **_: [])])
def test_what_is_no_answer_is_named_by_its_class(given: Any) -> None:
    """Never read as an empty one."""
    with pytest.raises(BodyError, match=type(given).__name__):
        read_answer(given, "anthropic")

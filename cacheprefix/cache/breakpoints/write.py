"""Set breakpoints on a wire body, without touching the body that was given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cacheprefix.prompt import Api, Prompt
from cacheprefix.wire.apis import SHAPES
from cacheprefix.wire.body_copy import BodyCopy

if TYPE_CHECKING:
    from cacheprefix.cache.breakpoints.plan import Breakpoint

_STEP = re.compile(r"^(?:tools|system|messages)\[(\d+)\](?:\.content(?:\[(\d+)\])?)?$")


def mark(body: Mapping[str, Any], api: Api, prompt: Prompt, breakpoints: Sequence[Breakpoint]) -> dict[str, Any]:
    """A copy of ``body`` with the breakpoints set; everything that is not marked is the very same object.

    ``prompt`` is the body decoded. A text that stands as a bare string becomes one text block, which providers
    take for the same; a tool result is marked on its own block, so that its content keeps its shape. What
    cannot carry a breakpoint is left as it is. How a marker looks, the API's module in ``wire`` says.
    """
    shape, made = SHAPES[api], BodyCopy(body)
    # From the end: Bedrock's cache points are blocks of their own and move the indexes behind them.
    for one in sorted(breakpoints, key=lambda one: -one.section):
        if one.section < 0:
            continue
        section = prompt.sections[one.section]
        step = _STEP.match(section.path)
        if step is not None:
            shape.mark(made, section, int(step[1]), int(step[2] or 0), one.ttl)
    if any(one.alone for one in breakpoints):
        for name, value in shape.FIELDS.only_marked.items():
            made.body.setdefault(name, dict(value))
    return made.body

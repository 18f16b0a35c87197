"""Whether requests are ones that the real provider takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cacheprefix.errors import BodyError
from cacheprefix.testing.assertions import body_of, listed, profile_of, prompt_of
from cacheprefix.wire import encode, structure_errors

_SHOWN = 5


def assert_valid_requests(calls: Any, *, provider: str | None = None) -> None:
    """Assert that the provider would take every request: pairs of calls and results, order, no empty texts.

    ``calls`` as in ``assert_shared_prefix``: a ``prefix_recorder``, or a list of calls, prompts, bodies or requests of
    a simulated provider. ``provider`` names the profile where the model's name does not tell: it knows which models
    take the beginning of their answer. The rules and their sources stand in ``cacheprefix.wire.structure_errors``.
    """
    __tracebackhide__ = True
    lines = [
        f"  call {index}, {error}"
        for index, call in enumerate(listed(calls))
        for error in request_errors(call, provider=provider)
    ]
    if lines:
        more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        raise AssertionError("\n".join(["the provider would refuse these requests", *lines[:_SHOWN], *more]))


def request_errors(call: Any, *, provider: str | None = None) -> list[BodyError]:
    """What the provider would refuse one request for; ``call`` is one of those that ``assert_valid_requests`` takes.

    Where the bytes were recorded they are looked at, else the prompt that was read from them. Raises ``TypeError`` for
    what is no call, and ``BodyError`` for a body that cannot be read as a prompt at all.
    """
    prompt, body = prompt_of(call), body_of(call)
    profile, body = profile_of(prompt, provider), body if isinstance(body, Mapping) else encode(prompt)
    return structure_errors(body, prompt.api, prefill=profile.prefill, mid_system=profile.mid_system)

"""Whether requests are ones that the real provider takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cacheprefix.errors import BodyError
from cacheprefix.prompt import Api, Prompt, loads
from cacheprefix.testing.assertions import listed, profile_of
from cacheprefix.wire import decode, encode, guess_api, structure_errors

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
    body, api, prompt = _parts(call)
    profile = profile_of(prompt, provider)
    return structure_errors(body, api, prefill=profile.prefill, mid_system=profile.mid_system)


def _parts(call: Any) -> tuple[Mapping[str, Any], Api, Prompt]:
    held = call if isinstance(call, Prompt) else getattr(call, "prompt", None)
    given = getattr(call, "body", None) or call
    if isinstance(held, Prompt):
        body = loads(given) if isinstance(given, bytes) and given else encode(held)
        return body, held.api, held
    body = loads(given) if isinstance(given, (bytes, str)) else given
    if not isinstance(body, Mapping):
        raise TypeError(f"a {type(call).__name__} is no call: pass recorded calls, prompts or request bodies")
    api = getattr(call, "api", None) or guess_api(body)
    return body, api, decode(body, api)

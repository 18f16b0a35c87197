"""What a session is made with, beside its prefix: values that group what belongs together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

from cacheprefix.cache.routing import Keys
from cacheprefix.history import Compaction, RequestBudget, Results, ToolResultBudget
from cacheprefix.layout import RoleAs, TailPlacement
from cacheprefix.layout.gate import LIMIT, PRICE
from cacheprefix.mode import Mode
from cacheprefix.profiles import Registry
from cacheprefix.prompt import Counter
from cacheprefix.stores import Store

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class Gate:
    """How long siblings that start together on a cold prefix wait for the first one to write it."""

    limit: float = LIMIT
    """Seconds that nobody waits beyond."""
    price: float = PRICE
    """Cost units that a second of waiting is to save; 0 waits always."""
    store: Store | None = None
    """Where siblings of other processes are waited for too; None for this process alone."""


@dataclass(frozen=True, slots=True)
class Caching:
    """By which provider's rules requests are laid out and reckoned, and whose cache it is."""

    provider: str | None = None
    """The profile that counts where a model's name does not tell."""
    scope: str = ""
    """The tenant whose cache it is, where a request does not say."""
    tail: TailPlacement = "tail"
    """Where roles' texts stand: ``tail``, behind what is shared; ``cards``, all of them in the shared system text."""
    profiles: Registry | None = None
    """The providers' rules; None for those that are built in."""
    role_as: RoleAs = "user"
    """As whom a role's text is said behind the conversation: ``developer`` gives it a system text's authority where the
    model takes such a message there (OpenAI's; Anthropic's newest as a system message), and is a user's elsewhere."""
    counter: Counter | None = None
    """Counts tokens; None for the best that is installed for a model."""
    fork_share: float | None = None
    """Of the conversations, that are forked: 0.05 is one in twenty, the same ones in every process. All others stay in
    the application's own layout, the report sets both side by side, and a role whose forks cost more goes back to its
    own. None forks all."""
    lifetime: str | None = None
    """How long what is written is to live, as the provider spells it (Anthropic ``5m``, ``1h``; OpenAI ``in_memory``,
    ``24h``, from 5.6 on ``30m``, and ``12h`` in the Responses API); ``auto`` for what the pauses of the run make
    cheapest; None for the provider's default."""
    routing_keys: Keys = "auto"
    """Routing keys that the conversations of one prefix are spread over, where a provider routes by key; ``auto`` for
    one until a minute's requests are more than one key serves. Processes of a fleet see a part each: those with a store
    (``Gate(store=...)``) count together, others need a number."""
    clock: Callable[[], float] = time.time
    """Gives seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class History:
    """What holds for histories beside the budget of a tool result and the compaction."""

    request_budget: RequestBudget | None = None
    """Holds whole requests to the model's window."""
    results: Results | None = None
    """Keeps the full texts of results that were cut; None for this process's memory."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a session's parts go by; they hold it, so that none of it can be set afterwards."""

    mode: Mode
    budget: ToolResultBudget | None
    compaction: Compaction | None
    request_budget: RequestBudget | None
    results: Results
    provider: str | None
    asked: Mode = "fork"
    """The mode that the program asked for, where ``CACHEPREFIX_MODE`` did not take it back."""
    role_as: RoleAs = "user"
    """As whom role texts are said."""


V = TypeVar("V", bound="DataclassInstance")


def over(found: V, given: V) -> V:
    """``found`` with what ``given`` says otherwise than a value of its kind that nobody filled."""
    plain = type(given)()
    said = {one.name: getattr(given, one.name) for one in fields(given)}
    return replace(found, **{name: value for name, value in said.items() if value != getattr(plain, name)})

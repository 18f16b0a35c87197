"""What a session and its first requests load, counted in modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

FIRST = """
import json, sys
for extra in ("genai_prices", "tiktoken", "transformers"):
    sys.modules[extra] = None
before = set(sys.modules)
import cacheprefix
rules = "Everyone keeps to these rules of the house. " * 200
session = cacheprefix.Session(cacheprefix.SharedPrefix(system=rules))
from cacheprefix.calls.begin import Request
made = set(sys.modules)

def ask():
    said = [{"role": "user", "content": "Hello"}]
    for api, body, usage in (
        ("anthropic", {"model": "claude-sonnet-4-5", "max_tokens": 9, "system": rules, "messages": said},
         {"input_tokens": 9, "cache_creation_input_tokens": 2_000, "cache_read_input_tokens": 0, "output_tokens": 5}),
        ("openai-chat", {"model": "gpt-5", "messages": [{"role": "system", "content": rules}, *said]},
         {"prompt_tokens": 2_009, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}}),
    ):
        for agent in ("planner", "critic"):
            session.adapter.begin(Request(body, api, agent=agent, conversation="one")).finish(usage)

async def later():
    loaded = set(sys.modules)
    ask()
    return sorted(set(sys.modules) - loaded)

PLAIN
str(session.report())
assert not session.failures, session.failures
print(json.dumps({"made": sorted(made - before), "asked": sorted(set(sys.modules) - made), "in_a_loop": in_a_loop}))
"""


def loaded(*, loop: bool, plugins: str | None = "") -> Any:
    """Modules by when they came: with the session, and with its first requests; without plugins, or with the named.

    None leaves out none that is installed.
    """
    asks = "import asyncio; in_a_loop = asyncio.run(later())" if loop else "ask(); in_a_loop = []"
    command = [sys.executable, "-c", FIRST.replace("PLAIN", asks)]
    given = {name: value for name, value in os.environ.items() if name != "CACHEPREFIX_PLUGINS"}
    if plugins is not None:
        given["CACHEPREFIX_PLUGINS"] = plugins
    shown = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


@pytest.fixture(scope="module")
def plain() -> Any:
    """What a program without an event loop loads."""
    return loaded(loop=False)


def test_a_session_loads_only_the_rooms_that_it_needs(plain: Any) -> None:
    """Not the tool cache, stores that it has none of, configuration, or a tool; of them at most 139 modules."""
    ours = [name for name in plain["made"] if name.startswith("cacheprefix.")]
    rooms = ("audit", "bodies", "cli", "config", "events", "record", "report", "server", "telemetry", "testing")
    unneeded = (*rooms, "toolcache", "verify", "stores.redis", "stores.sqlite")
    assert [name for name in ours if name.removeprefix("cacheprefix.").startswith(unneeded)] == []
    assert len(ours) <= 139


def test_a_session_loads_nothing_large_that_the_application_may_not_need(plain: Any) -> None:
    """An event loop, TLS or a database come with who uses them."""
    large = {"asyncio", "decimal", "multiprocessing", "sqlite3", "ssl", "statistics"}
    # On Python 3.10 its own ``platform``, which orjson loads, loads this one.
    if sys.version_info >= (3, 11):
        large.add("subprocess")
    assert large.intersection(plain["made"] + plain["asked"]) == set()


def test_requests_load_nothing(plain: Any) -> None:
    """What they need was loaded with the session: nobody waits for a disk in an event loop."""
    assert [name for name in plain["asked"] if name.startswith("cacheprefix")] == []
    assert loaded(loop=True)["in_a_loop"] == []


PRICES = """
import asyncio, sys
from cacheprefix import Session, Usage
from cacheprefix.calls.begin import Request

class Listens:
    def cacheprefix_after_call(self, call, verdict):
        pass

def there():
    return "genai_prices" in sys.modules

def one(session):
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hello"}]}
    session.adapter.begin(Request(body, "openai-chat")).finish(Usage(1_000_000, 0))
    return session.calls[-1]

session = Session()
found = [one(session), there()]

async def in_a_loop():
    call = one(session)
    found.append((call.money, there()))
    return session.report().total.money

print(found[1], asyncio.run(in_a_loop()), *found[2], there(), one(session).money, there())
"""


def test_the_library_of_prices_is_imported_when_money_is_asked_for() -> None:
    """Not by a call, nor by a question in an event loop, which the shipped table answers."""
    pytest.importorskip("genai_prices", reason="needs the extra prices, which make test installs")
    shown = subprocess.run([sys.executable, "-c", PRICES], capture_output=True, text=True, check=False)
    assert shown.stdout.split() == ["False", "2.5", "1.25", "False", "False", "1.25", "True"], shown.stderr


def test_a_session_whose_plugin_hears_of_calls_imports_the_library_of_prices_when_it_is_made() -> None:
    """The plugin may ask what a call cost, in an event loop."""
    pytest.importorskip("genai_prices", reason="needs the extra prices, which make test installs")
    program = PRICES.replace("session = Session()", "session = Session(plugins=[Listens()])")
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert shown.stdout.split() == ["True", "2.5", "1.25", "True", "True", "1.25", "True"], shown.stderr


def test_an_installed_adapter_loads_nothing_but_its_plugin(plain: Any) -> None:
    """Its framework, its SDKs and the rooms that they need are loaded by who uses it."""
    made = set(loaded(loop=False, plugins=None)["made"]) - set(plain["made"])
    ours = {name for name in made if name.startswith("cacheprefix")}
    assert "cacheprefix_sdk.plugin" in ours
    assert all(name.endswith(".plugin") for name in ours - {"cacheprefix.entry_points"} if "." in name)

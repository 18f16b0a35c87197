"""An application whose session is made, and used by threads, before its server forks its workers.

``application`` is served by gunicorn (``--preload``), ``queue`` by Celery's prefork pool. Where both meet the provider,
``CACHEPREFIX_TEST_URL`` says, and ``CACHEPREFIX_TEST_FOLDER`` where processes meet.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import anthropic
from celery import Celery

from cacheprefix import Compaction, Gate, Session, SharedPrefix
from cacheprefix.bodies import Role, fork_body
from cacheprefix.stores import SqliteStore
from cacheprefix_sdk import role, wrap

HANDBOOK = "The handbook says that every statement needs a source. " * 300
FOLDER = Path(os.environ["CACHEPREFIX_TEST_FOLDER"])
MODEL, LED = "claude-sonnet-4-6", "claude-opus-4-8"
PARENT = os.getpid()
SESSION = Session(
    SharedPrefix(system=HANDBOOK),
    compaction=Compaction(50_000),
    tool_cache=True,
    # Longer than any test waits: who waits for something of the parent's is found out.
    gate=Gate(limit=600.0, price=0.0, store=SqliteStore(FOLDER / "gate.db")),
)
ALONE = Session(SharedPrefix(system=HANDBOOK), gate=Gate(limit=600.0, price=0.0))
"""Its gate is of one process: a forked child knows nothing of who leads in the parent."""


def busy() -> None:
    """Use the session all the time, as the threads of a parent do that warms up or answers already."""
    number = 0
    while True:
        number += 1
        history = [{"role": "user", "content": f"question {number % 50}"}]
        body = {"model": "claude-haiku-4-5", "max_tokens": 9, "system": HANDBOOK, "messages": history}
        fork = fork_body(SESSION.adapter, body, "anthropic", Role("parent", "You warm up.", f"talk {number % 7}"))
        fork.begin().finish({"input_tokens": 10, "output_tokens": 1})
        time.sleep(0.001)


for _ in range(4):
    threading.Thread(target=busy, daemon=True).start()
time.sleep(0.2)

LEADING = ALONE.adapter.waiting.queue(
    {"model": LED, "max_tokens": 9, "system": HANDBOOK, "messages": []}, "anthropic", boundary=1
)
"""The parent leads on a cold prefix, is never answered, and forks."""


def ask(name: str, model: str = MODEL) -> dict[str, Any]:
    """One question of a role, in this process."""
    began, session = time.monotonic(), ALONE if model == LED else SESSION
    url = os.environ["CACHEPREFIX_TEST_URL"]
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as plain, role(name, instruction=f"Be {name}."):
        messages: list[Any] = [{"role": "user", "content": "What now?"}]
        client = wrap(plain, session)
        answer = client.messages.create(model=model, max_tokens=30, system=HANDBOOK, messages=messages)
    return {
        "pid": os.getpid(),
        "parent": os.getpid() == PARENT,
        "read": answer.usage.cache_read_input_tokens,
        "seconds": time.monotonic() - began,
        "calls": len([call for call in session.calls if call.agent == name]),
        "failures": dict(session.failures),
    }


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """``/NAME`` asks in the role of that name; ``/`` only says who answers."""
    name = environ["PATH_INFO"].strip("/")
    said = ask(name) if name else {"pid": os.getpid()}
    start_response("200 OK", [("content-type", "application/json")])
    return [json.dumps(said).encode()]


queue = Celery("prefork")
queue.conf.update(
    broker_url="filesystem://",
    broker_transport_options={
        "data_folder_in": str(FOLDER / "queue"),
        "data_folder_out": str(FOLDER / "queue"),
        "control_folder": str(FOLDER / "control"),
    },
    result_backend=f"file://{FOLDER / 'results'}",
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


@queue.task(name="ask")
def asked(name: str, model: str = MODEL) -> dict[str, Any]:
    """``ask`` as a task."""
    return ask(name, model)

"""The team in a prefork server: loaded once, then forked.

TEAM_FOLDER=/tmp gunicorn --preload --workers 4 prefork_app:application
curl 'localhost:8000/one?Plan+the+move.'
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any
from urllib.parse import unquote_plus

from team import graph_of_this_process, session


@cache
def graph() -> Any:
    """This worker's."""
    return graph_of_this_process()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """``/THREAD?QUESTION``: one turn of a thread."""
    thread, text = environ["PATH_INFO"].strip("/") or "one", unquote_plus(environ.get("QUERY_STRING", "")) or "Begin."
    out = graph().invoke({"messages": [{"role": "user", "content": text}]}, {"configurable": {"thread_id": thread}})
    said = {"answer": out["messages"][-1].text, "worker": os.getpid(), "failures": dict(session.failures)}
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(said).encode()]

"""The team behind FastAPI, in several worker processes.

TEAM_FOLDER=/tmp uvicorn fastapi_app:app --workers 4
curl -X POST localhost:8000/threads/one -H 'content-type: application/json' -d '{"text": "Plan the move."}'
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from team import graph_of_this_process, session

app = FastAPI()


class Question(BaseModel):
    """What a user asks."""

    text: str
    tenant: str = ""
    """Whose it is: nothing of one tenant's is in another's prompts."""


@cache
def graph() -> Any:
    """This worker's."""
    return graph_of_this_process()


@app.post("/threads/{thread}")
def ask(thread: str, question: Question) -> dict[str, Any]:
    """One turn of a thread, whichever worker answered the last one."""
    config = {"configurable": {"thread_id": thread, "cacheprefix_scope": question.tenant}}
    out = graph().invoke({"messages": [{"role": "user", "content": question.text}]}, config)
    return {"answer": out["messages"][-1].text, "worker": os.getpid()}


@app.get("/report")
def report() -> dict[str, Any]:
    """What this worker's requests cost; each worker has its own."""
    return {"worker": os.getpid(), **session.report().as_dict()}

"""Verdicts while a graph runs, in its own custom stream."""

from __future__ import annotations

from typing import Any

from langgraph.config import get_stream_writer

from cacheprefix import Call, Verdict, hookimpl


class StreamVerdicts:
    """A plugin that writes each call's verdict to the running graph's stream (``stream_mode="custom"``).

    Give it to the session: ``Session(..., plugins=[StreamVerdicts()])``. An entry is a dict under the key
    ``cacheprefix`` with ``agent``, ``cause``, ``expected`` and ``read`` tokens, ``alarm``, and ``path`` and ``fix``
    where something broke; it holds no prompt text. Calls outside a graph are left out.
    """

    @hookimpl
    def cacheprefix_after_call(self, call: Call, verdict: Verdict) -> None:
        """Write the verdict where a graph is running."""
        try:
            write = get_stream_writer()
        except RuntimeError:
            # LangGraph's word for code that no graph runs.
            return
        entry: dict[str, Any] = {
            "agent": call.agent,
            "cause": str(verdict.cause),
            "read": call.usage.cache_read_tokens,
            "input": call.input_tokens,
            "alarm": verdict.alarm,
            "path": verdict.path,
            "fix": verdict.fix,
        }
        write({"cacheprefix": entry})

"""Which results are failures: those are never kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cacheprefix.toolcache import ToolResultCache, ToolSpec, looks_like_error

FAILED = [
    *("[error] x", " [ERROR] x", "Error: not found", "error: timeout", "ValueError: bad", "fatal: no repository"),
    *("Traceback (most recent call last):\n", "Exception: x", "HTTP 500", "HTTP/1.1 404 Not Found", "HTTP error 429"),
    *("404 Client Error: Not Found for url", "503 Service Unavailable", "429 Too Many Requests", "status code: 500"),
    *("Failed to fetch", "Request timed out", "Rate limit exceeded", "Permission denied", "Connection refused"),
    *('{"error": "x"}', '{"ok": false, "data": null}', '{"data": null, "error": {"code": 1}}', b"Error: x"),
    *("{'error': 'x'}", "{'ok': False, 'data': None}", "{'data': 1, 'status': 503}", "{'isError': True}"),
    *("{'error': \"it's down\"}", "{'status': 'failed'}", "{'errors': ['x']}", "Request failed with status code 500"),
    *("Not found", "Unauthorized.", "Could not connect to the host"),
    *("Error executing tool read: down", "Error calling tool 'read': down", "Error executing MCP tool read: down"),
    *("MCP tool 'read' timed out after 30 seconds", "MCP tool execution failed after 3 attempts: down"),
    *("Tool 'read' not found on MCP server", "Network connection failed: down", "MCP execution error: down"),
    *("Authentication failed for MCP server: 1", "Server response parsing error: down"),
    *({"isError": True}, {"is_error": True}, {"error": "rate limit"}, {"errors": [{"message": "x"}]}, {"ok": False}),
    *({"status": "error"}, {"status": "FAILED"}, {"status": 500}, {"status": "404 Not Found"}, {"success": False}),
    *({"status_code": 403, "body": ""}, {"statusCode": 429}, {"code": 502}, {"type": "error", "message": "x"}),
    [{"type": "text", "text": "Error: x"}],
    [{"type": "text", "text": "fine"}, {"type": "text", "text": "HTTP 500"}],
    [{"type": "tool_result", "is_error": True}],
    ("Error: x", None),
    ["Error: x"],
    SimpleNamespace(status="error"),
    SimpleNamespace(status_code=500),
    SimpleNamespace(isError=True),
    SimpleNamespace(error="x", value=None),
    ValueError("x"),
]
FINE = [
    *("", "text", "an error: in the middle", "500 results", "404 files", "The HTTP 500 page", "errors: 0", "{", "[]"),
    *('{"error": null}', '{"status": "ok", "errors": []}', '{"errors": 3}', b"", b"bytes", 404, 500.0, True, False),
    *("{'error': None}", "{'errors': []}", "{'error': ''}", "{'status': 'ok', 'code': 7}", "Not found dogs, but cats"),
    *("Error handling in tools", "Error executing SQL is rare", "Tool 'read' reads", "Network connection: up"),
    *(None, [], (), {}, {"status": "ok"}, {"status": 200}, {"error": None}, {"error": ""}, {"error": False}),
    *({"errors": 0}, {"errors": 3}, {"success": True}, {"code": "E404"}, {"code": 7}, {"status": None}),
    [{"type": "text", "text": "fine"}],
    ("fine", "Error: an artifact"),
    SimpleNamespace(status="done", error=None, errors=[]),
    SimpleNamespace(status_code=200),
]


@pytest.mark.parametrize("result", FAILED, ids=repr)
def test_results_that_report_a_failure_are_run_again(result: Any) -> None:
    """As text, as JSON, as a mapping, an object, an exception, in parts, with a code of HTTP."""
    assert looks_like_error(result)
    cache, runs = ToolResultCache(), []
    for _ in range(3):
        cache.call(ToolSpec("look", cacheable=True), {}, lambda: runs.append(1) or result)
    assert len(runs) == 3


@pytest.mark.parametrize("result", FINE, ids=repr)
def test_results_that_report_none_are_kept(result: Any) -> None:
    """Also where they speak of errors."""
    assert not looks_like_error(result)

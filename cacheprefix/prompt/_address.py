"""Which API a request speaks, told by the path that it goes to."""

from __future__ import annotations

import re
from urllib.parse import unquote

from cacheprefix.prompt._sections import Api

_PATHS: tuple[tuple[re.Pattern[str], Api], ...] = (
    (re.compile(r"/chat/completions$"), "openai-chat"),
    (re.compile(r"/responses$"), "openai-responses"),
    (re.compile(r"/messages$"), "anthropic"),
    (re.compile(r"/models/(?P<model>[^/]+):(?:stream)?[gG]enerateContent$"), "gemini"),
    (re.compile(r"/model/(?P<model>[^/]+)/converse(?:-stream)?$"), "bedrock"),
)


def api_of_path(path: str) -> tuple[Api, str | None] | None:
    """The API of a request to ``path``, and the model where the path names it.

    None for a path that asks no model for an answer (embeddings, counting tokens, lists of models). ``path`` is that
    of a URL, without the query.
    """
    for pattern, api in _PATHS:
        found = pattern.search(path)
        if found is not None:
            model = found.groupdict().get("model")
            return api, None if model is None else unquote(model)
    return None

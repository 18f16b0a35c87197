"""Providers that ``cacheprefix bench`` talks to, over plain HTTPS: what they answer and what they report."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacheprefix.errors import CacheprefixError, SetupError
from cacheprefix.prompt import dumps, loads

if TYPE_CHECKING:
    from cacheprefix.profiles import Profile, Usage
    from cacheprefix.prompt import Api

_SECONDS = 120.0
_COMPUTED = re.compile(r"prompt eval time =.*?/\s*(\d+) tokens")
"""llama.cpp's line on a request: how many tokens of its prompt it computed, so did not have in its cache."""


class AnswerError(CacheprefixError):
    """A provider refused a request, could not be reached, or answered something unexpected."""


@dataclass(frozen=True)
class Service:
    """Where a provider is and what it needs."""

    api: Api
    model: str
    url: str
    base: str
    """Environment variable with another address."""
    keys: tuple[str, ...] = ()


SERVICES = {
    "anthropic": Service(
        "anthropic", "claude-sonnet-4-6", "https://api.anthropic.com", "ANTHROPIC_BASE_URL", ("ANTHROPIC_API_KEY",)
    ),
    "openai": Service("openai-chat", "gpt-5-mini", "https://api.openai.com/v1", "OPENAI_BASE_URL", ("OPENAI_API_KEY",)),
    "gemini": Service(
        "gemini",
        "gemini-2.5-flash",
        "https://generativelanguage.googleapis.com",
        "GEMINI_BASE_URL",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ),
    "ollama": Service("openai-chat", "qwen3:8b", "http://localhost:11434", "OLLAMA_HOST"),
}


class Live:
    """A provider's API. Raises ``SetupError`` where the key, or Ollama's log, is missing."""

    def __init__(self, provider: str, model: str | None = None, *, log: Path | None = None) -> None:
        from cacheprefix.profiles import default_registry

        self.provider, service = provider, SERVICES[provider]
        self.api: Api = service.api
        self.name = model or service.model
        base = os.environ.get(service.base) or service.url
        self._url = (base if "://" in base else f"http://{base}").rstrip("/")
        self._key = next((found for name in service.keys if (found := os.environ.get(name))), "")
        if service.keys and not self._key:
            raise SetupError(
                f"a live run on {provider} needs a key: set {' or '.join(service.keys)} "
                "(--provider simulated runs without one)"
            )
        if provider == "ollama" and (log is None or not log.is_file()):
            raise SetupError(
                "Ollama's API does not report cached tokens; its server log does. Start it with OLLAMA_DEBUG=1 and "
                "name the log: --ollama-log ~/.ollama/logs/server.log"
            )
        self._log = log
        self.profile: Profile = default_registry().profile_for(self.name, provider=provider)

    def __call__(self, body: dict[str, Any], turn: int = 0) -> tuple[str, Usage]:  # noqa: ARG002 - as the simulated one
        """Send a request; the answer's text, and the usage as reported."""
        from cacheprefix.profiles import Usage, normalise_usage

        if self.provider == "ollama":
            size = self._log.stat().st_size if self._log else 0
            answer = self._post("/api/chat", {**body, "stream": False, "options": {"temperature": 0}})
            total = int(answer.get("prompt_eval_count", 0))
            computed = self._computed_since(size)
            total = max(total, computed)
            return str(answer["message"]["content"]), Usage(total, total - computed, None, answer.get("eval_count"))
        if self.provider == "anthropic":
            answer = self._post("/v1/messages", body, {"x-api-key": self._key, "anthropic-version": "2023-06-01"})
            text = "".join(str(block.get("text", "")) for block in answer["content"])
            return text, normalise_usage(answer.get("usage"), self.api, profile=self.profile)
        if self.provider == "gemini":
            rest = {name: value for name, value in body.items() if name != "model"}
            answer = self._post(f"/v1beta/models/{self.name}:generateContent", rest, {"x-goog-api-key": self._key})
            parts = answer["candidates"][0].get("content", {}).get("parts", [])
            text = "".join(str(part.get("text", "")) for part in parts)
            return text, normalise_usage(answer.get("usageMetadata"), self.api, profile=self.profile)
        answer = self._post("/chat/completions", body, {"authorization": f"Bearer {self._key}"})
        text = str(answer["choices"][0]["message"].get("content") or "")
        return text, normalise_usage(answer.get("usage"), self.api, profile=self.profile)

    def _post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
        """What the provider answers to a JSON body; raises ``AnswerError`` with what it said instead."""
        request = urllib.request.Request(  # noqa: S310 - the scheme is the user's own choice of address
            self._url + path, dumps(body, "body"), {"content-type": "application/json", **(headers or {})}
        )
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310 - as above
                return loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(400).decode(errors="replace")
            raise AnswerError(f"{self.provider} answered {error.code}: {said}") from error
        except (OSError, ValueError) as error:
            raise AnswerError(f"{self.provider} at {self._url} could not be asked: {error}") from error

    def _computed_since(self, size: int) -> int:
        """Tokens that the server computed for the last request, by what its log says since."""
        if self._log is None:
            return 0
        with self._log.open("rb") as stream:
            stream.seek(size)
            found = _COMPUTED.findall(stream.read().decode(errors="replace"))
        if not found:
            raise AnswerError(
                f"{self._log} says nothing of the request; is it the log of this server (OLLAMA_DEBUG=1)?"
            )
        return int(found[-1])

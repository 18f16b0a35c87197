"""Where requests go on to, and the environment that sends a child's requests here first."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit, urlunsplit

from cacheprefix.errors import SetupError

ALWAYS: Mapping[str, str] = {
    "OPENAI_BASE_URL": "https://api.openai.com/v1",
    "ANTHROPIC_BASE_URL": "https://api.anthropic.com",
    "GOOGLE_GEMINI_BASE_URL": "https://generativelanguage.googleapis.com",
}
"""Variables that are set for every child, with the provider that the SDK asks when they are not set.

Read in the SDKs' sources (openai 2 and 3, anthropic 2, google-genai 1; Python and JavaScript) on 2026-11-22.
"""

WHERE_SET: Sequence[str] = (
    "OPENAI_API_BASE",
    "OPENAI_API_BASE_URL",
    "ANTHROPIC_API_URL",
    "ANTHROPIC_API_BASE",
    "AZURE_OPENAI_ENDPOINT",
    "AZURE_AI_API_BASE",
    "GEMINI_API_BASE",
    "DEEPSEEK_API_BASE",
    "DEEPSEEK_BASE_URL",
    "GROQ_API_BASE",
    "GROQ_BASE_URL",
    "MISTRAL_API_BASE",
    "OLLAMA_API_BASE",
    "OPENROUTER_API_BASE",
    "OPENROUTER_BASE_URL",
    "XAI_API_BASE",
)
"""Variables that are turned to the proxy only where the environment already sets them.

Setting them otherwise would change what a program does: LangChain refuses ``AZURE_OPENAI_ENDPOINT`` beside an
``OPENAI_API_BASE``, and LiteLLM's defaults have paths of their own.
"""

UNFOLLOWED = (
    "clients made with an explicit base_url (or azure_endpoint)",
    "AWS Bedrock (a request's signature covers the host, so it cannot pass through a proxy)",
    "Vertex AI",
    "a program whose .env file or own code sets these variables again",
)
"""What does not come by, in the words of the closing line."""

LOOPBACK = ("127.0.0.1", "localhost")
_LOCAL = frozenset({*LOOPBACK, "::1"})


@dataclass(frozen=True, slots=True)
class Route:
    """Requests whose path begins with ``/NAME`` go on to one provider."""

    name: str
    """First part of the local path: the variable in lower case, such as ``openai_base_url``."""

    variable: str
    """The environment variable that a child finds this route by."""

    upstream: str
    """Address of the provider, without credentials, query or a slash at its end."""

    authorization: str = field(default="", repr=False)
    """The header that credentials in the address make (``https://USER:PASSWORD@HOST``), as HTTP clients send it."""

    @property
    def is_local(self) -> bool:
        """Whether the provider is on this machine, where no HTTP proxy leads."""
        return urlsplit(self.upstream).hostname in _LOCAL

    def local(self, port: int) -> str:
        """The address that stands in the variable. Keeps the path of the provider's own: SDKs look at it."""
        return f"http://127.0.0.1:{port}/{self.name}{urlsplit(self.upstream).path}"

    def onward(self, path: str) -> str:
        """Where a request to ``path`` goes on to, ``path`` being the rest behind ``/NAME``, with its query."""
        scheme, host, *_ = urlsplit(self.upstream)
        return urlunsplit((scheme, host, "", "", "")) + path


def routes_of(
    environment: Mapping[str, str], *, upstream: str | None = None, also: Sequence[str] = ()
) -> tuple[Route, ...]:
    """The routes for a child that would run in ``environment``.

    Args:
        environment: what the child would have had; addresses that it sets are where requests go on to.
        upstream: an address that takes every request in place of those.
        also: further variables, each as ``VARIABLE=ADDRESS``.

    Raises:
        SetupError: an address is no ``http://`` or ``https://`` URL, or ``also`` is not ``VARIABLE=ADDRESS``.
    """
    targets = {name: environment.get(name) or default for name, default in ALWAYS.items()}
    targets |= {name: environment[name] for name in WHERE_SET if environment.get(name)}
    for given in also:
        name, found, address = given.partition("=")
        if not found or not name.isidentifier():
            raise SetupError(f"--also {given!r}: write VARIABLE=ADDRESS, such as MY_BASE_URL=https://llm.example/v1")
        targets[name] = address
    return tuple(_route(name, address, upstream) for name, address in targets.items())


def child_environment(environment: Mapping[str, str], routes: Sequence[Route], port: int) -> dict[str, str]:
    """``environment`` with the routes' variables, and this machine left out of any HTTP proxy."""
    changed = dict(environment)
    for route in routes:
        changed[route.variable] = route.local(port)
    for name in ("NO_PROXY", "no_proxy"):
        known = [part for part in changed.get(name, "").split(",") if part.strip()]
        changed[name] = ",".join([*known, *(host for host in LOOPBACK if host not in known)])
    return changed


def _route(variable: str, address: str, upstream: str | None) -> Route:
    """Where requests go on to that a program sends to the address in ``variable``: there, or to ``upstream``."""
    given = (address if upstream is None else upstream).strip()
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        # What stands before the host may be a password: only the name is said.
        name = variable if upstream is None else "--upstream"
        raise SetupError(f"{name} is no address that requests can go on to; give http://HOST/PATH or https://HOST/PATH")
    path = parts.path.rstrip("/")
    if upstream is not None and not path:
        # One provider for all: each variable keeps the path that its SDK expects.
        path = urlsplit(ALWAYS.get(variable, address)).path.rstrip("/")
    login, _, host = parts.netloc.rpartition("@")
    authorization = f"Basic {b64encode(unquote(login).encode()).decode()}" if login else ""
    return Route(variable.lower(), variable, urlunsplit((parts.scheme, host, path, "", "")), authorization)

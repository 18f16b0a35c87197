"""Finds out from a model's name and address who serves it, and what it is called there."""

from __future__ import annotations

import re
from typing import NamedTuple

_PROVIDERS = {
    "anthropic": "anthropic", "openai": "openai", "azure": "azure", "azure_openai": "azure",
    "azure_ai": "azure", "azure-openai": "azure", "bedrock": "bedrock", "bedrock_converse": "bedrock",
    "amazon-bedrock": "bedrock", "amazon_bedrock": "bedrock", "aws": "bedrock", "vertex_ai": "vertex",
    "vertex": "vertex", "google_vertexai": "vertex", "google-vertex": "vertex", "vertexai": "vertex",
    "gemini": "gemini", "google": "gemini", "google_genai": "gemini", "google-genai": "gemini",
    "google-gla": "gemini", "models": "gemini", "deepseek": "deepseek", "xai": "xai", "x-ai": "xai",
    "mistral": "mistral", "mistralai": "mistral", "groq": "groq", "cerebras": "cerebras",
    "moonshot": "moonshot", "moonshotai": "moonshot", "zai": "zai", "z-ai": "zai", "dashscope": "dashscope",
    "qwen": "dashscope", "minimax": "minimax", "vllm": "vllm", "hosted_vllm": "vllm", "sglang": "sglang",
    "llama.cpp": "llama.cpp", "llamacpp": "llama.cpp", "llama_cpp": "llama.cpp", "ollama": "ollama",
    "ollama_chat": "ollama", "exact": "exact",
}  # fmt: skip
"""Names in use in frameworks and gateways, and the provider each stands for."""

_GATEWAYS = frozenset({"openrouter", "litellm", "litellm_proxy", "custom_openai", "text-completion-openai",
                       "converse", "invoke", "responses", "publishers", "global", "chat",
                       "foundry"})  # fmt: skip
"""Path parts that say how a model is reached, not who serves it."""

_HOSTS = (
    ("api.openai.com", "openai"), (".openai.azure.com", "azure"), (".cognitiveservices.azure.com", "azure"),
    ("api.anthropic.com", "anthropic"), (".services.ai.azure.com/anthropic", "anthropic"),
    ("bedrock-runtime.", "bedrock"), ("generativelanguage.googleapis.com", "gemini"),
    ("aiplatform.googleapis.com", "vertex"), ("api.deepseek.com", "deepseek"), ("api.x.ai", "xai"),
    ("api.mistral.ai", "mistral"), ("api.groq.com", "groq"), ("api.cerebras.ai", "cerebras"),
    ("api.moonshot", "moonshot"), ("api.z.ai", "zai"), ("open.bigmodel.cn", "zai"),
    ("dashscope", "dashscope"), ("api.minimax", "minimax"), ("localhost:11434", "ollama"),
    ("127.0.0.1:11434", "ollama"),
)  # fmt: skip
_REGION = re.compile(r"^(?:us-gov|us|eu|apac|ap|jp|au|ca|sa|global)\.(?=[a-z0-9-]+\.)")
_VENDOR = re.compile(r"^(anthropic|amazon|deepseek|mistral|openai|qwen|moonshot|minimax|zai)\.(?=[a-z])")
_TUNED = re.compile(r"^ft:([^:]+)(?::.*)?$")
_VERSION = re.compile(r"(?:-v\d+)?(?::\d+)?(?::[a-z]+)?$")
_DATE = re.compile(r"[-@](?:20\d{6}|20\d\d-\d\d-\d\d|\d{2}-20\d\d|default)$")


class ModelName(NamedTuple):
    """A model name taken apart."""

    provider: str | None
    """Who serves it, where the name says so."""

    spellings: tuple[str, ...]
    """The bare name, the most exact first: as given, without version, without date, without ``-latest``."""


def provider_of(name: str | None) -> str | None:
    """The provider that ``name`` stands for in frameworks and gateways; the name itself if unknown."""
    if not name:
        return None
    lowered = name.strip().lower()
    return _PROVIDERS.get(lowered, lowered)


def is_known(name: str | None) -> bool:
    """Whether ``provider_of`` gave the name of somebody whom frameworks or gateways name, with rules or without."""
    return name in _GATEWAYS or name in _PROVIDERS.values() or any(name == provider for _, provider in _HOSTS)


def provider_at(base_url: str | None) -> str | None:
    """The provider that answers at ``base_url``; ``None`` for a proxy or an address of one's own."""
    if not base_url:
        return None
    # Host and path say who answers; a query or a user name may hold anything. Never urlsplit: it raises.
    place = re.split(r"[?#]", base_url.partition("//")[2] or base_url)[0].lower()
    host, slash, path = place.partition("/")
    place = host.rpartition("@")[2] + slash + path
    return next((provider for piece, provider in _HOSTS if piece in place), None)


def read_model(model: str) -> ModelName:
    """Takes a model name apart: ``bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0`` and the like.

    Never raises; a name in no known form comes back as its own only spelling.
    """
    rest = model.strip().lower()
    provider: str | None = None
    if rest.startswith("arn:aws"):
        provider, rest = "bedrock", rest.rpartition("/")[2]
    parts = rest.split("/")
    # Gateways and providers in front of the model's own name, of which the first provider serves it.
    while len(parts) > 1:
        head = parts[0]
        if provider is None and head in _PROVIDERS:
            provider = _PROVIDERS[head]
        elif head not in _PROVIDERS and head not in _GATEWAYS and provider is None:
            break
        parts.pop(0)
    rest = "/".join(parts)
    # Amazon's names begin with a region and a vendor, which say that Bedrock serves the model.
    regionless = _REGION.sub("", rest)
    vendor = _VENDOR.match(regionless)
    if vendor:
        provider = provider or "bedrock"
        rest = regionless[vendor.end() :] if vendor.group(1) != "amazon" else regionless[len("amazon.") :]
    tuned = _TUNED.match(rest)
    if tuned:
        rest = tuned.group(1)
    if rest.startswith("claude"):
        rest = rest.replace(".", "-")  # gateways write claude-opus-4.5
    spellings = [rest]
    for pattern in (_VERSION, _DATE, re.compile(r"-latest$")):
        shorter = pattern.sub("", spellings[-1])
        if shorter and shorter != spellings[-1]:
            spellings.append(shorter)
    return ModelName(provider, tuple(spellings))

"""cacheprefix for OpenAI's and Anthropic's own clients: calls as forks of one shared prompt prefix."""

from cacheprefix.adapter import supported
from cacheprefix_sdk.client import role, wrap

__all__ = ["role", "wrap"]

supported("cacheprefix-sdk")

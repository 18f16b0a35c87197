"""cacheprefix for OpenAI's and Anthropic's own clients: calls as forks of one shared prompt prefix."""

from cacheprefix_sdk._client import wrap
from cacheprefix_sdk._role import role

__all__ = ["role", "wrap"]

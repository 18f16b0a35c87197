"""cacheprefix for ag2: agents as forks of one shared prompt prefix."""

from cacheprefix_ag2._client import PrefixClient, PrefixConfig
from cacheprefix_ag2._policy import PrefixPolicy
from cacheprefix_ag2._state import PrefixState
from cacheprefix_ag2._wrap import session_of, unwrap, wrap

__all__ = ["PrefixClient", "PrefixConfig", "PrefixPolicy", "PrefixState", "session_of", "unwrap", "wrap"]

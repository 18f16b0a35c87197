"""cacheprefix for ag2: agents as forks of one shared prompt prefix."""

from cacheprefix.adapter import supported
from cacheprefix_ag2.client import PrefixConfig
from cacheprefix_ag2.front_door import session_of, unwrap, wrap
from cacheprefix_ag2.policy import PrefixPolicy
from cacheprefix_ag2.state import PrefixState

__all__ = ["PrefixConfig", "PrefixPolicy", "PrefixState", "session_of", "unwrap", "wrap"]

supported("cacheprefix-ag2")

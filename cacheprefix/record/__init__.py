"""A pass-through proxy on this machine that writes down what an unmodified program asks its models."""

from cacheprefix.record._child import run_child
from cacheprefix.record._log import CallLog, Exchange, Seen
from cacheprefix.record._proxy import Proxy
from cacheprefix.record._routes import ALWAYS, UNFOLLOWED, WHERE_SET, Route, child_environment, routes_of

__all__ = [
    "ALWAYS",
    "UNFOLLOWED",
    "WHERE_SET",
    "CallLog",
    "Exchange",
    "Proxy",
    "Route",
    "Seen",
    "child_environment",
    "routes_of",
    "run_child",
]

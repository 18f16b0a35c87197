"""A pass-through proxy on this machine that writes down what an unmodified program asks its models."""

from cacheprefix.record.child import run_child
from cacheprefix.record.log import CallLog, Exchange, Seen
from cacheprefix.record.proxy import Proxy
from cacheprefix.record.routes import UNFOLLOWED, Route, child_environment, routes_of

__all__ = [
    "UNFOLLOWED",
    "CallLog",
    "Exchange",
    "Proxy",
    "Route",
    "Seen",
    "child_environment",
    "routes_of",
    "run_child",
]

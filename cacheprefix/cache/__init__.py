"""The client's model of the provider's prompt cache: expectations, breakpoints, verdicts."""

from cacheprefix.cache._causes import CAUSES, FIXES, Cause
from cacheprefix.cache._content import answers
from cacheprefix.cache._expect import Expectation
from cacheprefix.cache._line import equal_digests
from cacheprefix.cache._lint import ADVICE, LintWarning, Smell, lint
from cacheprefix.cache._mark import mark
from cacheprefix.cache._model import CacheModel, CacheStatus, Observation
from cacheprefix.cache._plan import Breakpoint, plan_breakpoints
from cacheprefix.cache._routing import RoutingAdvice, routing_advice
from cacheprefix.cache._verdict import Verdict, VerdictKind

__all__ = [
    "ADVICE",
    "CAUSES",
    "FIXES",
    "Breakpoint",
    "CacheModel",
    "CacheStatus",
    "Cause",
    "Expectation",
    "LintWarning",
    "Observation",
    "RoutingAdvice",
    "Smell",
    "Verdict",
    "VerdictKind",
    "answers",
    "equal_digests",
    "lint",
    "mark",
    "plan_breakpoints",
    "routing_advice",
]

"""The client's model of the provider's prompt cache: expectations, breakpoints, verdicts."""

from cacheprefix.cache.breakpoints.plan import Breakpoint, plan_breakpoints
from cacheprefix.cache.breakpoints.write import mark
from cacheprefix.cache.differences import answers
from cacheprefix.cache.linting import ADVICE, LintWarning, Smell, lint
from cacheprefix.cache.model import CacheModel, Observation, SentBy
from cacheprefix.cache.tree import equal_digests
from cacheprefix.cache.verdict import FIXES, MEANINGS, Cause, Verdict

__all__ = [
    "ADVICE",
    "FIXES",
    "MEANINGS",
    "Breakpoint",
    "CacheModel",
    "Cause",
    "LintWarning",
    "Observation",
    "SentBy",
    "Smell",
    "Verdict",
    "answers",
    "equal_digests",
    "lint",
    "mark",
    "plan_breakpoints",
]

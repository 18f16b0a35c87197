"""Checks a row of provider rules against the provider itself: a few dozen requests, a table, and evidence to keep."""

from cacheprefix.verify.evidence import Evidence, now, read_evidence, save_evidence
from cacheprefix.verify.lab import Answer, Lab, Limit
from cacheprefix.verify.protocol import NOT_TRIED, Finding, run
from cacheprefix.verify.providers import HttpProvider, Rehearsal

__all__ = [
    "NOT_TRIED",
    "Answer",
    "Evidence",
    "Finding",
    "HttpProvider",
    "Lab",
    "Limit",
    "Rehearsal",
    "now",
    "read_evidence",
    "run",
    "save_evidence",
]

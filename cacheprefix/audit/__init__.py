"""Request logs read and judged: what the cache did on every call, what broke it, what it cost, what it could cost."""

from cacheprefix.audit._arrivals import arrivals
from cacheprefix.audit._calls import CallRow
from cacheprefix.audit._output import VERSION, totals_of, write_json
from cacheprefix.audit._previous import PreviousRequestRule
from cacheprefix.audit._readers import BUILTIN, Placed, Reader, records
from cacheprefix.audit._records import Broken, Record, seconds
from cacheprefix.audit._run import Audit, audit
from cacheprefix.audit._text import write_summary
from cacheprefix.audit._totals import BreakGroup, Sum, Totals
from cacheprefix.audit._whatif import CHANGES, Saving

__all__ = [
    "BUILTIN",
    "CHANGES",
    "VERSION",
    "Audit",
    "BreakGroup",
    "Broken",
    "CallRow",
    "Placed",
    "PreviousRequestRule",
    "Reader",
    "Record",
    "Saving",
    "Sum",
    "Totals",
    "arrivals",
    "audit",
    "records",
    "seconds",
    "totals_of",
    "write_json",
    "write_summary",
]

"""Request logs read and judged: what the cache did on every call, what broke it, what it cost, what it could cost."""

from cacheprefix.audit.json_output import VERSION, totals_of, write_json
from cacheprefix.audit.log_records import Broken, Record, Remarks, seconds
from cacheprefix.audit.previous_request import PreviousRequestRule
from cacheprefix.audit.readers import BUILTIN, Placed, Reader, records
from cacheprefix.audit.replay import Audit, audit
from cacheprefix.audit.request_arrivals import arrivals
from cacheprefix.audit.rows import CallRow
from cacheprefix.audit.terminal import write_summary
from cacheprefix.audit.totals import BreakGroup, Sum, Totals
from cacheprefix.audit.what_if import CHANGES, HOW, WORTH, Saving

__all__ = [
    "BUILTIN",
    "CHANGES",
    "HOW",
    "VERSION",
    "WORTH",
    "Audit",
    "BreakGroup",
    "Broken",
    "CallRow",
    "Placed",
    "PreviousRequestRule",
    "Reader",
    "Record",
    "Remarks",
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

"""Request logs read and judged: what the cache did on every call, what broke it, what it cost, what it could cost."""

from cacheprefix.audit.json_output import totals_of, write_json
from cacheprefix.audit.log_records import Broken, Record, Remarks, seconds
from cacheprefix.audit.readers import BUILTIN, Placed, Reader, records
from cacheprefix.audit.replay import Audit, audit
from cacheprefix.audit.request_arrivals import arrivals
from cacheprefix.audit.rows import CallRow
from cacheprefix.audit.terminal import write_summary
from cacheprefix.audit.totals import Totals
from cacheprefix.audit.what_if import CHANGES, HOW, WORTH

__all__ = [
    "BUILTIN",
    "CHANGES",
    "HOW",
    "WORTH",
    "Audit",
    "Broken",
    "CallRow",
    "Placed",
    "Reader",
    "Record",
    "Remarks",
    "Totals",
    "arrivals",
    "audit",
    "records",
    "seconds",
    "totals_of",
    "write_json",
    "write_summary",
]

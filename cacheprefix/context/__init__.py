"""What stands in the prompt and for how long: views, decisions, the ledger, budgets and compaction."""

from cacheprefix.context._apply import apply, text_message
from cacheprefix.context._budget import READ_TOOL, Budgeted, Results, ToolResultBudget, budget_results
from cacheprefix.context._decisions import (
    Decision,
    Drop,
    DropCall,
    DropResult,
    DropThinking,
    Insert,
    ReplaceResult,
)
from cacheprefix.context._groups import Group, groups_of, is_open, orphans_of, turn_starts
from cacheprefix.context._ledger import Ledger, merge_json
from cacheprefix.context._read import Form, views_of
from cacheprefix.context._strategies import (
    Cut,
    Strategy,
    grep,
    head,
    head_tail,
    json_aware,
    none,
    tail,
)
from cacheprefix.context._views import (
    CallView,
    Count,
    MessageView,
    ResultView,
    Role,
    ThinkingView,
    digest_of,
    looks_like_error,
    make_call,
    make_message,
    make_result,
)

__all__ = [
    "READ_TOOL",
    "Budgeted",
    "CallView",
    "Count",
    "Cut",
    "Decision",
    "Drop",
    "DropCall",
    "DropResult",
    "DropThinking",
    "Form",
    "Group",
    "Insert",
    "Ledger",
    "MessageView",
    "ReplaceResult",
    "ResultView",
    "Results",
    "Role",
    "Strategy",
    "ThinkingView",
    "ToolResultBudget",
    "apply",
    "budget_results",
    "digest_of",
    "grep",
    "groups_of",
    "head",
    "head_tail",
    "is_open",
    "json_aware",
    "looks_like_error",
    "make_call",
    "make_message",
    "make_result",
    "merge_json",
    "none",
    "orphans_of",
    "tail",
    "text_message",
    "turn_starts",
    "views_of",
]

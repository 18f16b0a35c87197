"""What stands in the prompt and for how long: views, decisions, the ledger, budgets and compaction."""

from cacheprefix.context._apply import apply, sendable, text_message
from cacheprefix.context._budget import READ_TOOL, Budgeted, Results, ToolResultBudget, budget_results
from cacheprefix.context._compaction import Circumstances, Compaction, plan_compaction
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
from cacheprefix.context._plan import Action, Plan
from cacheprefix.context._policies import (
    DONE_USES,
    STALE_RESULTS,
    clear_thinking,
    clear_tool_results,
    drop_tool_uses,
    sliding_window,
)
from cacheprefix.context._prices import Estimate, Prices, estimate
from cacheprefix.context._read import Form, views_of
from cacheprefix.context._replay import Item, Replayed, replay
from cacheprefix.context._situation import Policy, Situation
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
from cacheprefix.context._summary import Removed, Summarise, SummaryRequest, extract
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
from cacheprefix.context._window import ContextStats, RequestBudget, hand_over

__all__ = [
    "DONE_USES",
    "READ_TOOL",
    "STALE_RESULTS",
    "Action",
    "Budgeted",
    "CallView",
    "Circumstances",
    "Compaction",
    "ContextStats",
    "Count",
    "Cut",
    "Decision",
    "Drop",
    "DropCall",
    "DropResult",
    "DropThinking",
    "Estimate",
    "Form",
    "Group",
    "Insert",
    "Item",
    "Ledger",
    "MessageView",
    "Plan",
    "Policy",
    "Prices",
    "Removed",
    "ReplaceResult",
    "Replayed",
    "RequestBudget",
    "ResultView",
    "Results",
    "Role",
    "Situation",
    "Strategy",
    "Summarise",
    "SummaryRequest",
    "ThinkingView",
    "ToolResultBudget",
    "apply",
    "budget_results",
    "clear_thinking",
    "clear_tool_results",
    "digest_of",
    "drop_tool_uses",
    "estimate",
    "extract",
    "grep",
    "groups_of",
    "hand_over",
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
    "plan_compaction",
    "replay",
    "sendable",
    "sliding_window",
    "tail",
    "text_message",
    "turn_starts",
    "views_of",
]

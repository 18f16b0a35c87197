"""What stands in the prompt and for how long: views, decisions, the ledger, budgets and compaction."""

from cacheprefix.context._apply import apply, sendable
from cacheprefix.context._boundaries import Boundaries, boundaries_of
from cacheprefix.context._budget import Budgeted, Replace, Results, ToolResultBudget, budget_results
from cacheprefix.context._build import Built, build, build_messages
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
from cacheprefix.context._groups import digests_of, orphans_of
from cacheprefix.context._ledger import Ledger, join_updates, merge_json, update_json
from cacheprefix.context._plan import Plan
from cacheprefix.context._policies import (
    clear_thinking,
    clear_tool_results,
    drop_tool_uses,
    sliding_window,
)
from cacheprefix.context._prices import Prices
from cacheprefix.context._read import Form, form_of, views_of
from cacheprefix.context._readback import READ_TOOL_SCHEMA, full_result_reader
from cacheprefix.context._record import join_context, to_join
from cacheprefix.context._replay import Replayed, replay
from cacheprefix.context._rewrite import compact, compact_for_request, dumps, from_json, loads, plan, to_json
from cacheprefix.context._situation import Policy, Situation
from cacheprefix.context._state import (
    ContextState,
    append_context,
    append_message,
    new_state,
    refresh_zones,
    set_zone,
    stats,
    transition,
)
from cacheprefix.context._strategies import (
    Strategy,
    grep,
)
from cacheprefix.context._summary import Removed, Summarise, SummaryRequest, extract
from cacheprefix.context._transitions import Mode, TransitionHook, drop_tool_messages, trim_tool_outputs
from cacheprefix.context._views import (
    CallView,
    Count,
    MessageView,
    ResultView,
    Role,
    ThinkingView,
    digest_of,
    make_call,
    make_message,
    make_result,
)
from cacheprefix.context._window import ContextStats, RequestBudget, hand_over
from cacheprefix.context._zones import Consolidate, concatenate

__all__ = [
    "READ_TOOL_SCHEMA",
    "Boundaries",
    "Budgeted",
    "Built",
    "CallView",
    "Circumstances",
    "Compaction",
    "Consolidate",
    "ContextState",
    "ContextStats",
    "Count",
    "Decision",
    "Drop",
    "DropCall",
    "DropResult",
    "DropThinking",
    "Form",
    "Insert",
    "Ledger",
    "MessageView",
    "Mode",
    "Plan",
    "Policy",
    "Prices",
    "Removed",
    "Replace",
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
    "TransitionHook",
    "append_context",
    "append_message",
    "apply",
    "boundaries_of",
    "budget_results",
    "build",
    "build_messages",
    "clear_thinking",
    "clear_tool_results",
    "compact",
    "compact_for_request",
    "concatenate",
    "digest_of",
    "digests_of",
    "drop_tool_messages",
    "drop_tool_uses",
    "dumps",
    "extract",
    "form_of",
    "from_json",
    "full_result_reader",
    "grep",
    "hand_over",
    "join_context",
    "join_updates",
    "loads",
    "make_call",
    "make_message",
    "make_result",
    "merge_json",
    "new_state",
    "orphans_of",
    "plan",
    "plan_compaction",
    "refresh_zones",
    "replay",
    "sendable",
    "set_zone",
    "sliding_window",
    "stats",
    "to_join",
    "to_json",
    "transition",
    "trim_tool_outputs",
    "update_json",
    "views_of",
]

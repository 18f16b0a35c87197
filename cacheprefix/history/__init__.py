"""What stands in the prompt and for how long: the ledger, budgets, compaction, and a conversation's own history."""

from cacheprefix.history.budget import Cutting, Results, ToolResultBudget, budget_results, forget_rendered
from cacheprefix.history.building import Boundaries, Built, boundaries_of, build, build_messages
from cacheprefix.history.compaction import Circumstances, Compaction, plan_compaction
from cacheprefix.history.compaction_plan import Plan, Prices
from cacheprefix.history.groups import digests_of
from cacheprefix.history.ledger import Ledger, merge_json, update_json
from cacheprefix.history.policies import clear_thinking, clear_tool_results, drop_tool_uses, sliding_window
from cacheprefix.history.reading_back import READ_TOOL_SCHEMA, ReadBudget, full_result_reader
from cacheprefix.history.record import join_context
from cacheprefix.history.replaying import replay
from cacheprefix.history.rewriting import compact, compact_for_request, compaction_hook, plan
from cacheprefix.history.saved import dumps, loads
from cacheprefix.history.settling import Terms
from cacheprefix.history.situation import Policy, Situation
from cacheprefix.history.state import (
    ContextState,
    append_context,
    append_message,
    new_state,
    refresh_zones,
    set_zone,
    stats,
    transition,
)
from cacheprefix.history.strategies import Strategy, grep
from cacheprefix.history.summary import Removed, Summarise, SummaryRequest, extract
from cacheprefix.history.transitions import Mode, TransitionHook, drop_tool_messages, trim_tool_outputs
from cacheprefix.history.window import ContextStats, RequestBudget, hand_over
from cacheprefix.history.zones import Consolidate, concatenate

__all__ = [
    "READ_TOOL_SCHEMA",
    "Boundaries",
    "Built",
    "Circumstances",
    "Compaction",
    "Consolidate",
    "ContextState",
    "ContextStats",
    "Cutting",
    "Ledger",
    "Mode",
    "Plan",
    "Policy",
    "Prices",
    "ReadBudget",
    "Removed",
    "RequestBudget",
    "Results",
    "Situation",
    "Strategy",
    "Summarise",
    "SummaryRequest",
    "Terms",
    "ToolResultBudget",
    "TransitionHook",
    "append_context",
    "append_message",
    "boundaries_of",
    "budget_results",
    "build",
    "build_messages",
    "clear_thinking",
    "clear_tool_results",
    "compact",
    "compact_for_request",
    "compaction_hook",
    "concatenate",
    "digests_of",
    "drop_tool_messages",
    "drop_tool_uses",
    "dumps",
    "extract",
    "forget_rendered",
    "full_result_reader",
    "grep",
    "hand_over",
    "join_context",
    "loads",
    "merge_json",
    "new_state",
    "plan",
    "plan_compaction",
    "refresh_zones",
    "replay",
    "set_zone",
    "sliding_window",
    "stats",
    "transition",
    "trim_tool_outputs",
    "update_json",
]

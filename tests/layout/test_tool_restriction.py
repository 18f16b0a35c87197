"""How a role is kept to its own tools."""

from __future__ import annotations

from cacheprefix.layout.tool_restriction import restrict
from cacheprefix.profiles import default_registry


def test_a_role_without_tools_is_kept_from_all_by_a_client_that_takes_no_lists() -> None:
    """``none`` is no list; one that has some is told which, in words."""
    rules = default_registry().get("openai")
    assert rules.tool_choice_safe == "allowed_tools"
    assert restrict((), ("a", "b"), rules, lists=False).allowed == ()
    assert restrict(("a",), ("a", "b"), rules, lists=False).said == ("a",)

"""Why requests went out as they did: on calls, in reports and recorded runs, in tests, and raised when strict."""

from __future__ import annotations

import warnings
from typing import get_args

import pytest

from cacheprefix import CacheprefixWarning, Session, SharedPrefix, ToolResultBudget
from cacheprefix.adapter import AgentRequest, CountedHistory, Request, Role, fork_body
from cacheprefix.cli.files import read_run
from cacheprefix.errors import NotSharedError, SetupError
from cacheprefix.events import EventLog
from cacheprefix.prompt import FIXES, SAID, Reason
from cacheprefix.prompt.reasons import Why
from cacheprefix.testing import assert_forked

HANDBOOK = "Every claim names its source and the page on which it stands. " * 200


def asked(session, role, text="What is step 1?", *, system=HANDBOOK, model="gpt-5.2", tools=(), conversation="one"):
    """The call of one request, answered."""
    body = {"model": model, "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}]}
    if tools:
        body["tools"] = [{"type": "function", "function": {"name": n, "description": d}} for n, d in tools]
    turn = fork_body(session.adapter, body, "openai-chat", Role(role, f"You are the {role}.", conversation)).begin()
    turn.finish({"prompt_tokens": turn.seen.prompt.tokens})
    return turn.call


def whys(call):
    """The layout, and the kinds of its reasons."""
    return call.layout, [one.why for one in call.reasons]


def test_each_reason_has_a_sentence_that_takes_its_numbers():
    """A closed list, and what can be removed says how."""
    assert set(SAID) == set(get_args(Why)) >= set(FIXES)
    numbers = dict.fromkeys(("shared", "foreign", "size", "minimum", "cost", "saved", "forked", "own"), 1234)
    for why in get_args(Why):
        one = Reason(why, "a name", tuple(numbers.items()))
        assert one.said
        assert one.removable == bool(one.fix)


@pytest.mark.parametrize("why", ["own_tools", "tools_cost_more"])
def test_where_others_have_no_tool_that_a_role_lacks_none_of_theirs_is_said_to_cost(why):
    """As where roles have custom tools, which are in no union: "the others' 0 tokens" would be no reason."""
    assert "others' " in Reason(why, numbers=(("foreign", 1),)).said
    # An event log of an earlier version says 0 of them.
    for numbers in ((), (("foreign", 0),)):
        assert "others" not in Reason(why, numbers=numbers).said


def test_alone_is_no_word_against_roles_that_are_there():
    """It is said of agents of a team too that have nothing in common, or not enough for what sharing costs."""
    assert "pays" in Reason("alone").said


def test_a_fork_says_what_it_shares():
    """The tokens that stand before the role's text."""
    session = Session(SharedPrefix(system=HANDBOOK))
    asked(session, "reader")
    call = asked(session, "writer")
    assert whys(call) == ("fork", ["shares"])
    shared = dict(call.reasons[0].numbers)["shared"]
    assert session.adapter.count(HANDBOOK, "gpt-5.2") <= shared < call.input_tokens


def test_a_short_prompt_says_how_much_is_missing():
    """Shared tokens and the provider's minimum."""
    call = asked(Session(SharedPrefix(system="Be brief.")), "reader", system="Be brief.")
    assert whys(call) == ("own", ["prefix_below_minimum"])
    numbers = dict(call.reasons[0].numbers)
    assert numbers["shared"] < numbers["minimum"] == 1_024


def test_where_the_provider_caches_nothing_of_a_request_its_minimum_is_the_reason_and_no_cost_is():
    """A small application: of requests that are too short, it does not matter what others carry."""
    session = Session(SharedPrefix(system="Be brief."))
    for role in ("reader", "writer"):
        session.adapter.join(role)
    for role in ("reader", "writer", "reader"):
        call = asked(session, role, system="Be brief.", tools=[(f"{role}s", "Look it up. " * 9)])
        assert (call.layout, call.reasons[-1].why) == ("own", "prefix_below_minimum")


def test_a_long_request_with_nobody_to_share_it_with_is_not_said_to_be_too_short():
    """No note speaks of a minimum either."""
    session = Session()
    call = asked(session, "reader", system=HANDBOOK)
    assert whys(call) == ("own", ["alone"])
    assert not session.report().notes


def test_calls_that_no_role_makes_and_observed_ones_say_so():
    """They are measured, and nothing else."""
    body = {"model": "gpt-5.2", "messages": [{"role": "user", "content": "hello"}]}
    for mode, why in (("fork", "outside_fork"), ("observe", "observe_mode")):
        session = Session(HANDBOOK, mode=mode)
        session.adapter.begin(Request(body, "openai-chat")).finish({"prompt_tokens": 9})
        assert whys(session.calls[0]) == ("observed", [why])


def test_a_failed_layout_names_the_step(monkeypatch):
    """What was sent is the application's own."""
    session = Session(SharedPrefix(system=HANDBOOK))
    monkeypatch.setattr("cacheprefix.layout.team.tail_text", lambda *_, **__: 1 / 0)
    with pytest.warns(UserWarning, match="layout"):
        call = asked(session, "reader")
    assert whys(call) == ("own", ["failed"])
    assert call.reasons[0].name == "layout"


LATE = [("look", "Look."), ("find", "Find it in one of the drawers. " * 4_000)]
"""The second one is so long that it would cost more in everybody's requests than sharing saves."""


@pytest.mark.parametrize("mode", ["fork", "strict"])
def test_a_tool_that_comes_late_is_named_and_raised_for_when_strict(mode):
    """The user can give it to the prefix."""
    session = Session(SharedPrefix(system=HANDBOOK, tools=[{"name": "look", "description": "Look."}]), mode=mode)
    asked(session, "reader", tools=LATE[:1])
    if mode == "strict":
        with pytest.raises(NotSharedError, match=r"find.*SharedPrefix\(tools") as caught:
            asked(session, "writer", tools=LATE)
        assert [one.why for one in caught.value.reasons] == ["made_too_late"]
        assert len(session.calls) == 1
    else:
        assert "made_too_late find" in map(str, asked(session, "writer", tools=LATE).reasons)


def test_a_tool_that_a_conversation_carries_from_its_beginning_is_not_said_to_be_late():
    """It came after the session's first request, and that costs decide is all there is to say."""
    session = Session(SharedPrefix(system=HANDBOOK, tools=[{"name": "look", "description": "Look. " * 4_000}]))
    asked(session, "reader", tools=[("look", "Look. " * 4_000)])
    call = asked(session, "writer", tools=LATE[1:], conversation="two")
    assert whys(call) == ("own", ["tools_cost_more"])
    later = asked(session, "reader", tools=[("look", "Look. " * 4_000)], conversation="three")
    late = asked(session, "writer", tools=LATE[1:], conversation="three")
    assert "made_too_late" not in whys(later)[1]
    assert "made_too_late find" in map(str, late.reasons)


def test_a_handbook_in_other_words_is_told_and_raised_for_when_strict():
    """It would be sent twice, in two versions."""
    older = "You read.\n\n" + HANDBOOK.replace(".", ", as of May.", 1)
    session = Session(SharedPrefix(system=HANDBOOK))
    with pytest.warns(CacheprefixWarning, match="'reader' holds the shared text in other words"):
        call = asked(session, "reader", system=older)
    assert "text_not_found" in whys(call)[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked(session, "reader", system=older)  # once
    with pytest.raises(NotSharedError, match="very text"):
        asked(Session(SharedPrefix(system=HANDBOOK), mode="strict"), "reader", system=older)


def test_a_handbook_with_other_white_space_is_shared():
    """It is the same text, sent once."""
    indented = "You read.\r\n\r\n  " + HANDBOOK.replace(". ", ".\r\n  ")
    asked(Session(SharedPrefix(system=HANDBOOK), mode="strict"), "reader", system=indented)
    call = asked(Session(SharedPrefix(system=HANDBOOK)), "reader", system=indented)
    assert whys(call) == ("fork", ["shares"])


@pytest.mark.parametrize("found", [True, False])
def test_a_role_is_not_shown_a_text_that_only_others_hold(found):
    """One that was found in the others' requests is theirs; what the user gave to the session is for all."""
    session = Session() if found else Session(SharedPrefix(system=HANDBOOK))
    session.adapter.adopt_system(HANDBOOK)
    one = asked_as(session, "outsider", holds=session.adapter.holds_shared(["You judge prices."]))
    other = asked_as(session, "reader", holds=session.adapter.holds_shared([f"You read.\n\n{HANDBOOK}"]))
    assert (one.layout, [reason.why for reason in one.reasons]) == (
        ("own", ["other_text"]) if found else ("fork", ["shares"])
    )
    assert other.layout == "fork"


def asked_as(session, role, *, holds):
    """The plan of a request whose own texts hold the shared one or do not."""
    session.adapter.join(role)
    nothing = CountedHistory((), str, len)
    talk = session.adapter.conversation("one")
    asks = AgentRequest(role, "gpt-5.2", talk, f"You are {role}.", lambda _: nothing, holds_shared=holds)
    return session.adapter.plan(asks)


def test_one_role_with_another_model_than_all_others_is_told():
    """Nothing is shared between models."""
    session = Session(SharedPrefix(system=HANDBOOK))
    assert "other_model" not in whys(asked(session, "one"))[1] + whys(asked(session, "two"))[1]
    assert "other_model" in whys(asked(session, "three", model="gpt-5"))[1]


def test_strict_never_raises_for_what_costs_decide():
    """A short prompt goes out as it is."""
    call = asked(Session(SharedPrefix(system="Be brief."), mode="strict"), "reader", system="Be brief.")
    assert call.layout == "own"


def test_the_report_says_what_kept_its_own_layout_with_numbers():
    """Per agent, counted, with the largest numbers; forks are counted in the data alone."""
    session = Session(SharedPrefix(system="Be brief."), budget=ToolResultBudget(max_tokens=100))
    for number in range(3):
        asked(session, "reader", f"What is step {number}?", system="Be brief.", conversation=f"c{number}")
    report = session.report()
    (line,) = report.layouts
    assert (line.agent, line.layout, line.count, line.reason.why) == ("reader", "own", 3, "prefix_below_minimum")
    assert "3 x reader in the application's own layout" in str(report)
    assert "none below 1,024" in str(report)
    assert report.as_dict()["layouts"][0]["minimum"] == 1_024


def test_a_recorded_run_keeps_the_reasons(tmp_path):
    """As ``cacheprefix explain`` reads them."""
    session = Session(SharedPrefix(system="Be brief."))
    EventLog(tmp_path / "run.events").bind(session)
    call = asked(session, "reader", system="Be brief.")
    (read,) = read_run(tmp_path / "run.events").totals.calls
    assert (read.layout, read.reasons) == (call.layout, call.reasons)


def test_a_test_can_ask_that_all_roles_share():
    """And is told who does not, and why."""
    session = Session(SharedPrefix(system=HANDBOOK))
    with pytest.raises(AssertionError, match="no call was made by a role"):
        assert_forked(session.calls)
    asked(session, "reader")
    assert_forked(session.calls)
    asked(session, "writer", tools=[("look", "Look. " * 4_000)], conversation="two")
    asked(session, "reader", conversation="two")
    other = Session(SharedPrefix(system="Be brief."))
    asked(other, "reader", system="Be brief.")
    with pytest.raises(AssertionError, match=r"reader: .* none below 1,024"):
        assert_forked(other.calls)


def test_an_unknown_mode_is_refused():
    """With the modes there are."""
    with pytest.raises(SetupError, match="strict"):
        Session(mode="loud")


def test_a_side_fork_says_what_it_shares():
    """All of its parent."""
    session = Session(SharedPrefix(system=HANDBOOK))
    body = {"model": "gpt-5.2", "messages": [{"role": "system", "content": HANDBOOK}]}
    answer = {"choices": [{"message": {"role": "assistant", "content": "Yes."}}], "usage": {"prompt_tokens": 2_000}}
    session.fork("Is it right?", body=body, api="openai-chat", send=lambda _: answer)
    (call,) = session.calls
    assert whys(call) == ("fork", ["shares"])
    assert dict(call.reasons[0].numbers)["shared"] == session.adapter.decode(body, "openai-chat").tokens


# Who runs them, by the providers' tool pages: of each, the first one the provider, the others the application.
DEFINED = {
    "anthropic": (
        "web_search_20250305",
        "bash_20250124",
        "text_editor_20250728",
        "computer_20250124",
        "memory_20250818",
    ),
    "openai-responses": ("web_search", "local_shell", "shell", "apply_patch", "computer_use_preview"),
}


@pytest.mark.parametrize(("api", "kind"), [(api, kind) for api, kinds in DEFINED.items() for kind in kinds])
def test_tools_that_the_provider_defines_are_named_whoever_runs_them(api, kind):
    """They are in no union, so the role's array stays its own; of the union's tools none is put in."""
    claude = api == "anthropic"
    look = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
    session = Session(SharedPrefix(system=HANDBOOK, tools=[look]))
    tools = [{"type": kind, **({"name": kind.rpartition("_")[0]} if claude else {})}]
    said = {"system" if claude else "instructions": HANDBOOK, "tools": tools, "max_tokens": 50}
    body = {"model": "claude-sonnet-4-6" if claude else "gpt-5.2", **said}
    body["messages" if claude else "input"] = [{"role": "user", "content": "Look."}]
    turn = fork_body(session.adapter, body, api, Role("reader", "You read.", "one")).begin()
    turn.finish({"input_tokens": 9, "output_tokens": 1})
    (found,) = [one for one in turn.call.reasons if one.why == "provider_tools"]
    assert found.name == kind
    assert "that the provider defines, whoever runs them" in found.said
    assert turn.body["tools"][0]["type"] == kind
    assert len(turn.body["tools"]) == 1


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses"])
def test_a_custom_tool_is_none_that_the_provider_defines(api):
    """OpenAI's custom tools take free text, and the application says what they are."""
    session = Session(SharedPrefix(system=HANDBOOK))
    given = {"name": "code", "description": "Run code."}
    tool = {"type": "custom", **(given if api == "openai-responses" else {"custom": given})}
    text = "input" if api == "openai-responses" else "messages"
    said = [{"role": "system", "content": HANDBOOK}, {"role": "user", "content": "Look."}]
    body = {"model": "gpt-5.2", text: said, "tools": [tool, {"type": "web_search"}]}
    turn = fork_body(session.adapter, body, api, Role("reader", "You read.", "one")).begin()
    turn.finish({"prompt_tokens": 9})
    assert [one.name for one in turn.call.reasons if one.why == "provider_tools"] == ["web_search"]

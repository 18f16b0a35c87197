"""What installed crews send: the shared part first, the role and its task last."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
from crew_wire import INPUTS
from test_equal_information import words

from benchmarks.crewai_workloads import BRIEF, COWORKERS, CrewModel, StyleTool, agents, crew, tasks
from cacheprefix import Session, SharedPrefix, preview
from cacheprefix.prompt import common_prefix
from cacheprefix.server import Fault, Reply
from cacheprefix.wire import decode
from cacheprefix_crewai import install
from cacheprefix_crewai.framing import SYSTEM


def bodies(provider: Any) -> list[dict[str, Any]]:
    """The recorded request bodies, in order of arrival."""
    return [json.loads(record.body) for record in provider.requests]


@pytest.fixture
def ran(provide, new_llm):
    """``ran(kind)`` runs the three specialists installed; their session, provider and output."""

    def go(kind: str = "openai", rules: str = "openai", session: Session | None = None, **options: Any):
        provider = provide(rules)
        who = agents(lambda: new_llm(provider, kind), **options)
        team = crew(who, tasks(who))
        with install(team, session) as installed:
            output = team.kickoff(inputs={"brief": BRIEF})
        return installed, provider, output

    return go


def test_every_role_begins_with_the_same_system_text_and_tools(ran) -> None:
    """Requests of the three roles have equal system messages and equal tools in equal order."""
    _, provider, _ = ran()
    sent = bodies(provider)
    assert len(sent) == 8
    assert len({json.dumps(body["messages"][0]) for body in sent}) == 1
    assert len({json.dumps(body["tools"]) for body in sent}) == 1


def test_an_input_that_all_tasks_contain_stands_once_in_the_shared_part(ran) -> None:
    """The brief is in the system message and in no other."""
    _, provider, _ = ran()
    for body in bodies(provider):
        holders = [message["role"] for message in body["messages"] if BRIEF in str(message.get("content"))]
        assert holders == ["system"]


def test_role_goal_backstory_and_task_stand_in_one_user_message_behind_the_shared_part(ran) -> None:
    """The last user message of a task's first request holds what makes it this role's."""
    _, provider, _ = ran()
    first = bodies(provider)[0]["messages"]
    assert [message["role"] for message in first] == ["system", "user"]
    for some in ("Senior Market Researcher", "Find reliable facts", "You have read every study", "(plan research)"):
        assert some in first[-1]["content"]
        assert some not in first[0]["content"]


def test_an_answer_that_two_later_tasks_need_becomes_a_shared_message(ran) -> None:
    """The researcher's result precedes the analyst's and the writer's role in the same bytes."""
    _, provider, _ = ran()
    with_log = [body["messages"][1]["content"] for body in bodies(provider)[3:]]
    assert len(set(with_log)) == 1
    assert with_log[0].startswith("[result of task 1]\nResult of research")


def test_the_tool_loop_of_a_task_only_grows_at_its_end(ran) -> None:
    """Within a task each request begins with the whole previous one."""
    _, provider, _ = ran()
    sent = [decode(body, "openai-chat") for body in bodies(provider)]
    for before, after in ((sent[0], sent[1]), (sent[1], sent[2]), (sent[3], sent[4]), (sent[6], sent[7])):
        assert common_prefix(before, after).sections == len(before.sections)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic", "litellm"])
def test_the_outputs_are_those_of_the_crew_as_it_was(ran, provide, new_llm, kind) -> None:
    """With a model that answers by the task alone, every task's output is the same installed and not."""
    rules = "anthropic" if kind == "anthropic" else "openai"
    _, _, output = ran(kind, rules)
    provider = provide(rules)
    who = agents(lambda: new_llm(provider, kind))
    plain = crew(who, tasks(who)).kickoff(inputs={"brief": BRIEF})
    assert [one.raw for one in output.tasks_output] == [one.raw for one in plain.tasks_output]


@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic", "litellm"])
def test_a_role_change_reads_the_shared_part_from_the_cache(ran, kind) -> None:
    """The first request of the second and third role reads more than the brief."""
    _, provider, _ = ran(kind, "anthropic" if kind == "anthropic" else "openai")
    reads = [_read(record.usage) for record in provider.requests]
    assert len(reads) == 8
    assert reads[3] > 1_000
    assert reads[6] > 1_000


@pytest.mark.parametrize("start", ["kickoff", "akickoff"])
def test_where_marks_alone_are_read_the_shared_text_is_a_message_of_the_responses_api(provide, new_llm, start) -> None:
    """Instructions take none: nothing that stood there was ever read, and each role paid the words in front of it."""
    found, session = [], Session()
    for installed in (False, True):
        provider = provide("openai-5.6")
        llm = new_llm(provider, "responses")
        llm.model = "gpt-5.6"
        who = agents(lambda one=llm: one, tools=False)
        team = crew(who, tasks(who, context=[]))
        if installed:
            foreseen = preview(team, session, task=INPUTS)
            assert foreseen is not None
            assert foreseen.ratio is not None
            assert foreseen.ratio < 0.6
            install(team, session)
        running = getattr(team, start)(inputs=INPUTS)
        if start == "akickoff":
            asyncio.run(running)
        found.append(list(provider.requests))
    plain, sent = found
    assert [words(one, ours=(SYSTEM,)) for one in sent] == [words(one) for one in plain]
    assert not any("instructions" in one.json for one in sent)
    assert min(_read(one.usage) for one in sent[1:]) > 1_000
    assert not session.failures


def test_agents_with_different_tools_send_one_union_and_are_kept_to_their_own(ran) -> None:
    """The array of tools is the union; what differs is only ``tool_choice``."""
    _, provider, _ = ran(own_tools=True)
    sent = bodies(provider)
    assert len({json.dumps(body["messages"][0]) for body in sent}) == 1
    assert {len(body["tools"]) for body in sent} == {3}
    allowed = sent[0]["tool_choice"]["allowed_tools"]["tools"]
    assert [tool["function"]["name"] for tool in allowed] == ["search_market_data"]


def test_a_declared_prefix_opens_every_request(ran) -> None:
    """The user's own system text stands first, whatever the estimate says."""
    handbook = "Handbook of the house: be exact, be brief, name sources."
    _, provider, _ = ran(session=Session(SharedPrefix(system=handbook)))
    assert all(body["messages"][0]["content"].startswith(handbook) for body in bodies(provider))


def test_the_last_call_at_max_iter_keeps_the_tools(provide, new_llm) -> None:
    """CrewAI drops the tools for its forced final answer; the fork keeps them and forbids their use."""
    provider = provide("openai", CrewModel(obstinate=True))
    who = agents(lambda: new_llm(provider), max_iter=2)
    team = crew(who, tasks(who))
    with install(team):
        output = team.kickoff(inputs={"brief": BRIEF})
    forced = [body for body in bodies(provider) if "MUST give" in str(body["messages"][-1]["content"])]
    assert len(forced) == 3
    assert {len(body["tools"]) for body in forced} == {3}
    assert {body["tool_choice"] for body in forced} == {"none"}
    assert all(one.raw.startswith("Result of") for one in output.tasks_output)


def test_a_tool_call_where_none_is_allowed_is_refused_and_asked_again(provide, new_llm) -> None:
    """On Anthropic ``tool_choice`` would cost the cached messages: the tools stay and a call is turned down once."""
    from cacheprefix.server import Reply, ToolCall

    model = CrewModel(obstinate=True)

    def stubborn(request: Any) -> Reply:
        if "MUST give" in request.tail and "Tools are not available here" not in request.tail:
            return Reply(tool_calls=(ToolCall("style_guide", {"kind": "memo"}),))
        if "Tools are not available here" in request.tail:
            return Reply("Result of obedience.")
        return model(request)

    provider = provide("anthropic", stubborn)
    who = agents(lambda: new_llm(provider, "anthropic"), max_iter=2)
    team = crew(who, tasks(who))
    with install(team):
        output = team.kickoff(inputs={"brief": BRIEF})
    assert [one.raw for one in output.tasks_output] == ["Result of obedience."] * 3
    # It has been told already that this is the final answer, so the second time it cannot call.
    again = [body for body in bodies(provider) if "Tools are not available here" in str(body["messages"][-1])]
    assert [body["tool_choice"] for body in again] == [{"type": "none"}] * 3


@pytest.mark.parametrize("obeys", [True, False], ids=["told once", "never heeds"])
def test_a_call_of_another_roles_tool_costs_what_it_costs_and_is_seen_by_nobody(provide, new_llm, obeys) -> None:
    """The report holds each request that was asked again as a cost of ours alone; CrewAI counts the crew's own."""
    from crewai.events import LLMCallCompletedEvent, LLMCallStartedEvent, ToolUsageStartedEvent, crewai_event_bus

    from cacheprefix.server import Reply, ToolCall

    model, silent = CrewModel(), CrewModel(tools=False)

    def tempted(request: Any) -> Reply:
        plan = re.findall(r"\(plan ([a-z]+)\)", request.text)[-1]
        shown = "search_market_data" in request.asked.tools and request.asked.choice != "none"
        if plan != "research" and shown and not (obeys and "one of your calls was run" in request.tail):
            return Reply(tool_calls=(ToolCall("search_market_data", {"query": "q"}),))
        return (silent if plan == "writing" else model)(request)

    def run(session: Session | None) -> Any:
        provider, seen = provide("anthropic", tempted), list[tuple[str, str]]()
        who = agents(lambda: new_llm(provider, "anthropic"), own_tools=True)
        who[2].tools = []
        team = crew(who, tasks(who))
        with crewai_event_bus.scoped_handlers():
            for kind in (LLMCallStartedEvent, LLMCallCompletedEvent, ToolUsageStartedEvent):

                @crewai_event_bus.on(kind)
                def noted(_: Any, event: Any) -> None:
                    seen.append((event.type, str(getattr(event, "call_id", ""))))

            said = {"now": "It is noon."}
            with install(team, session, volatile=lambda: said) if session is not None else nullcontext():
                output = team.kickoff(inputs={"brief": BRIEF})
            crewai_event_bus.flush()
        return provider, Counter(one for one, _ in seen), Counter(one for _, one in seen), output

    plain, told, _, before = run(None)
    session = Session()
    forked, told_now, ids, after = run(session)
    assert [one.raw for one in after.tasks_output] == [one.raw for one in before.tasks_output]
    assert told_now == told
    assert after.token_usage.successful_requests == before.token_usage.successful_requests == len(plain.requests)
    assert {count for one, count in ids.items() if one} == {2}  # each call begins and ends under one id
    again = [call for call in session.calls if call.unmodified_units == 0]
    assert len(again) == len(forked.requests) - len(plain.requests) > 0
    report = session.report()
    units = sum(record.outcome.cost_units(session.calls[0].profile) for record in plain.requests)
    assert report.total.unmodified_units == pytest.approx(units, rel=0.01)
    assert len([note for note in report.notes if "it does not have (search_market_data)" in note]) == 2
    # A role without tools is kept from them in the end, and reads what all share; another asks as it is.
    forbidden = [body for body in bodies(forked) if body.get("tool_choice") == {"type": "none"}]
    assert len(forbidden) == (0 if obeys else 1)
    assert {str(call.reasons[0]) for call in again if call.layout == "own"} == (
        set() if obeys else {"asked_again search_market_data"}
    )
    # What is for one request alone is in each that is asked in its place.
    assert all("It is noon." in record.body.decode() for record in forked.requests)
    assert not [call for call in session.calls if call.verdict.alarm]
    assert report.failures == {}


@pytest.mark.filterwarnings("ignore:the endpoint of")
@pytest.mark.parametrize("way", ["kickoff", "akickoff"])
def test_a_gateway_that_takes_no_list_of_tools_costs_one_request_and_no_crew(provide, new_llm, way) -> None:
    """It serves a model by OpenAI's name: refused, a request goes out as the crew made it, and no list comes again."""
    model = CrewModel()

    def gateway(request: Any) -> Any:
        refused = isinstance(request.body.get("tool_choice"), dict)
        return Reply(fault=Fault(status=400, message="tool_choice: unknown")) if refused else model(request)

    provider = provide("openai", gateway)
    who = agents(lambda: new_llm(provider), own_tools=True)
    team, session = crew(who, tasks(who)), Session()
    with install(team, session, volatile=lambda: {"now": "It is noon."}):
        run = getattr(team, way)(inputs={"brief": BRIEF})
        output = asyncio.run(run) if way == "akickoff" else run
    assert all(one.raw for one in output.tasks_output)
    assert [record.status for record in provider.requests].count(400) == 1
    assert "list_refused" in {call.reasons[0].why for call in session.calls}
    assert session.calls[-1].layout == "fork"
    assert session.report().unanswered == 1
    assert any("refused tool_choice" in note for note in session.report().notes)
    assert all("It is noon." in record.body.decode() for record in provider.requests)


def test_tool_call_ids_follow_from_their_place(ran) -> None:
    """Two runs with different ids from the provider send the same bytes."""
    _, provider, _ = ran()
    messages = [message for body in bodies(provider) for message in body["messages"]]
    ids = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    assert ids
    assert set(ids) <= {"call_0001", "call_0002"}


def test_text_mode_requests_share_the_tool_text_and_carry_no_tools(provide, new_llm) -> None:
    """Agents without native tool calls share the description of their tools; no array of tools is added."""
    provider = provide("openai")
    who = agents(lambda: new_llm(provider, react=True))
    team = crew(who, tasks(who))
    with install(team):
        output = team.kickoff(inputs={"brief": BRIEF})
    sent = bodies(provider)
    assert all("tools" not in body for body in sent)
    assert len({body["messages"][0]["content"] for body in sent}) == 1
    assert "You ONLY have access to the following tools" in sent[0]["messages"][0]["content"]
    assert output.raw.startswith("Result of writing")


def test_delegation_tools_name_the_whole_crew_and_the_tail_names_the_coworkers(provide, new_llm) -> None:
    """The descriptions that differ by agent are one in the union; each tail says whom its agent can turn to."""
    provider = provide("openai")
    who = agents(lambda: new_llm(provider), allow_delegation=True)
    team = crew(who, tasks(who))
    with install(team):
        team.kickoff(inputs={"brief": BRIEF})
    sent = bodies(provider)
    assert len({json.dumps(body["tools"]) for body in sent}) == 1
    tail = sent[0]["messages"][-1]["content"]
    assert "Coworkers you can turn to: Financial Analyst, Report Writer." in tail


def test_a_hierarchical_crew_shares_what_its_manager_repeats(provide, new_llm) -> None:
    """The manager's requests begin alike; its workers' are theirs."""
    from crewai import Process

    provider = provide("openai")
    who = agents(lambda: new_llm(provider))
    team = crew(who, tasks([None] * 3), process=Process.hierarchical, manager_llm=new_llm(provider))
    with install(team):
        output = team.kickoff(inputs={"brief": BRIEF})
    managers = [body for body in bodies(provider) if "Crew Manager" in body["messages"][0]["content"]]
    assert len(managers) == 6
    assert len({body["messages"][0]["content"] for body in managers}) == 1
    assert len(COWORKERS) == len(output.tasks_output)


@pytest.mark.slow
@pytest.mark.parametrize("given", ["agents", "a tool in the middle", "a tool at the end"])
def test_a_managers_requests_begin_alike_until_its_last_task(provide, new_llm, given) -> None:
    """Whoever a task names and whichever tools: CrewAI gives the tasks to the manager one by one, in two kickoffs."""
    from crewai import Process

    provider = provide("openai")
    who = agents(lambda: new_llm(provider))
    parts = tasks(who if given == "agents" else [None] * 3, context=[])
    if given != "agents":
        parts[1 if "middle" in given else 2].tools = [StyleTool()]
    team = crew(who, parts, process=Process.hierarchical, manager_llm=new_llm(provider))
    with install(team):
        for _ in range(2):
            team.kickoff(inputs={"brief": BRIEF})
    managers = [body for body in bodies(provider) if "Crew Manager" in body["messages"][0]["content"]]
    assert len(managers) == 12
    assert len({json.dumps([body["tools"], body["messages"][0]]) for body in managers}) == 1


def _read(usage: Any) -> int:
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return int(details.get("cached_tokens") or usage.get("cache_read_input_tokens") or 0)

"""A fork that could not be begun: what goes out is the application's own request, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
from crew_wire import BRIEF, INPUTS, heads, outputs, prompts, raw

from benchmarks.crewai_workloads import CrewModel, agents, crew, tasks
from cacheprefix import Session, SharedPrefix
from cacheprefix.cache import CacheModel
from cacheprefix.server import Reply, ToolCall
from cacheprefix_crewai import install
from cacheprefix_crewai.binding import binding_of
from cacheprefix_crewai.sending import WarmParts

STEPS = (
    "cacheprefix.calls.begin.plan_breakpoints",
    "cacheprefix.calls.begin.mark",
    "cacheprefix.calls.begin.Requests._marked",
    "cacheprefix.cache.CacheModel.begin",
    "cacheprefix.calls.state.decode",
    "cacheprefix_crewai.sending.with_choice",
    "cacheprefix_crewai.sending.for_litellm",
)
EVERY = "cacheprefix.cache.CacheModel.begin"
CASES = [
    *(("anthropic", {}, step) for step in STEPS[:-1]),
    ("anthropic", {"stream": True}, EVERY),
    ("openai", {}, EVERY),
    ("openai", {"stream": True}, "cacheprefix.calls.state.decode"),
    ("responses", {}, EVERY),
    ("litellm", {}, EVERY),
    ("litellm-anthropic", {}, "cacheprefix.calls.begin.mark"),
    ("litellm-anthropic", {}, STEPS[-1]),
]


@pytest.fixture
def made(servers, new_llm):
    """``made(kind)`` gives a provider and a crew of three specialists with a tool each."""

    def make(kind: str, model: Any = None, options: Any = None, **more: Any):
        provider = servers("anthropic" if "anthropic" in kind else "openai", model)
        who = agents(lambda: new_llm(provider, kind, **(options or {})), own_tools=True, **more)
        return provider, crew(who, tasks(who))

    return make


def session() -> Session:
    """One whose text every role shares, so that all requests are laid out anew."""
    return Session(SharedPrefix(system="The rules of the house."))


def broken(*_: Any, **__: Any) -> Any:
    """A step of ours that fails."""
    raise RuntimeError("on purpose")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::cacheprefix.CacheprefixWarning")
@pytest.mark.parametrize(("kind", "options", "step"), CASES, ids=[f"{k}-{len(o)}-{s}" for k, o, s in CASES])
def test_a_failure_of_ours_sends_the_users_request(made, kind, options, step, monkeypatch, caplog) -> None:
    """Messages, tools and choice are the crew's own again; it is counted each time and named once."""
    provider, team = made(kind, options=options)
    plain = outputs(team.kickoff(inputs=INPUTS))
    before = raw(provider)
    provider.reset()
    monkeypatch.setattr(step, broken)
    with install(team, session()) as installed:
        done = outputs(team.kickoff(inputs=INPUTS))
        assert binding_of(team).part(WarmParts)._used == {}
    assert raw(provider) == before
    assert done == plain
    assert installed.session.failures["begin"] == len(before)
    assert installed.session.calls == ()
    # CrewAI keeps warnings to itself while LiteLLM works; the log has them all.
    assert [one.message.partition(" (")[0] for one in caplog.records if one.name == "cacheprefix"] == [
        "begin: cacheprefix failed"
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::cacheprefix.CacheprefixWarning")
@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic", "litellm-anthropic"])
def test_the_users_volatile_text_stands_behind_the_users_request(made, kind, monkeypatch) -> None:
    """It came through our front door, and is all that a role's first request has beside the crew's own."""
    provider, team = made(kind)
    team.kickoff(inputs=INPUTS)
    plain = prompts(provider)
    provider.reset()
    monkeypatch.setattr(EVERY, broken)
    with install(team, session(), volatile=lambda: {"now": "noon"}):
        team.kickoff(inputs=INPUTS)
    sent = prompts(provider)
    assert [one.sections[-1].text for one in sent] == ["<now>\nnoon\n</now>"] * len(plain)
    for at in (0, 3, 6):  # between them are tool calls with ids that the provider draws by what was sent
        assert sent[at].sections[:-1] == plain[at].sections
        assert sent[at].settings == plain[at].settings


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_the_next_request_is_a_fork_again(made, kind, monkeypatch) -> None:
    """Only what could not be begun is the crew's own; what is expected of the others knows nothing of it."""
    provider, team = made(kind)
    team.kickoff(inputs=INPUTS)
    plain = raw(provider)
    provider.reset()
    begin, asked = CacheModel.begin, []

    def at_times(self: CacheModel, *args: Any, **options: Any) -> Any:
        if self is made_session.adapter.shared.model:
            asked.append(1)
            if len(asked) in (1, 4):
                raise RuntimeError("on purpose")
        return begin(self, *args, **options)

    made_session = session()
    monkeypatch.setattr(CacheModel, "begin", at_times)
    with install(team, made_session), pytest.warns(UserWarning, match="on purpose"):
        team.kickoff(inputs=INPUTS)
    sent = raw(provider)
    assert [sent[0], sent[3]] == [plain[0], plain[3]]
    forks = [one for at, one in enumerate(prompts(provider)) if at not in (0, 3)]
    assert len(heads(forks)) == 1
    assert len(made_session.calls) == len(plain) - 2
    assert not any(call.verdict.alarm for call in made_session.calls)


def test_a_forced_answer_that_could_not_be_begun_comes_back_as_it_is(made, monkeypatch) -> None:
    """Without the union there is no call of ours to refuse, so nothing is asked twice."""
    model = CrewModel(obstinate=True)

    def stubborn(request: Any) -> Reply:
        if "MUST give" in request.tail:
            return Reply(tool_calls=(ToolCall("style_guide", {"kind": "memo"}),))
        return model(request)

    def said() -> Any:
        """What comes of a call where there is none to make is CrewAI's business."""
        try:
            return outputs(team.kickoff(inputs=INPUTS))
        except Exception as error:
            return type(error), str(error)

    provider, team = made("anthropic", stubborn, max_iter=2)
    plain = said()
    before = raw(provider)
    provider.reset()
    monkeypatch.setattr(EVERY, broken)
    with install(team, session()), pytest.warns(UserWarning, match="on purpose"):
        assert said() == plain
    assert raw(provider) == before


def test_a_lone_tool_with_its_function_keeps_crewais_own_choice(made, monkeypatch) -> None:
    """Anthropic's class says ``auto`` where it runs the only tool itself; the union would have more of them."""
    from crewai.utilities.agent_utils import convert_tools_to_openai_schema

    provider, team = made("anthropic")
    who = team.agents[0]
    schema = convert_tools_to_openai_schema(who.tools)[0]
    ask = [
        {"role": "system", "content": f"You are {who.role}."},
        {"role": "user", "content": f"Say it. (plan none) {BRIEF}"},
    ]
    given = {"tools": schema, "available_functions": {"search_market_data": str}, "from_agent": who}
    who.llm.call(ask, **given)
    monkeypatch.setattr(EVERY, broken)
    with install(team, session(), shared_context=BRIEF), pytest.warns(UserWarning, match="on purpose"):
        who.llm.call(ask, **given)
    plain, sent = raw(provider)
    assert b'"tool_choice":{"type":"auto"}' in plain
    assert sent == plain

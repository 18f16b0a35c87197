"""Which tools an agent's requests carry on the wire, and that large ones of others never make them dearer."""

from __future__ import annotations

import pytest
from agent_framework import FunctionTool
from maf_driver import RULES
from maf_teams import NAMES, look, role, served
from test_agents import session_for
from test_places import chat

from cacheprefix.errors import NotSharedError
from cacheprefix.profiles import cost_units, default_registry, normalise_usage
from cacheprefix_maf import wrap


def kit(name, count):
    """So many tools of one agent, of some two hundred tokens each."""
    about = " ".join(f"{name}{number}" for number in range(100))
    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    return [
        FunctionTool(name=f"{name}_{n}", description=f"{n} {about}", func=lambda query="": query, input_model=schema)
        for n in range(count)
    ]


async def played(servers, api, counts, rounds, session, **steps):
    """The names of the tools in each request, and what all of them cost."""
    async with served(servers, api, **steps) as (client, provider):
        options = {"default_options": {"store": False}} if api == "openai-responses" else {}
        agents = [role(client, name, tools=kit(name, counts.get(name, 0)), **options) for name in NAMES]
        if session is not None:
            agents = [wrap(agent, session, conversation="c") for agent in agents]
        await chat(agents, rounds)
        profile = default_registry().get(RULES[api])
        sent = [record.json.get("tools") or [] for record in provider.requests]
        cost = sum(cost_units(normalise_usage(record.usage, record.api), profile) for record in provider.requests)
    return [[(one.get("function") or one)["name"] for one in tools] for tools in sent], cost


@pytest.mark.parametrize("api", tuple(RULES))
async def test_small_toolsets_are_united(servers, api):
    """Every request carries the same tools in the same order."""
    session = session_for(api)
    sent, _ = await played(servers, api, {"planner": 1, "critic": 1}, 2, session)
    assert sent == [["critic_0", "planner_0"]] * 6
    assert session.failures == {}


@pytest.mark.slow
@pytest.mark.parametrize("api", tuple(RULES))
@pytest.mark.parametrize("rounds", [1, 6])
async def test_large_toolsets_stay_with_their_agents(servers, api, rounds):
    """Each agent keeps its own, and pays no more than without cacheprefix."""
    counts = dict.fromkeys(NAMES, 30)
    plain, before = await played(servers, api, counts, rounds, None)
    session = session_for(api)
    sent, cost = await played(servers, api, counts, rounds, session)
    assert sent == plain
    assert cost <= before * 1.001
    assert {"own_tools", "tools_cost_more"} & {one.reason.why for one in session.report().layouts}
    assert session.failures == {}


async def test_agents_without_tools_share_beside_one_with_many(servers):
    """The others' requests stay free of its tools, and are read by one another."""
    steps = {name: [" ".join(f"{name}{number}" for number in range(60))] for name in NAMES}
    counts = {"planner": 40}
    _, before = await played(servers, "openai-chat", counts, 8, None, **steps)
    sent, cost = await played(servers, "openai-chat", counts, 8, session_for("openai-chat"), **steps)
    assert sent[1::3] == sent[2::3] == [[]] * 8
    assert cost < before


async def test_an_agent_that_is_made_later_shares_with_those_that_are_there(servers):
    """Its first request is cold in any case: it carries everybody's tools, and the others read what it wrote."""
    session = session_for("openai-chat")
    async with served(servers, "openai-chat") as (client, provider):

        def made(name, *tools):
            own = [look(tool) for tool in tools]
            return wrap(role(client, name, tools=own), session, conversation="c")

        early = [made("planner", "plan"), made("critic")]
        await chat(early, 1)
        await chat([made("writer", "check"), *early], 1)
        names = [[tool["function"]["name"] for tool in record.json["tools"]] for record in provider.requests]
        reads = [record.outcome.read_tokens > 1_000 for record in provider.requests]
    assert names == [["plan"]] * 2 + [["check", "plan"]] * 3
    assert reads == [False, True, False, True, True]
    assert session.failures == {}


async def test_a_tool_with_another_schema_is_named_and_strict_raises(servers):
    """Its agent keeps its own tools; which of them differs stands on the call."""
    async with served(servers, "openai-chat") as (client, _):
        for mode in ("fork", "strict"):
            session = session_for("openai-chat", mode=mode)
            other = look()
            other.description = "Another."
            agents = [role(client, "planner", tools=[look()]), role(client, "critic", tools=[other])]
            first, second = (wrap(agent, session, conversation="c") for agent in agents)
            await first.run("What now?")
            if mode == "strict":
                with pytest.raises(NotSharedError, match="look"):
                    await second.run("What now?")
            else:
                await second.run("What now?")
                why = [one.why for one in session.calls[1].reasons]
                assert "tool_schema_differs" in why
                assert session.failures == {}


async def test_a_tool_made_for_another_tenant_is_in_no_prompt_before_that_one_asks(servers):
    """Its agent is made while requests are under way: nobody else's, in conversations that begin then, tells of it."""
    session = session_for("openai-chat")
    async with served(servers, "openai-chat") as (client, provider):

        def made(name, scope, *tools):
            agent = role(client, name, tools=[look(tool) for tool in tools])
            return wrap(agent, session, conversation="c", scope=scope)

        await chat([made("planner", "acme", "plan"), made("critic", "acme")], 1)
        theirs = made("writer", "beta", "betas")
        await chat([made("planner", "gamma", "plan"), made("critic", "gamma")], 1)
        await chat([theirs], 1)
        names = [[tool["function"]["name"] for tool in record.json["tools"]] for record in provider.requests]
    assert names[:4] == [["plan"]] * 4
    assert "betas" in names[4]
    assert session.failures == {}


async def test_a_tool_made_for_one_tenant_before_anybody_asks_is_in_no_other_tenants_prompt(servers):
    """All agents are made first: what one of them has for its tenant is no tool of the team's."""
    session = session_for("openai-chat")
    async with served(servers, "openai-chat") as (client, provider):

        def made(name, scope, *tools):
            agent = role(client, name, tools=[look(tool) for tool in tools])
            return wrap(agent, session, conversation="c", scope=scope)

        acme = [made("planner", "acme", "plan", "acmes"), made("critic", "acme", "plan")]
        gamma = [made("planner", "gamma", "plan"), made("critic", "gamma", "plan")]
        for team in (acme, gamma):
            await chat(team, 1)
        names = [[tool["function"]["name"] for tool in record.json["tools"]] for record in provider.requests]
    assert names == [["acmes", "plan"]] * 2 + [["plan"]] * 2
    assert session.failures == {}


@pytest.mark.parametrize("way", ["under way", "from the first request on", "the first one's alone"])
async def test_no_conversation_is_shown_a_tool_that_was_made_for_another(servers, way):
    """Agents are made anew for each person, whom no tenant tells apart."""
    session = session_for("openai-chat")
    async with served(servers, "openai-chat") as (client, provider):
        if way == "under way":
            await chat([wrap(role(client, name), session, conversation="first") for name in ("greeter", "guide")], 1)
        for user, other in (("acme", "beta"), ("beta", "acme")) * 2:
            form = {"type": "object", "properties": {"query": {"type": "string"}}}
            told = f"Asks the house of {user}."
            house = FunctionTool(name=f"house_{user}", description=told, func=lambda query="": query, input_model=form)
            has = user == "acme" or way != "the first one's alone"
            agents = [role(client, "planner", tools=[house] if has else []), role(client, "critic")]
            seen = len(provider.requests)
            await chat([wrap(agent, session, conversation=user) for agent in agents], 2)
            shown = [record.body for record in provider.requests[seen:]]
            assert (b"house of " + user.encode() in shown[0]) is has
            assert not [body for body in shown if b"house of " + other.encode() in body]
    assert session.failures == {}


@pytest.mark.parametrize("before", [True, False], ids=["made first", "made later"])
async def test_no_tenant_is_shown_anothers_tool_of_the_same_name(servers, before):
    """Nor are its agents that have none of that name, whether both tenants' are made before anybody asks or not."""
    session = session_for("openai-chat")
    async with served(servers, "openai-chat") as (client, provider):

        def made(tenant):
            form = {"type": "object", "properties": {"query": {"type": "string"}}}
            told = f"Asks the house of {tenant}."
            house = FunctionTool(name="house", description=told, func=lambda query="": query, input_model=form)
            agents = [role(client, "planner", tools=[house]), role(client, "critic")]
            return [wrap(agent, session, conversation="c", scope=tenant) for agent in agents]

        async def asked(team, tenant):
            seen = len(provider.requests)
            await chat(team, 2)
            shown = [record.body for record in provider.requests[seen:]]
            assert b"house of " + tenant.encode() in shown[0]
            other = {"acme": b"beta", "beta": b"acme"}[tenant]
            assert not [body for body in shown if b"house of " + other in body]

        teams = {tenant: made(tenant) for tenant in ("acme", "beta")} if before else {}
        for tenant in ("acme", "beta", "acme"):
            if tenant not in teams:
                teams[tenant] = made(tenant)
            await asked(teams[tenant], tenant)
    assert session.failures == {}


async def test_roles_that_are_named_after_users_stop_sharing_their_tools(servers):
    """All are made before the first request, like a team; four conversations without a common role show it is none."""
    session, users = session_for("openai-chat"), ("alice", "bob", "carol", "dave", "erin", "frank")
    form = {"type": "object", "properties": {}}
    async with served(servers, "openai-chat") as (client, provider):
        agents = []
        for user in users:
            told = f"Looks into the inbox of {user}."
            own = FunctionTool(name=f"look_{user}", description=told, func=lambda: "", input_model=form)
            agents.append(wrap(role(client, f"helper_{user}", tools=[own]), session, conversation=user))
        for agent in agents * 2:
            await agent.run("What now?")
        seen = [{user for user in users if f"inbox of {user}".encode() in one.body} for one in provider.requests]
    assert max(map(len, seen)) > 1
    assert seen[3:] == [{user} for user in (*users[3:], *users)]
    assert session.failures == {}

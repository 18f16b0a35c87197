"""Invariant 9 on the wire: a fork says what the unmodified request says, once, and nothing that the user did not give.

Teams are built twice from the same code, without us and with us; the same provider answers both by what is asked.
"""

import textwrap
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import dynamic_prompt
from langchain_core.messages import ChatMessage, HumanMessage, SystemMessage
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply
from cacheprefix.testing import information
from cacheprefix_langgraph import PrefixMiddleware, forked, wrap_model
from tests.langgraph.conftest import KINDS, RULES, Bench
from tests.langgraph.test_invariants import conversations, units

HANDBOOK = "\n".join(
    f"Rule {n}: a claim about part {n} names the file and the line that it was seen in." for n in range(90)
)
DUTIES = (
    "You plan the work.",
    "You criticise what was planned.\n\n- Name what is missing.",
    "You write.",
    "You check.",
)

quick = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)


def system(text):
    """Where most applications have it."""
    return lambda duty, said: [SystemMessage(f"{duty}\n\n{text}"), *said]


HELD = {
    "as it is": system(HANDBOOK),
    "in front": lambda duty, said: [SystemMessage(f"{HANDBOOK}\n\n{duty}"), *said],
    "indented": system(textwrap.indent(HANDBOOK, "    ")),
    "other line ends": system(HANDBOOK.replace("\n", "\r\n")),
    "doubled line ends": system(HANDBOOK.replace("\n", "\n\n")),
    "in blocks": lambda duty, said: [
        SystemMessage([{"type": "text", "text": HANDBOOK}, {"type": "text", "text": f"\n\n{duty}"}]),
        *said,
    ],
    "in a message of its own": lambda duty, said: [SystemMessage(HANDBOOK), SystemMessage(duty), *said],
    "in a human message": lambda duty, said: [SystemMessage(duty), HumanMessage(f"{HANDBOOK}\n\nWhat now?"), *said],
    "as a human message": lambda duty, said: [SystemMessage(duty), HumanMessage(HANDBOOK), *said],
    "in a block of a human message": lambda duty, said: [
        SystemMessage(duty),
        HumanMessage([{"type": "text", "text": HANDBOOK}, {"type": "text", "text": "What now?"}]),
        *said,
    ],
    "behind all": lambda duty, said: [*said, HumanMessage(f"{duty}\n\n{HANDBOOK.upper()}\n\n{HANDBOOK}")],
    "in a system message behind all": lambda duty, said: [*said, SystemMessage(f"{duty}\n\n{HANDBOOK}")],
    "in a string": lambda duty, said: f"{duty}\n\n{HANDBOOK}\n\n{said[-1].text}",
    "nowhere": lambda duty, said: [SystemMessage(duty), *said],
    "nowhere, and no system message": lambda duty, said: [*said, HumanMessage(duty)],
}
"""How a node's prompt holds the shared text."""
OPENAI = {"as a developer's": lambda duty, said: [ChatMessage(f"{duty}\n\n{HANDBOOK}", role="developer"), *said]}
"""The same, for OpenAI's API alone."""


def run(bench, session, ways, messages, *, text=HANDBOOK):
    """One turn of a team of nodes, each with a prompt of its own; the prompts as the provider saw them."""
    bench.provider.reset()
    bench.script(lambda request: Reply(f"Answer {next(numbers)} to it."))
    numbers = count()
    model = bench.model() if session is None else wrap_model(bench.model(), session)
    graph, previous = StateGraph(MessagesState), START
    for number, way in enumerate(ways):

        def node(state, make={**HELD, **OPENAI}[way], duty=DUTIES[number]):
            return {"messages": [model.invoke(make(duty, state["messages"]))]}

        name = f"role{number}"
        graph.add_node(name, node if session is None else forked(session, role=name)(node))
        graph.add_edge(previous, name)
        previous = name
    graph.compile().invoke({"messages": messages})
    return bench.prompts()


def session_of(bench, prefix, **options):
    """A session with this prefix, for the rules of the bench."""
    return Session(prefix, caching=Caching(provider=bench.rules, counter=ESTIMATE), **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A non-leading `SystemMessage` was moved")
@quick
@given(ways=st.lists(st.sampled_from(sorted(HELD)), min_size=1, max_size=4), messages=conversations())
def test_a_fork_says_what_the_unmodified_request_says(bench, ways, messages):
    """Whatever holds the shared text, in whichever words of white space; whatever layout costs decide for."""
    plain = run(bench, None, ways, messages)
    session = session_of(bench, SharedPrefix(system=HANDBOOK))
    ours = run(bench, session, ways, messages)
    assert session.failures == {}
    for one, other in zip(plain, ours, strict=True):
        assert information(one, other, HANDBOOK).equal, information(one, other, HANDBOOK)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A non-leading `SystemMessage` was moved")
@pytest.mark.parametrize("way", HELD)
def test_wherever_the_shared_text_stands_it_is_shared(bench, way):
    """All requests begin with it, and the run is not dearer than without us."""
    # "nowhere" is what the user gave to be said beside: without us nobody says it.
    run(bench, None, [way] * 3, [HumanMessage("Begin.")])
    plain = units(bench)
    session = session_of(bench, SharedPrefix(system=HANDBOOK))
    prompts = run(bench, session, [way] * 3, [HumanMessage("Begin.")])
    assert {prompt.tier("system")[0].text for prompt in prompts} == {HANDBOOK} or way == "in front"
    assert units(bench) <= plain or way.startswith("nowhere")


def test_what_holds_it_otherwise_shares_with_those_that_hold_it_as_it_is(chat):
    """One outlier with other line ends, one without: all five begin alike."""
    ways = ["as it is", "other line ends", "indented", "nowhere"]
    session = session_of(chat, SharedPrefix(system=HANDBOOK))
    prompts = run(chat, session, ways, [HumanMessage("Begin.")])
    assert {prompt.sections[0].text for prompt in prompts} == {HANDBOOK}
    assert {call.layout for call in session.calls} == {"fork"}


def test_a_developers_message_is_a_system_message(chat):
    """As OpenAI's API calls it, in LangChain's message of any role."""
    ways = ["as a developer's"] * 2
    plain = run(chat, None, ways, [HumanMessage("Begin.")])
    session = session_of(chat, SharedPrefix(system=HANDBOOK))
    ours = run(chat, session, ways, [HumanMessage("Begin.")])
    assert [information(one, other, HANDBOOK).equal for one, other in zip(plain, ours, strict=True)] == [True, True]
    assert {prompt.sections[0].text for prompt in ours} == {HANDBOOK}


PROMPTS = {
    "goes on in a line": [dynamic_prompt(lambda request: f"{HANDBOOK}\n\nYou serve Ann{request.messages[0].text}")],
    "does not hold the shared text": [dynamic_prompt(lambda request: f"You serve Ann{request.messages[0].text}")],
}


@pytest.mark.parametrize("prompts", PROMPTS)
@pytest.mark.parametrize("ours_first", [False, True])
def test_an_agent_alone_with_other_prompts_says_each_once(bench, prompts, ours_first):
    """Its forks begin with its own first prompt only where that stands in them as lines by themselves."""
    sent = []
    for session in (None, session_of(bench, SharedPrefix(system=HANDBOOK))):
        bench.provider.reset()
        ours = [] if session is None else [PrefixMiddleware(session, role="helper")]
        both = [*ours, *PROMPTS[prompts]] if ours_first else [*PROMPTS[prompts], *ours]
        model = bench.model() if session is None else wrap_model(bench.model(), session)
        agent = create_agent(model, [], system_prompt="You serve nobody.", middleware=both)
        for text in ("", "a", "e Lee"):
            agent.invoke({"messages": [HumanMessage(text), HumanMessage("Begin.")]})
        sent.append(bench.prompts())
    assert session.failures == {}
    for one, other in zip(*sent, strict=True):
        assert information(one, other, HANDBOOK).equal, information(one, other, HANDBOOK)


@pytest.mark.parametrize("blocks", [False, True])
def test_a_user_who_quotes_the_shared_text_is_not_cut_short(bench, blocks):
    """The request says it twice, so the fork does: what is asked about it would be about nothing else."""
    bench.script(["Yes."])
    session = session_of(bench, SharedPrefix(system=HANDBOOK))
    session.adapter.join("other")
    model = wrap_model(bench.model(), session, role="one")
    asked = f"Is this policy ok?\n{HANDBOOK}"
    said = HumanMessage([{"type": "text", "text": asked}] if blocks else asked)
    model.invoke([SystemMessage(f"You check.\n\n{HANDBOOK}"), said])
    assert [call.layout for call in session.calls] == ["fork"]
    prompt = bench.prompts()[0]
    assert prompt.tier("system")[0].text == HANDBOOK
    assert prompt.tier("messages")[0].text == asked
    assert sum(section.text.count(HANDBOOK) for section in prompt.sections) == 2


def test_a_short_shared_text_is_not_taken_out_of_what_is_said(chat):
    """A user may say by chance what a short text says."""
    chat.script(["Yes."])
    session = session_of(chat, SharedPrefix(system="Be brief."))
    session.adapter.join("other")
    model = wrap_model(chat.model(), session, role="one")
    model.invoke([HumanMessage("Be brief. " * 700)])
    assert chat.provider.requests[0].json["messages"][-1]["content"].startswith("Be brief. Be brief.")


def test_an_older_version_is_named_and_not_doubled_in_the_applications_own_layout(chat):
    """Below the minimum the request is the application's: it is not given the text that it has in older words."""
    text = HANDBOOK[:2_000]
    session = session_of(chat, SharedPrefix(system=text))
    session.adapter.join("other")
    model = wrap_model(chat.model(), session, role="one")
    given = [SystemMessage(f"You plan.\n\n{text[:1_900]} And so on."), HumanMessage("Begin.")]
    chat.script(["Yes."])
    model.invoke(given)
    assert [one["content"] for one in chat.provider.requests[0].json["messages"]] == [one.text for one in given]
    assert [one.why for one in session.calls[0].reasons] == ["text_not_found", "prefix_below_minimum"]


WORLD = "The world is flat here, and its edge is guarded."
LAYOUTS = {
    "a fork": (HANDBOOK, "You plan."),
    "below the minimum": ("House.", "You plan."),
    "a long text of its own": ("House.", "You plan with care. " * 900),
    "nothing but context": ("", "You plan."),
    "an own layout that holds the text": (HANDBOOK[:1_000], f"You plan.\n\n{HANDBOOK[:1_000]}"),
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", ["node", "role", "agent", "agent alone", "no system message"])
def test_what_is_given_to_the_shared_prefix_arrives_once_in_every_layout(servers, kind, layout, door):
    """The shared text and durable context, whatever costs decide for and whoever asks."""
    bench = Bench(kind, servers(RULES[kind]))
    text, duty = LAYOUTS[layout]
    session = session_of(bench, SharedPrefix(system=text, context={"world": WORLD}))
    if door != "agent alone":
        session.adapter.join("other")
    bench.script(["Yes."])
    said = [HumanMessage("Begin.")]
    if door.startswith("agent"):
        middleware = [PrefixMiddleware(session, role="one")]
        create_agent(bench.model(), [], system_prompt=duty, middleware=middleware).invoke({"messages": said})
    elif door == "node":
        model = wrap_model(bench.model(), session)
        forked(session, role="one")(lambda state: model.invoke([SystemMessage(duty), *state["messages"]]))(
            {"messages": said}
        )
    elif door == "role":
        wrap_model(bench.model(), session, role="one").invoke([SystemMessage(duty), *said])
    else:
        duty = ""
        wrap_model(bench.model(), session, role="one").invoke(said)
    assert session.failures == {}
    sent = " ".join(" ".join(section.text for section in bench.prompts()[0].sections).split())
    for one in (text, duty.replace(text, "") if text else duty, WORLD, "Begin."):
        assert sent.count(" ".join(one.split())) == 1 or not one.strip()


def test_a_role_with_a_card_is_told_its_own_in_its_own_layout(chat):
    """Where the shared text is not sent as a whole, the role's part of it is, and nobody else's."""
    cards = {"one": "You look for gaps in what was planned.", "other": "You write it all down."}
    caching = Caching(provider=chat.rules, counter=ESTIMATE, tail="cards")
    session = Session(SharedPrefix(roles=cards), caching=caching)
    session.adapter.join("other")
    chat.script(["Yes."])
    wrap_model(chat.model(), session, role="one").invoke([HumanMessage("Begin.")])
    assert [one["content"] for one in chat.provider.requests[0].json["messages"]] == [cards["one"], "Begin."]

"""Models that a role asks past the session, or through another one: said once, in words that name what to do."""

import functools
import warnings

import pytest
from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix import CacheprefixWarning
from cacheprefix.errors import SetupError
from cacheprefix_langgraph import PrefixMiddleware, forked, subgraph, wrap_model
from tests.langgraph.conftest import TOOLS

HANDBOOK = "The handbook says that every statement needs a source. " * 90
PROMPT = ChatPromptTemplate.from_messages([("system", "You plan."), ("placeholder", "{messages}")])


class Planner:
    """A node that holds its model."""

    def __init__(self, model):
        self.model = model

    def __call__(self, state):
        return {"messages": [self.model.invoke(state["messages"])]}


def function(model):
    """A function's model, with tools bound to it."""
    bound = model.bind_tools(TOOLS)

    def plan(state):
        return {"messages": [bound.invoke([SystemMessage("You plan."), *state["messages"]])]}

    return plan


NODES = {
    "function": function,
    "object": Planner,
    "method": lambda model: Planner(model).__call__,
    "partial": lambda model: functools.partial(function(model)),
    "chain": lambda model: PROMPT | model,
    "agent": lambda model: create_agent(model, TOOLS),
    "graph": lambda model: (
        StateGraph(MessagesState).add_node("plan", function(model)).add_edge(START, "plan").compile()
    ),
}


@pytest.mark.parametrize("mode", ["fork", "observe"])
@pytest.mark.parametrize("kind", NODES)
def test_a_role_whose_model_is_not_wrapped_is_named_in_the_report(chat, kind, mode):
    """Else it has no calls and no share, and nobody says why."""
    session = chat.session(HANDBOOK, mode=mode)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            forked(session, role="planner")(NODES[kind](chat.model()))
    # Once, and where nothing is changed in the report alone.
    assert len([one for one in caught if "not wrapped" in str(one.message)]) == (mode == "fork")
    (said,) = [note for note in session.report().notes if "not wrapped" in note]
    assert "role 'planner' asks a model that is not wrapped (ChatOpenAI)" in said


def test_a_plain_model_beside_a_wrapped_one_is_named_in_the_report_alone(chat):
    """It may be meant: the documentation advises it for steps that are dearer as forks."""
    session = chat.session(HANDBOOK)
    plain, wrapped = chat.model(), wrap_model(chat.model(), session)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forked(session, role="planner")(lambda state: [plain.invoke(state), wrapped.invoke(state)])
    assert not caught
    assert "not wrapped" in str(session.report())


@pytest.mark.parametrize("kind", NODES)
def test_nothing_is_said_of_a_role_whose_model_is_wrapped(chat, kind):
    """The same nodes with a wrapped model."""
    session = chat.session(HANDBOOK)
    forked(session, role="planner")(NODES[kind](wrap_model(chat.model(), session)))
    assert not [note for note in session.report().notes if "not wrapped" in note]


def test_nothing_is_said_of_an_agent_whose_middleware_wraps_its_model(chat):
    """``subgraph`` around it is for the tools and the state."""
    session = chat.session(HANDBOOK)
    agent = create_agent(chat.model(), TOOLS, middleware=[PrefixMiddleware(session, role="planner")])
    subgraph(agent, session, role="planner")
    assert not [note for note in session.report().notes if "not wrapped" in note]


def test_a_model_of_another_session_than_its_node_is_told_as_that(chat):
    """The node is decorated; what is wrong is with what."""
    mine, other = chat.session(HANDBOOK), chat.session(HANDBOOK)
    node = forked(other, role="planner")(function(wrap_model(chat.model(), mine)))
    graph = StateGraph(MessagesState).add_node("plan", node).add_edge(START, "plan").compile()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            graph.invoke({"messages": [HumanMessage("Begin.")]})
    said = [str(one.message) for one in caught if "cacheprefix" in type(one.message).__name__.lower()]
    assert len(said) == 1
    assert "role 'planner' is one of another session than its model" in said[0]


def test_a_model_that_is_made_when_it_is_called_is_not_looked_into(chat):
    """Which one it will be is known in the run."""
    session = chat.session(HANDBOOK, mode="observe")
    forked(session, role="planner")(function(init_chat_model(configurable_fields=("model", "model_provider"))))
    forked(session, role="critic")(init_chat_model())
    assert not session.failures


@pytest.mark.parametrize(
    "given", [{"role": "planner"}, {"tools": TOOLS}, {"pinned": True}], ids=["role", "tools", "pinned"]
)
def test_a_model_in_the_place_of_the_session_is_refused(chat, given):
    """It would be taken for the node, and what is decorated for its input."""
    with pytest.raises(SetupError, match=r"found ChatOpenAI: write forked\(session, role=\.\.\.\)\(node\)"):
        forked(chat.model(), **given)


@pytest.mark.parametrize("mode", ["fork", "observe"])
def test_a_node_that_is_forked_as_two_roles_is_warned_of(chat, mode):
    """The inner one counts: the other one would ask nothing, and nobody says why."""
    session = chat.session(HANDBOOK, mode=mode)
    node = forked(session, role="planner")(function(wrap_model(chat.model(), session)))
    with pytest.warns(CacheprefixWarning, match="forked as 'critic' that is forked already, as 'planner'"):
        forked(session, role="critic")(node)
    forked(session)(node)


def test_an_agent_is_not_made_with_middleware_of_two_sessions(chat):
    """One of them would wrap the model, and the other one find it taken; in one that is off nothing is refused."""
    one, other = chat.session(HANDBOOK), chat.session(HANDBOOK)
    for off in (chat.session(HANDBOOK, mode="off"), one):
        both = [PrefixMiddleware(one, role="planner"), PrefixMiddleware(off, role="critic")]
        create_agent(chat.model(), TOOLS, middleware=both)
    both = [PrefixMiddleware(one, role="planner"), PrefixMiddleware(other, role="critic")]
    with pytest.raises(SetupError, match="'planner' has a PrefixMiddleware of another session too"):
        create_agent(chat.model(), TOOLS, middleware=both)

"""A conversation that ran unmodified before the session saw it: what the report says of what unmodified had cost."""

from __future__ import annotations

import openai
import pytest

from cacheprefix import Caching, Session, SharedPrefix, wrap
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, SimulatedProvider
from cacheprefix_sdk import role

HANDBOOK = "Every claim names its source and the page on which it stands. " * 200
ROLES = ("reader", "critic")
SAID = "hangs on conversations that were under way"
EXAMPLES = [
    {"role": "user", "content": "An example? " * 300},
    {"role": "assistant", "content": "As it is done. " * 300},
]


def asked(name, history):
    """A role's own request, its text in front of the handbook."""
    system = f"You are the {name}.\n\n{HANDBOOK}"
    return {"model": "gpt-4.1", "messages": [{"role": "system", "content": system}, *history]}


def talk(client, at, turns, history=(), *, forks=True):
    """Some turns of a conversation in which each role answers; what was said by then."""
    said = list(history)
    for turn in range(turns):
        said.append({"role": "user", "content": f"{at}, question {turn}. " * 100})
        for name in ROLES:
            if forks:
                with role(name, conversation=at):
                    client.chat.completions.create(**asked(name, said))
            else:
                client.chat.completions.create(**asked(name, said))
            said.append({"role": "assistant", "content": f"The {name} answers. " * 60})
    return said


@pytest.fixture
def client():
    """A client of a provider that keeps what it was sent."""
    with SimulatedProvider("openai", lambda _: Reply("Yes.")) as provider:
        made = openai.OpenAI(base_url=provider.openai_base_url, api_key="k", max_retries=0)
        yield made
        made.close()


@pytest.fixture
def session():
    """One that counts as the provider does."""
    found = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai", counter=ESTIMATE))
    for name in ROLES:
        found.adapter.join(name)
    return found


def test_what_a_conversation_under_way_had_cost_unmodified_is_unknown(client, session):
    """The provider's warm cache of it may have been read, which the forks that begin otherwise cannot read."""
    history = talk(client, "one", 3, forks=False)
    talk(wrap(client, session), "one", 2, history)
    report, calls = session.report(), session.calls
    assert report.total.unmodified_units is None
    assert [list(call.unsure) for call in calls] == [["under_way"], ["under_way"], [], []]
    told = [line for line in str(report).splitlines() if line.startswith("unmodified is")]
    # The one reason that applies, and what is known of the others.
    assert len(told) == 2
    assert SAID in told[0]
    assert told[1].startswith("unmodified is known of 2 of 4 requests: they cost ")
    # In plain data too, as the text says it, and of each agent.
    plain = report.as_dict()
    total = plain["total"]
    assert total["unmodified_cost_units_estimated"] is None
    assert total["unsure"] == {"under_way": pytest.approx(sum(call.unsure_units for call in calls), abs=0.01)}
    for line in plain["agents"]:
        unsure = sum(call.unsure_units for call in calls if call.agent == line["agent"])
        assert line["unsure"] == {"under_way": pytest.approx(unsure, abs=0.01)}
    cost = sum(call.units for call in calls[2:])
    assert f"they cost {cost:,.0f} cost units" in told[1]
    assert told[1].endswith(f"the others cost {report.total.cost_units - cost:,.0f}")


def test_what_it_had_cost_lies_where_the_report_says(client, session):
    """Between the estimate and that without what is unsure: measured on the same requests, all unmodified."""
    history = talk(client, "one", 3, forks=False)
    talk(wrap(client, session), "one", 2, history)
    least = sum(call.unmodified_units - call.unsure_units for call in session.calls)
    most = sum(call.unmodified_units for call in session.calls)
    with SimulatedProvider("openai", lambda _: Reply("Yes.")) as provider:
        other = openai.OpenAI(base_url=provider.openai_base_url, api_key="k", max_retries=0)
        history = talk(other, "one", 3, forks=False)
        before = len(provider.requests)
        talk(other, "one", 2, history, forks=False)
        other.close()
        served = [record.outcome for record in provider.requests[before:]]
    truth = sum(one.input_tokens - 0.75 * one.read_tokens for one in served)
    assert 0.8 * truth < least <= truth
    assert most > 1.2 * truth


def test_a_conversation_that_the_session_saw_from_its_beginning_is_known(client, session):
    """Answers in it, of whichever role, are no sign of another one."""
    talk(wrap(client, session), "one", 3)
    assert session.report().total.unmodified_units is not None
    assert not any(call.unsure for call in session.calls)


def test_conversations_that_all_begin_with_examples_are_unknown_for_the_first_one_alone(client, session):
    """Nobody can tell these from what was said before; the next ones begin with what the session has seen."""
    wrapped = wrap(client, session)
    for number in range(3):
        talk(wrapped, f"talk {number}", 1, EXAMPLES)
    assert [list(call.unsure) for call in session.calls] == [["under_way"], ["under_way"], [], [], [], []]

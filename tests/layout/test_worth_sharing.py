"""Whether a conversation's requests are forks, and who knows it."""

from cacheprefix import Caching, Session
from cacheprefix.prompt import ESTIMATE


def test_a_conversation_that_goes_on_under_another_id_stays_a_fork():
    """As AutoGen's do where a saved team is loaded beside the one that saved it: what it shares may be less by then."""
    session = Session(caching=Caching(provider="anthropic", counter=ESTIMATE)).adapter
    asks = session.shared.sharing.refusal
    first, second, other = (session.conversation(name) for name in ("first", "second", "other"))

    def refused(conversation, shared):
        services = session.shared.services
        return asks(session.team, services, conversation, "planner", "claude-sonnet-4-5", shared) is not None

    assert refused(first, 300)
    assert not refused(first, 3_000)
    second.restore(first.to_json())
    assert not refused(second, 300)
    assert refused(other, 300)


def test_a_role_that_is_told_little_keeps_its_own_layout_beside_others_that_share():
    """It would carry their tools, and read nothing: what it has in common with them is shorter than any entry."""
    session = Session(caching=Caching(provider="openai", counter=ESTIMATE)).adapter
    asks, conversation = session.shared.sharing.refusal, session.conversation("one")

    def refused(role, shared):
        return asks(session.team, session.shared.services, conversation, role, "gpt-4.1", shared) is not None

    assert not refused("planner", 3_000)
    assert refused("grader", 300)
    assert not refused("grader", 3_000)
    assert not refused("grader", 300)

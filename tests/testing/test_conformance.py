"""The conformance suite passes an adapter that does right, and names each thing that one does wrong."""

from __future__ import annotations

import httpx
import pytest

from cacheprefix.adapter import Request
from cacheprefix.errors import SetupError
from cacheprefix.history import ToolResultBudget
from cacheprefix.server import SimulatedProvider
from cacheprefix.testing import AdapterConformance, play
from cacheprefix.testing.driver import script
from cacheprefix.wire import apply, views_of


class WireDriver:
    """An adapter in thirty lines, which does on request one thing wrong."""

    api = "openai-chat"
    rules = "openai-5.6"
    ways = ("invoke",)
    budgets = True

    def __init__(self, fault=""):
        self.fault = fault

    def run(self, team, provider, session):
        """Play the team over plain HTTP."""
        with httpx.Client(base_url=provider.openai_base_url) as http:

            def post(body):
                answer = http.post("/chat/completions", json=body)
                return answer.raise_for_status().json()

            return play(team, self.api, "gpt-5.6", lambda role, body: self._send(post, team, session, role, body))

    def _send(self, post, team, session, role, body):
        if session is None:
            return post(body)
        if session.mode == "observe" and self.fault != "observe":
            turn = session.adapter.begin(Request(body, self.api, agent=role.name, conversation=team.thread))
        else:
            made = session.adapter.attempt("layout", lambda: self._laid(team, session, role, body), None)
            if self.fault == "closed":
                session.adapter.decode(body, self.api)
            sent, end = (body, None) if made is None else made
            scope = "all" if self.fault == "scope" else None
            whose = {"agent": role.name, "conversation": team.thread, "scope": scope}
            turn = session.adapter.begin(Request(sent, self.api, boundary=end, rewrite=made is not None, **whose))
        if self.fault == "log":
            session.adapter.note(str(body["messages"][-1]["content"]))
        answer = post(dict(turn.body))
        turn.finish(answer.get("usage"))
        return answer

    def _laid(self, team, session, role, body):
        history = body["messages"][1:]
        inner = session.adapter
        sharing, services = inner.shared.sharing, inner.shared.services
        size = services.count(inner.team.prefix.text, "gpt-5.6")
        refused = sharing.refusal(inner.team, services, session.conversation(team.thread), "planner", "gpt-5.6", size)
        if refused is not None and self.fault != "dear":
            return None
        views = views_of(history, self.api, session.adapter.counter("gpt-5.6"))
        if self.fault == "ledger" and session.adapter.histories.budget == ToolResultBudget(max_tokens=2_000):
            views = []
        decisions = session.adapter.histories.condense(session.conversation(team.thread), views, "gpt-5.6", self.api)
        history = apply(history, decisions, self.api)
        if self.fault == "pairs":
            history = [message for message in history if message["role"] != "tool"]
        if self.fault == "grow":
            history = history[-2:]
        system = team.system(role) if self.fault == "fork" else session.prefix.text
        instruction = "" if self.fault == "fork" else role.instruction
        tail = session.adapter.tail_for(role.name, instruction)
        filler = "padding " * 3_000 if self.fault == "dear" else ""
        messages = [{"role": "system", "content": filler + system}, *history, {"role": "user", "content": tail or "."}]
        return {**body, "messages": messages}, len(team.tools) + 1 + len(history)


class TestAdapterThatDoesRight(AdapterConformance):
    """All eight pass."""

    def make_driver(self):
        return WireDriver()


@pytest.fixture(scope="module")
def one_server():
    """One provider for all faults."""
    with SimulatedProvider("openai-5.6", script(), strict=False) as provider:
        yield provider


@pytest.mark.invalid_requests
@pytest.mark.parametrize(
    ("fault", "test", "said"),
    [
        ("fork", "test_1_forks_begin_with_the_same_bytes", "role's text in .*, before the shared part"),
        ("ledger", "test_2_a_saved_ledger_replays_byte_for_byte", "request . differs from byte"),
        ("pairs", "test_3_calls_stay_with_their_results", "stands where the results of the calls"),
        ("observe", "test_4_observing_changes_no_byte", "differs from byte .* in observe mode"),
        ("closed", "test_5_a_failure_of_ours_lets_every_call_through", "broken on purpose"),
        ("dear", "test_6_never_dearer_than_without", "cost units, and .* without cacheprefix"),
        ("grow", "test_7_a_lane_grows_only_at_its_end", "does not begin as request"),
        ("log", "test_8_nothing_reaches_across", "shows what the prompt says"),
        ("scope", "test_8_nothing_reaches_across", "tenant-b expects .* tokens that tenant-a wrote"),
    ],
)
def test_a_fault_is_named(one_server, caplog, fault, test, said):
    """Each invariant, broken on purpose, fails its own test."""

    class Suite(AdapterConformance):
        def make_driver(self):
            return WireDriver(fault)

    one_server.reset()
    needed = {"provider": one_server, **({"caplog": caplog} if test.startswith("test_8") else {})}
    with pytest.raises((AssertionError, RuntimeError), match=said):
        getattr(Suite(), test)(**needed)


def test_a_suite_without_a_driver_says_what_is_missing():
    """At the first test."""
    with pytest.raises(SetupError, match=r"make_driver\(\) must return"):
        AdapterConformance().make_driver()

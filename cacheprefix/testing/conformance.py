"""The design's first nine invariants as tests of an adapter, on the bytes that a simulated provider receives.

A third party derives a class whose name begins with ``Test`` and says how to drive its adapter:

    class TestMine(AdapterConformance):
        def make_driver(self):
            return MyDriver()
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import orjson
import pytest

from cacheprefix.errors import SetupError
from cacheprefix.history import Compaction, ToolResultBudget
from cacheprefix.hookspecs import PREFIX
from cacheprefix.layout import SharedPrefix
from cacheprefix.options import Caching
from cacheprefix.plugins import HookName
from cacheprefix.profiles import Profile, cost_units, normalise_usage
from cacheprefix.prompt import ESTIMATE, Prompt, chain, lane_key
from cacheprefix.server import Record, SimulatedProvider
from cacheprefix.session import Session
from cacheprefix.testing.driver import LOOK, SHORT, Driver, Role, Team, script, tools
from cacheprefix.testing.equal_information import information
from cacheprefix.testing.requests import assert_valid_requests

_SECRET = "the customer's name is Zacharias Quill"  # noqa: S105 - no password: a text that may not be logged
_ROUNDING = 1.001
"""Estimates of cost agree to a part in a thousand."""


class AdapterConformance:
    """Derive from it, give ``make_driver``, and pytest runs the invariants 1 to 9 on your adapter."""

    def make_driver(self) -> Driver:
        """The driver of the adapter under test."""
        raise SetupError(f"{type(self).__name__}.make_driver() must return the driver of your adapter")

    def make_session(self, team: Team, *, scope: str = "", **options: Any) -> Session:
        """A session for the team. Override it where the adapter's framework counts or freezes in its own way."""
        rules = self.make_driver().rules
        prefix = SharedPrefix(system=team.handbook, tools=team.tools)
        return Session(prefix, caching=Caching(provider=rules, scope=scope, counter=ESTIMATE), **options)

    @pytest.fixture(scope="class")
    @classmethod
    def conformance_server(cls) -> Iterator[SimulatedProvider]:
        """One provider for the class."""
        # It takes what the real one refuses, so that the test of pairing names it, and not whatever test comes first.
        with SimulatedProvider(cls().make_driver().rules, script(), strict=False) as provider:
            yield provider

    @pytest.fixture
    def provider(self, conformance_server: SimulatedProvider) -> SimulatedProvider:
        """The provider, with an empty cache."""
        conformance_server.reset()
        return conformance_server

    # ------------------------------------------------------------------ 1, 7

    def test_1_forks_begin_with_the_same_bytes(self, provider: SimulatedProvider) -> None:
        """Fork identity: tools, system and transcript are identical in cache order, whatever the way of calling."""
        driver = self.make_driver()
        for way in driver.ways:
            provider.reset()
            team = Team(way=way, tools=tools())
            self._run(team, provider, self.make_session(team))
            self._grows(team, _prompts(provider), f"called by {way}")

    def test_7_a_lane_grows_only_at_its_end(self, provider: SimulatedProvider) -> None:
        """Append only: over several rounds and tool calls, what one call shared every later call begins with."""
        team = Team(questions=("How do we find the slow step?", LOOK, "And now?"), tools=tools())
        self._run(team, provider, self.make_session(team))
        self._grows(team, _prompts(provider), "over three rounds")

    # ------------------------------------------------------------------ 2, 3

    def test_2_a_saved_ledger_replays_byte_for_byte(self, provider: SimulatedProvider) -> None:
        """Ledger replay: with the saved decisions, another process and another budget send the same bytes."""
        if not self.make_driver().budgets:
            pytest.skip("this adapter does not shorten tool results, so there is no decision to replay")
        team = Team(questions=(LOOK,), tools=tools())
        first = self.make_session(team, budget=ToolResultBudget(max_tokens=400))
        self._run(team, provider, first)
        sent = _bodies(provider)
        full = team.run_tool("read_log", {})
        middle = orjson.dumps(full[len(full) // 2 :][:200])[1:-1]
        _check(not any(middle in body for body in sent), "no tool result was shortened")
        saved = first.conversation(team.thread).dumps()
        later = self.make_session(team, budget=ToolResultBudget(max_tokens=2_000))
        later.conversation(team.thread).restore(saved)
        provider.reset()
        self._run(team, provider, later)
        _same(sent, _bodies(provider), "replayed with the saved ledger and another budget")

    def test_3_calls_stay_with_their_results(self, provider: SimulatedProvider) -> None:
        """Pairing: the provider would take every request; no call is without its result, and no message empty."""
        team = Team(questions=(LOOK, "And now?", LOOK), tools=tools())
        limits = Compaction(4_000, keep_turns=1)
        short = self.make_session(team, budget=ToolResultBudget(max_tokens=400), compaction=limits)
        self._run(team, provider, short)
        assert_valid_requests(provider.requests)

    # ------------------------------------------------------------------ 4, 5

    def test_4_observing_changes_no_byte(self, provider: SimulatedProvider) -> None:
        """Observe is inert: bodies are those of the application without cacheprefix, and every call is seen."""
        for way in self.make_driver().ways:
            team = Team(way=way, questions=(LOOK,), tools=tools())
            provider.reset()
            self._run(team, provider, None)
            plain = _bodies(provider)
            provider.reset()
            session = self.make_session(team, mode="observe", budget=ToolResultBudget(max_tokens=100))
            self._run(team, provider, session)
            _same(plain, _bodies(provider), f"in observe mode, called by {way}")
            seen = len(session.calls)
            _check(seen == len(plain), f"{seen} of {len(plain)} calls were observed ({way})")

    def test_5_a_failure_of_ours_lets_every_call_through(self, provider: SimulatedProvider) -> None:
        """Fail open: whatever raises in the core or in a plugin, all answers arrive and the failure is counted."""
        for way in self.make_driver().ways:
            team = Team(way=way, tools=tools())
            provider.reset()
            broken = self.make_session(team)
            inner: Any = broken.adapter
            inner.decode = inner.shared.model.begin = _broken
            self._run(team, provider, broken, quiet=True)
            _check(bool(broken.failures), f"the failure was not counted ({way})")
        provider.reset()
        team = Team(tools=tools())
        session = self.make_session(team, plugins=[_raising()])
        self._run(team, provider, session, quiet=True)
        _check(bool(session.plugins.failures), "no hook of a plugin was called")

    # ------------------------------------------------------------------ 6, 8

    def test_6_never_dearer_than_without(self, provider: SimulatedProvider) -> None:
        """A finished plan costs no more cost units; one that ends after a call at most one write of what is shared."""
        whole = Team(questions=("How do we find the slow step?", LOOK), tools=tools())
        short = Team(handbook=SHORT, questions=("How do we find the slow step?",))
        for team, what in ((whole, "a team with a handbook"), (short, "a prompt below the provider's minimum")):
            plain, shared = self._cost(team, provider, None), self._cost(team, provider, self.make_session(team))
            costs = f"{shared:,.0f} cost units, and {plain:,.0f} without cacheprefix"
            _check(shared <= plain * _ROUNDING, f"{what} costs {costs}")
            if team is whole:
                _check(shared < plain * 0.9, f"{what} gains nothing: {costs}")
        once = Team(roles=(Role("planner", "You plan the work in three steps."),))
        session = self.make_session(once)
        plain, shared = self._cost(once, provider, None), self._cost(once, provider, session)
        prompt = _prompts(provider)[0]
        bound = max(plain, prompt.tokens) * max(
            session.adapter.profile(prompt.model, prompt.api).default_ttl.write, 1.0
        )
        _check(shared <= bound * _ROUNDING, f"a single call costs {shared:,.0f} cost units, {bound:,.0f} are allowed")

    def test_6_long_role_texts_alone_are_read_again(self, provider: SimulatedProvider) -> None:
        """With nothing shared before them: a single round costs what it did, a long conversation less.

        Where nothing is kept without a mark, the mark comes with a role's second request.
        """
        names = ("planner", "critic", "writer")
        roles = tuple(Role(name, f"You are the {name}. " + f"Rule of a {name}: say why. " * 250) for name in names)
        once = Team(handbook="", roles=roles)
        often = replace(once, questions=tuple(f"What is step {number}?" for number in range(6)))
        for team, what, share in ((once, "one round", 1.0), (often, "a conversation of six rounds", 0.7)):
            plain = self._cost(team, provider, None)
            uncached = plain > 0.9 * sum(prompt.tokens for prompt in _prompts(provider))
            shared = self._cost(team, provider, self.make_session(team))
            allowed = plain * (share if uncached else 1.0) * _ROUNDING
            said = f"{shared:,.0f} cost units, and {plain:,.0f} without cacheprefix"
            _check(shared <= allowed, f"{what} of roles with long texts and nothing in common costs {said}")

    def test_8_nothing_reaches_across(self, provider: SimulatedProvider, caplog: pytest.LogCaptureFixture) -> None:
        """Another scope expects nothing of what this one wrote; reports, verdicts and logs hold no prompt text."""
        team = Team(questions=(f"{_SECRET}. How do we find the slow step?",))
        session = self.make_session(team, scope="tenant-a")
        with caplog.at_level(logging.DEBUG, logger="cacheprefix"):
            self._run(team, provider, session)
        report = session.report()
        told = f"{report} {report.as_dict()} {session.last_verdict!r} {caplog.text}"
        _check("Zacharias" not in told, "a report, a verdict or a log line shows what the prompt says")
        before = len(session.calls)
        other = session.child("other", scope="tenant-b")
        self._run(replace(team, thread="thread-2"), provider, other)
        first = next(call for call in session.calls[before:])
        expected = first.verdict.expected_tokens
        _check(expected == 0, f"tenant-b expects {expected} tokens that tenant-a wrote")

    # ------------------------------------------------------------------ 9

    def test_9_a_fork_says_what_the_unmodified_request_says(self, provider: SimulatedProvider) -> None:
        """Equal information: each text stands in the fork once, the agent's own tool results too, and no other."""
        team = Team(questions=("How do we find the slow step?", LOOK, "And now?"), tools=tools())
        self._run(team, provider, None)
        plain = _prompts(provider)
        provider.reset()
        session = self.make_session(team)
        self._run(team, provider, session)
        _check(len(plain) == len(provider.requests), "with forks the provider got another number of requests")
        for at, (own, fork) in enumerate(zip(plain, _prompts(provider), strict=True)):
            found = information(own, fork, session.prefix.text)
            _check(found.equal, f"request {at} lacks {_few(found.missing)} and adds {_few(found.added)}")

    # ------------------------------------------------------------------ inside

    def _run(self, team: Team, provider: SimulatedProvider, session: Session | None, *, quiet: bool = False) -> None:
        """Run the driver's team and check that every turn was answered, nothing refused, and nothing of ours failed."""
        with warnings.catch_warnings():
            if quiet:
                warnings.simplefilter("ignore")
            texts = self.make_driver().run(team, provider, session)
        wanted = len(team.roles) * len(team.questions)
        _check(len(texts) == wanted, f"the driver returned {len(texts)} answers for {wanted} turns")
        _check(all(texts), "an answer is empty")
        refused = [record for record in provider.requests if record.status >= 400]
        _check(not refused, f"the provider refused a request: {refused[0].error if refused else ''}")
        if session is not None and not quiet:
            _check(not session.failures, f"cacheprefix failed on the way: {dict(session.failures)}")

    def _grows(self, team: Team, prompts: Sequence[Prompt], when: str) -> None:
        """What stands before a role's own text is the beginning of every later request, in one lane."""
        _check(len(prompts) >= len(team.roles) * len(team.questions), f"requests are missing {when}")
        session = self.make_session(team)
        profile = session.adapter.profile(prompts[0].model, prompts[0].api)
        for index, prompt in enumerate(prompts):
            end = _own(prompt, team, f"request {index} {when}")
            for later_index, later in enumerate(prompts[index + 1 :], index + 1):
                where = f"request {later_index} does not begin as request {index} shared, {when}"
                _begins(prompt, end, later, profile, where)

    def _cost(self, team: Team, provider: SimulatedProvider, session: Session | None) -> float:
        provider.reset()
        self._run(team, provider, session)
        return sum(_units(record, self.make_session(team)) for record in provider.requests)


def _few(words: Mapping[str, int]) -> str:
    """Some of the words, for a message."""
    return ", ".join(f"{word!r}" for word in list(words)[:8]) or "nothing"


def _own(prompt: Prompt, team: Team, where: str) -> int:
    """Index of the section that holds the role's own text; it stands among the messages."""
    found = [i for i, one in enumerate(prompt.sections) for role in team.roles if role.instruction in one.text]
    _check(len(found) == 1, f"{where} holds a role's text {len(found)} times")
    own = prompt.sections[found[0]]
    _check(own.tier == "messages", f"{where} has its role's text in {own.path}, before the shared part")
    return found[0]


def _begins(earlier: Prompt, end: int, later: Prompt, profile: Profile, where: str) -> None:
    lanes = {lane_key(prompt, profile.settings, provider=profile.provider) for prompt in (earlier, later)}
    _check(len(lanes) == 1, f"{where}: model or settings separate them")
    for left, right in zip(earlier.sections[:end], later.sections, strict=False):
        same = (left.tier, left.kind, left.head, left.data) == (right.tier, right.kind, right.head, right.data)
        _check(same, f"{where}: {left.path} is {left.text[:80]!r}, then {right.text[:80]!r}")
    _check(len(later.sections) >= end, f"{where}: it is shorter")
    salted = chain(earlier, profile.settings)[:end] == chain(later, profile.settings)[:end]
    _check(salted, f"{where}: a setting salts a tier that they share")


def _units(record: Record, session: Session) -> float:
    profile = session.adapter.profile(record.model, record.api)
    return cost_units(normalise_usage(record.usage, record.api, profile=profile), profile)


def _prompts(provider: SimulatedProvider) -> list[Prompt]:
    return [record.prompt for record in provider.requests if record.prompt is not None]


def _bodies(provider: SimulatedProvider) -> list[bytes]:
    return [record.body for record in provider.requests]


def _same(plain: Sequence[bytes], other: Sequence[bytes], when: str) -> None:
    _check(len(plain) == len(other), f"{len(other)} requests instead of {len(plain)} {when}")
    for index, (left, right) in enumerate(zip(plain, other, strict=True)):
        if left != right:
            at = next((i for i in range(min(len(left), len(right))) if left[i] != right[i]), min(len(left), len(right)))
            start = max(0, at - 40)
            shown = f"{left[start : at + 40]!r} became {right[start : at + 40]!r}"
            raise AssertionError(f"request {index} differs from byte {at} on {when}: {shown}")


def _check(holds: bool, said: str) -> None:  # noqa: FBT001 - an assertion reads so
    # Not a bare assert: this module is no test file, so pytest would not say what was compared.
    if not holds:
        raise AssertionError(said)


def _broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("broken on purpose")


def _fails() -> Any:
    return _broken()


def _raising() -> Any:
    """A plugin all of whose hooks raise, but those that are called at set-up."""

    class Raising:
        pass

    plugin = Raising()
    for name in get_args(HookName):
        if name not in ("wrap", "freeze", "profiles", "commands", "trace_readers"):
            setattr(plugin, PREFIX + name, _fails)
    return plugin

"""What a verdict says, one behaviour at a time; faults.py covers the causes at random places."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.cache import FIXES, CacheModel, Cause, SentBy, Verdict
from cacheprefix.cache.calibration import Calibration
from cacheprefix.cache.judge import _Counts
from cacheprefix.cache.verdict import Way, fix_for
from cacheprefix.profiles import Profile, Usage, default_registry
from cacheprefix.prompt import Api, Prompt
from cacheprefix.server import ProviderCache
from cacheprefix.wire import Memo, decode

RULES = default_registry().get("exact")
SYSTEM = "You keep the ledger. " * 60


class Desk:
    """A cache model with a simulated provider behind it, and a clock that one moves by hand."""

    def __init__(self, profile: Profile = RULES, **options: Any) -> None:
        self.model = CacheModel(**options)
        self.profile = profile
        self.provider = ProviderCache(profile)
        self.now = 0.0

    def call(
        self, prompt: Prompt, *, usage: Usage | str | None = "", diagnostics: Any = None, **options: Any
    ) -> Verdict:
        """One request and its answer, a second later than the last."""
        self.now += 1
        observation = self.model.begin(prompt, self.profile, SentBy(**options), at=self.now)
        outcome = self.provider.serve(prompt, self.now, scope=options.get("scope", ""))
        if isinstance(usage, str):
            usage = Usage(
                input_tokens=outcome.input_tokens,
                cache_read_tokens=outcome.read_tokens,
                cache_write=dict(outcome.write_tokens),
            )
        return self.model.finish(observation, usage, self.now, diagnostics=diagnostics)


def chat(
    *texts: str, system: str = SYSTEM, tools: tuple[str, ...] = ("a", "b"), model: str = "m", **fields: Any
) -> Prompt:
    """A chat with a long system prompt and two tools; user and assistant in turn."""
    rows: list[dict[str, Any]] = [{"role": "system", "content": system}]
    rows += [{"role": ("user", "assistant")[i % 2], "content": f"{text} " * 30} for i, text in enumerate(texts)]
    functions = [{"type": "function", "function": {"name": name, "description": "does " * 9 + name}} for name in tools]
    return decode({"model": model, "messages": rows, "tools": functions, **fields}, "openai-chat")


def test_every_cause_has_a_fix() -> None:
    """The closed list and the fixes name the same causes, one line each."""
    assert set(get_args(Cause)) == set(FIXES)
    said = {fix_for(cause, "anthropic", way) for cause in get_args(Cause) for way in get_args(Way)}
    assert said > set(FIXES.values())
    assert all(fix and "\n" not in fix and len(fix) < 120 for fix in said)


def test_a_request_that_goes_back_to_its_earlier_tools_loses_what_was_said_under_others_in_between() -> None:
    """Under the tools that it has again it was never sent, whatever the others' prompt came to."""
    desk, many = Desk(), tuple("abcdefghijklmnop")
    said = ["one", "two", "three", "four", "five"]
    desk.call(chat(*said[:1], tools=many), agent="a")
    desk.call(chat(*said[:3], tools=("a",)), agent="a")
    whole = chat(*said, tools=many)
    verdict = desk.call(whole, agent="a")
    assert verdict.cause == "tools_changed"
    between = [one.tokens for one in whole.sections if one.text.startswith(("two ", "three "))]
    assert len(between) == 2
    assert verdict.lost_tokens == sum(between)


def test_a_verdict_names_place_character_and_size() -> None:
    """An edited message: its path, the first differing character, some text around it, and the signed size."""
    desk = Desk()
    desk.call(chat("one", "two", "three"), agent="a")
    verdict = desk.call(chat("one", "two, too", "three", "four", "five"), agent="a")
    assert (verdict.cause, verdict.path, verdict.offset) == ("history_edited", "messages[2].content", 3)
    assert verdict.before.startswith("two two")
    assert verdict.after.startswith("two, too")
    assert verdict.size == 30 * len(", too")
    assert verdict.alarm
    assert verdict.kind == "partial"


def test_lost_tokens_are_what_stood_there_before_and_was_not_read() -> None:
    """Reordered tools lose all that the earlier prompt had; the price is what was paid less what reading costs."""
    desk = Desk()
    first = chat("one", "two", "three")
    desk.call(first, agent="a")
    verdict = desk.call(chat("one", "two", "three", "four", "five", tools=("b", "a")), agent="a")
    assert verdict.cause == "tools_reordered"
    assert first.tokens - 60 < verdict.lost_tokens + (verdict.reported_tokens or 0) <= first.tokens
    assert verdict.lost_units == pytest.approx(verdict.lost_tokens * 0.9)
    assert verdict.previous_read == 0


def test_what_is_no_longer_sent_is_not_lost() -> None:
    """Of a history that was cut, the messages that are still there could have been read, and nothing else."""
    desk = Desk()
    said = [f"say{at}" for at in range(8)]
    desk.call(chat(*said), agent="a")
    own = chat(said[0], *said[3:], "new")
    verdict = desk.call(own, agent="a")
    assert verdict.cause == "history_truncated"
    assert verdict.lost_tokens + (verdict.reported_tokens or 0) == own.totals[-2]


@pytest.mark.parametrize("words", range(500, 530, 3))
def test_only_whole_blocks_are_lost_where_a_provider_keeps_blocks(words: int) -> None:
    """What is gone after an entry's lifetime is the shared part rounded down: the rest was never to be read."""
    profile = default_registry().get("openai")
    desk = Desk(profile)
    first, then = (chat("word " * words, *more, system=SYSTEM * 12) for more in ((), ("a", "b")))
    desk.call(first)
    desk.now += 100 * 24 * 3600.0
    verdict = desk.call(then)
    assert verdict.cause == "ttl_expired"
    assert verdict.lost_tokens % profile.block_tokens == 0
    assert 0 <= first.tokens - verdict.lost_tokens < profile.block_tokens


def test_money_lost_is_stated_where_the_price_is_known() -> None:
    """A known model's loss is in dollars, an unknown one's is None."""
    profile = default_registry().profile_for("gpt-5.1")
    desk = Desk(profile)
    texts = [f"text {i}" for i in range(9)]
    desk.call(chat(*texts, system=SYSTEM * 9, model="gpt-5.1"), agent="a")
    verdict = desk.call(chat(*texts, system="Now: " + SYSTEM * 9, model="gpt-5.1"), agent="a")
    assert verdict.cause == "system_changed"
    assert verdict.lost_usd is not None
    assert verdict.lost_usd > 0


def test_excerpts_can_be_taken_out_and_never_stand_in_a_log() -> None:
    """redacted() and repr hold no prompt text."""
    desk = Desk()
    desk.call(chat("one", "secret", "three"), agent="a")
    verdict = desk.call(chat("one", "public", "three", "four", "five"), agent="a")
    assert "secret" in verdict.before
    assert "secret" not in repr(verdict)
    assert verdict.redacted().before == verdict.redacted().after == ""
    assert verdict.redacted().path == verdict.path


def test_another_agents_prompt_is_no_break() -> None:
    """Roles with system prompts of their own start cold; nobody changed anything."""
    desk = Desk()
    for turn in range(3):
        texts = [f"text {i}" for i in range(2 * turn + 1)]
        verdicts = [desk.call(chat(*texts, system=f"{name} " + SYSTEM), agent=name) for name in ("anna", "bert")]
        assert [verdict.alarm for verdict in verdicts] == [False, False]
        assert {verdict.cause for verdict in verdicts} == {"hit"} if turn else {"cold_start"}


def test_a_question_at_the_end_of_each_request_is_no_break_in_a_message_of_its_own_either() -> None:
    """LangChain makes one message of two of a user's in a row, so that it is a block there, and a message later."""
    asks = {"type": "text", "text": "Given the conversation above, who acts next? " * 9}
    told = {"type": "text", "text": "My parcel has not arrived. " * 30}
    gave = {"role": "assistant", "content": [{"type": "text", "text": "It is on its way. " * 30}]}

    def asked(*messages: Any) -> Prompt:
        return decode({"model": "m", "max_tokens": 9, "system": SYSTEM, "messages": [*messages]}, "anthropic")

    desk = Desk()
    desk.call(asked({"role": "user", "content": [told, asks]}), agent="supervisor")
    began = {"role": "user", "content": [told]}
    later = desk.call(asked(began, gave, {"role": "user", "content": [asks]}), agent="supervisor")
    assert later.cause == "hit"
    # As another speaker's it has not moved.
    desk = Desk()
    desk.call(asked({"role": "user", "content": [told, asks]}), agent="supervisor")
    edited = desk.call(asked(began, gave, {"role": "assistant", "content": [asks]}), agent="supervisor")
    assert edited.cause != "hit"


def test_a_fork_that_parts_at_its_tail_is_a_hit() -> None:
    """Siblings that share all but the last message read what they share, and nothing was lost."""
    desk = Desk()
    desk.call(chat("task", "plan", "you are the critic"), agent="critic")
    verdict = desk.call(chat("task", "plan", "you are the coder"), agent="coder")
    assert (verdict.kind, verdict.cause, verdict.lost_tokens) == ("hit", "hit", 0)
    assert verdict.ancestor_index == 0


def test_a_break_that_goes_on_alarms_once_until_it_is_stable() -> None:
    """A clock in the system prompt: one alarm, every further call is broken without one; later it counts anew."""
    desk = Desk()
    texts: list[str] = []
    verdicts = []
    for system in ("12:00", "12:01", "12:02", "12:03", "12:03", "12:03", "12:09"):
        texts += [f"u{len(texts)}", f"a{len(texts)}"]
        verdicts.append(desk.call(chat(*texts, "go", system=system + SYSTEM), agent="a"))
    assert [verdict.alarm for verdict in verdicts] == [False, True, False, False, False, False, True]
    assert [verdict.broken for verdict in verdicts] == [False, True, True, True, False, False, True]


def test_a_recorded_compaction_is_not_an_alarm() -> None:
    """The same rewrite is compacted with the event and history_edited without."""
    texts = [f"text {i}" for i in range(9)]
    for events, cause, alarm in (((), "history_edited", True), (({"type": "compaction"},), "compacted", False)):
        desk = Desk()
        desk.call(chat(*texts), agent="a")
        verdict = desk.call(chat("a summary", *texts[5:], "ok", "go"), agent="a", events=events)
        assert (verdict.cause, verdict.alarm) == (cause, alarm)


@pytest.mark.parametrize(
    ("diagnostics", "cause", "reason"),
    [
        (
            {"cache_miss_reason": {"type": "tools_changed", "cache_missed_input_tokens": 500}},
            "tools_changed",
            "tools_changed",
        ),
        (
            {"type": "cache_miss", "reason": "system_changed", "cache_missed_tokens": 9},
            "system_changed",
            "system_changed",
        ),
        ({"diagnostics": {"cache_miss_reason": {"type": "unavailable"}}}, "provider_miss", "unavailable"),
        ({"type": "comparison_response_not_found"}, "provider_miss", "comparison_response_not_found"),
        ("nonsense", "provider_miss", None),
    ],
)
def test_what_the_provider_says_itself_is_taken_in(diagnostics: Any, cause: str, reason: str | None) -> None:
    """Nothing differs on our side, nothing was read: the provider's own reason counts where it gives one."""
    desk = Desk()
    desk.call(chat("one"), agent="a")
    nothing = Usage(input_tokens=500, cache_read_tokens=0)
    verdict = desk.call(chat("one", "two", "three"), agent="a", usage=nothing, diagnostics=diagnostics)
    assert (verdict.cause, verdict.provider_reason) == (cause, reason)
    assert verdict.lost_tokens > 0


def test_our_place_stands_beside_the_providers_reason() -> None:
    """The provider says messages_changed; where and how comes from us."""
    desk = Desk()
    desk.call(chat("one", "two", "three"), agent="a")
    told = {"cache_miss_reason": {"type": "messages_changed", "cache_missed_input_tokens": 50}}
    verdict = desk.call(chat("one", "other", "three", "four", "five"), agent="a", diagnostics=told)
    assert (verdict.cause, verdict.path, verdict.provider_reason) == (
        "history_edited",
        "messages[2].content",
        "messages_changed",
    )


def test_usage_summed_over_server_tools_raises_no_expectation() -> None:
    """A turn that ran the model three times reports three prompts' tokens; the next normal one is no loss."""
    desk = Desk()
    desk.call(chat("one"), agent="a")
    summed = Usage(input_tokens=90_000, cache_read_tokens=60_000, summed=True)
    assert not desk.call(chat("one", "two", "three"), agent="a", usage=summed).alarm
    after = desk.call(chat("one", "two", "three", "four", "five"), agent="a")
    assert (after.cause, after.lost_tokens) == ("hit", 0)
    assert after.expected_tokens < 1000


def test_a_failed_call_leaves_no_trace() -> None:
    """What a failed request would have cached is not expected, and it is nobody's earlier prompt."""
    desk = Desk()
    desk.call(chat("one"), agent="a")
    failed = desk.model.begin(chat("one", "other", "path"), RULES, SentBy(agent="a"), at=desk.now)
    desk.model.fail(failed)
    desk.model.fail(failed)
    verdict = desk.call(chat("one", "two", "three"), agent="a")
    assert (verdict.cause, verdict.ancestor_index) == ("hit", 0)


def test_silence_is_unreported_and_not_a_miss() -> None:
    """No usage, or usage without cached tokens: unknown, expected tokens given, no alarm."""
    desk = Desk()
    desk.call(chat("one"), agent="a")
    for usage in (None, Usage(input_tokens=700)):
        verdict = desk.call(chat("one", "two", "three"), agent="a", usage=usage)
        assert (verdict.kind, verdict.cause, verdict.alarm) == ("unknown", "unreported", False)
        assert verdict.expected_tokens > 0


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
def test_what_to_do_about_silence_is_what_the_api_has(api: Api) -> None:
    """Streams of chat completions alone are asked for their usage; of the others something in between leaves it out."""
    said = [{"role": "user", "content": SYSTEM}]
    text = "input" if api == "openai-responses" else "messages"
    desk = Desk()
    for _ in range(2):
        verdict = desk.call(decode({"model": "m", text: said}, api), usage=Usage(input_tokens=700))
    assert verdict.cause == "unreported"
    assert ("include_usage" in verdict.fix) is (api == "openai-chat")
    assert ("gateway" in verdict.fix) is (api != "openai-chat")


def test_a_known_break_is_named_even_when_nothing_is_reported() -> None:
    """The bytes differ: that needs no usage to be told."""
    desk = Desk()
    desk.call(chat("one", "two", "three"), agent="a")
    verdict = desk.call(chat("one", "two", "three", "four", "five", tools=("b", "a")), agent="a", usage=None)
    assert (verdict.kind, verdict.cause) == ("unknown", "tools_reordered")


def test_going_back_to_earlier_tools_is_named_though_some_of_it_is_read() -> None:
    """The newest request had more in common; what was left under the old tools is only its beginning."""
    desk = Desk()
    desk.call(chat("one"), agent="coder")
    desk.call(chat("one", "two", "three", tools=("a", "c")), agent="coder")
    verdict = desk.call(chat("one", "two", "three", "four"), agent="coder")
    assert verdict.cause == "tools_changed"
    assert verdict.reported_tokens == chat("one").tokens
    assert verdict.lost_tokens > 0


def test_settings_that_do_not_matter_are_no_cause() -> None:
    """Another temperature shares the cache; another service tier does not, and is named."""
    profile = default_registry().get("openai")
    texts = [f"text {i}" for i in range(9)]
    for fields, cause in (({"temperature": 0.3}, "hit"), ({"service_tier": "flex"}, "settings_changed")):
        desk = Desk(profile)
        desk.call(chat(*texts, system=SYSTEM * 9), agent="a")
        verdict = desk.call(chat(*texts, "ok", "go", system=SYSTEM * 9, **fields), agent="a")
        assert verdict.cause == cause
        assert verdict.path == (next(iter(fields)) if cause == "settings_changed" else None)


def test_memory_stays_within_its_bound() -> None:
    """A long process forgets the oldest requests; what is recent is still compared."""
    desk = Desk(max_bytes=300_000)
    for number in range(400):
        desk.call(chat(f"task {number}", "x" * 400, f"y{number}"), agent=f"agent {number}")
    assert desk.model._forest._bytes < 400_000
    assert len(desk.model._forest) < 300
    verdict = desk.call(chat("task 399", "x" * 400, "y399", "a", "b", tools=("b", "a")), agent="agent 399")
    assert verdict.cause == "tools_reordered"


def test_nothing_of_a_forgotten_request_is_held() -> None:
    """When every request is forgotten the trees are empty again."""
    model = CacheModel()
    for number in range(50):
        seen = model.begin(
            chat("shared", f"own {number}", f"{number}"), RULES, SentBy(agent=str(number)), at=float(number)
        )
        model.finish(seen, None, float(number))
    forest = model._forest
    for record in list(forest._records.values()):
        forest.forget(record)
    assert (forest._bytes, len(forest), forest._roots) == (0, 0, {})


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from("pqrs"), min_size=1, max_size=4), st.booleans()),
        min_size=1,
        max_size=14,
    )
)
def test_what_was_let_go_is_read_as_before_and_no_text_of_it_is_held(steps: list[tuple[str, list[str], bool]]) -> None:
    """Expectations go on by digests; texts of sessions that go on stay, and nothing is left when all are forgotten."""
    whole, model = CacheModel(), CacheModel()
    live: dict[str, set[str]] = {}
    for at, (session, letters, forgets) in enumerate(steps):
        prompt = chat("x" * 40, *(letter * 40 for letter in letters))
        expected = []
        for one in (whole, model):
            observation = one.begin(prompt, RULES, SentBy(agent=session, session=session), at=float(at))
            one.finish(observation, None, float(at))
            expected.append(observation.expectation.tokens)
        assert expected[0] == expected[1]
        live.setdefault(session, {"{", "Y", "x"}).update(letters)
        if forgets:
            model.forget(session)
            live.pop(session)
            left = set().union(*live.values())
            texts = {node.section.text[0] for node in _nodes(model) if node.section is not None}
            assert texts == left
    forest = model._forest
    for session in list(live):
        model.forget(session)
    assert all(node.section is None for node in _nodes(model))
    for record in list(forest._records.values()):
        forest.forget(record)
    assert (forest._bytes, len(forest), forest._roots, forest._sessions) == (0, 0, {}, {})


def _nodes(model: CacheModel) -> list[Any]:
    found, todo = [], list(model._forest._roots.values())
    while todo:
        found.append(todo.pop())
        todo += found[-1].children.values()
    return found


def test_threads_share_one_model() -> None:
    """Eight threads with conversations of their own: every call gets its verdict, none is an alarm."""
    model, verdicts, memo = CacheModel(), [], Memo()

    def work(name: str) -> None:
        for turn in range(20):
            texts = [f"{name} {i}" for i in range(2 * turn + 1)]
            prompt = chat(*texts)
            seen = model.begin(prompt, RULES, SentBy(agent=name), at=float(turn))
            usage = Usage(input_tokens=prompt.tokens, cache_read_tokens=seen.expectation.tokens)
            verdicts.append(model.finish(seen, usage, float(turn)))

    threads = [threading.Thread(target=work, args=(f"agent {i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(verdicts) == 160
    assert not [verdict for verdict in verdicts if verdict.alarm and verdict.cause != "concurrent_cold_start"]
    assert sorted(verdict.index for verdict in verdicts) == list(range(160))
    assert len(memo) == 0


def test_small_noise_of_a_provider_is_no_alarm() -> None:
    """One block less than expected is what providers do; half of it missing is a provider_miss."""
    profile = default_registry().get("openai")
    desk = Desk(profile)
    texts = [f"text {i}" for i in range(31)]
    desk.call(chat(*texts, system=SYSTEM * 5), agent="a")
    for less, cause, alarm in ((128, "hit", False), (1500, "provider_miss", True)):
        texts += ["ok", "go"]
        prompt = chat(*texts, system=SYSTEM * 5)
        seen = desk.model.expect(prompt, profile, at=desk.now + 1).tokens
        verdict = desk.call(prompt, agent="a", usage=Usage(input_tokens=prompt.tokens, cache_read_tokens=seen - less))
        assert (verdict.cause, verdict.alarm) == (cause, alarm)


def test_finishing_twice_counts_once() -> None:
    """A stream that is closed and garbage-collected reports its end two times."""
    model = CacheModel()
    seen = model.begin(chat("one"), RULES, SentBy(agent="a"), at=0.0)
    first = model.finish(seen, None, 1.0)
    assert model.finish(seen, Usage(input_tokens=5, cache_read_tokens=5), 2.0) is first
    model.fail(seen)
    assert len(model._forest) == 1


def test_nameless_agents_that_hear_one_conversation_are_not_a_changed_system() -> None:
    """Other system prompts over one transcript, and no names in the log: two agents, not one that changed."""
    desk = Desk()
    texts: list[str] = []
    for turn in range(6):
        texts += [f"u{turn}", f"a{turn}"]
        verdict = desk.call(chat(*texts, "go", system=("alpha " if turn % 2 else "omega ") * 200))
        assert not verdict.alarm


@pytest.mark.parametrize(("agent", "system"), [("a", "You are {}. " * 60), ("", "Be brief.")])
def test_a_request_with_hardly_anything_in_common_with_the_last_one_changed_nothing(agent: str, system: str) -> None:
    """Other tools, another question, for an agent with a name another system text: it is about something else."""
    desk = Desk()
    for name, cause in (("alpha", "cold_start"), ("omega", "hit")):
        verdict = desk.call(chat(f"{name} asks", system=system.format(*[name] * 60), tools=("look", name)), agent=agent)
        assert (verdict.cause, verdict.path) == (cause, None)


@pytest.mark.parametrize(("events", "cause"), [((), "history_edited"), (({"type": "compaction"},), "compacted")])
def test_a_history_of_which_hardly_anything_is_left_is_told_all_the_same(events: Any, cause: str) -> None:
    """Little in common is another agent's under other tools or another system text, but not under the same ones."""
    desk = Desk()
    texts = [f"text {number}" for number in range(9)]
    desk.call(chat(*texts, system="Be brief.", tools=()))
    other = "another question " * 60
    verdict = desk.call(chat(other, texts[1], other, system="Be brief.", tools=()), events=events)
    assert (verdict.cause, verdict.path) == (cause, "messages[1].content")


def test_an_answer_that_never_ends_does_not_block_its_successors() -> None:
    """A request that was begun and lost: the next one with the same bytes is written and read as usual."""
    desk = Desk()
    desk.model.begin(chat("one"), RULES, SentBy(agent="lost"), at=0.0)
    desk.call(chat("one", "two", "three"), agent="a")
    verdict = desk.call(chat("one", "two", "three", "four", "five"), agent="a")
    assert verdict.cause == "hit"


def test_a_nameless_agent_may_start_on_another_model() -> None:
    """Two agents without names, one system prompt, two models: the second one's first request changed nothing."""
    desk = Desk()
    desk.call(chat("plan this"))
    verdict = desk.call(chat("do that", model="other"))
    assert (verdict.cause, verdict.alarm) == ("cold_start", False)
    went_on = desk.call(chat("do that", "done", "and that", model="m"))
    assert went_on.cause == "model_changed"


def test_a_change_to_a_model_with_a_larger_minimum_is_told() -> None:
    """What could have been read, the old model's entry, is too short for the new one; the change is what lost it."""
    desk = Desk()
    desk.call(chat("plan this"), agent="a")
    desk.profile = replace(RULES, min_tokens=4_000)
    verdict = desk.call(chat("plan this", "done", "and that", model="larger"), agent="a")
    assert verdict.cause == "model_changed"
    assert verdict.lost_tokens > 0


def test_a_mark_too_far_from_the_last_is_told_however_little_it_costs() -> None:
    """Both what was read and what stood there are the provider's own counts: no guess is in the difference."""
    desk = Desk(default_registry().get("anthropic"))
    mark: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}

    def marked(*messages: list[str]) -> Prompt:
        blocks = [[{"type": "text", "text": f"{one} " * 40} for one in texts] for texts in messages]
        rows = [{"role": ("user", "assistant")[at % 2], "content": held} for at, held in enumerate(blocks)]
        blocks[-1][-1] |= mark
        system = [{"type": "text", "text": SYSTEM * 5, **mark}]
        return decode({"model": "claude-sonnet-4-5", "system": system, "messages": rows}, "anthropic")

    turns = (["one"], ["two"], ["three"], ["four"], [f"chunk{at}" for at in range(30)])
    prompts = [marked(*turns[:end]) for end in (1, 3, 5)]
    # The provider counts half as many again as we do.
    ends = [prompt.totals[at] * 3 // 2 for prompt, at in zip(prompts, (1, 3, -1), strict=True)]
    front = prompts[0].totals[0] * 3 // 2
    reads = (0, ends[0], front)
    usages = [
        Usage(input_tokens=end, cache_read_tokens=read, cache_write={"5m": end - read})
        for end, read in zip(ends, reads, strict=True)
    ]
    verdicts = [desk.call(prompt, agent="a", usage=usage) for prompt, usage in zip(prompts, usages, strict=True)]
    assert [one.cause for one in verdicts] == ["cold_start", "hit", "lookback_exceeded"]
    assert verdicts[-1].lost_tokens == ends[1] - front


def question(text: str, ends: str) -> Prompt:
    """A request that asks one thing, and ends with words that others end with too, such as a role's text."""
    rows = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": text},
        {"role": "user", "content": ends},
    ]
    return decode({"model": "m", "messages": rows}, "openai-chat")


@pytest.mark.parametrize("ends", ['<role name="w">\nYou sum up.\n</role>', "Answer in three sentences."])
def test_another_question_with_the_same_ending_is_no_edited_history(ends: str) -> None:
    """An agent that is given one document after the other under one id has changed nothing that it said."""
    desk = Desk()
    verdicts = [
        desk.call(question(f"Document {at}: " + f"{word} " * 300, ends), agent="w", session="one")
        for at, word in enumerate(("sea", "land", "ice", "fire"))
    ]
    assert not [verdict.cause for verdict in verdicts if verdict.alarm or verdict.broken]


def test_a_time_in_front_of_a_long_question_is_still_told() -> None:
    """What both questions have in common behind the place that differs could be read, and is what was lost."""
    desk = Desk()
    rules = "Name the claim, its source and its page. " * 80
    desk.call(question(f"It is 10:01. {rules}", "Answer in three sentences."), agent="w", session="one")
    verdict = desk.call(question(f"It is 10:02. {rules}", "Answer in three sentences."), agent="w", session="one")
    assert (verdict.cause, verdict.path, verdict.alarm) == ("history_edited", "messages[1].content", True)
    assert verdict.lost_tokens > 700


@pytest.mark.parametrize(("agent", "cause", "path"), [("critic", "settings_changed", "api"), ("", "cold_start", None)])
def test_another_api_of_the_provider_is_no_other_text(agent: str, cause: str, path: str | None) -> None:
    """Each writes the same texts in a form of its own, and has a cache of its own."""
    desk = Desk()
    said = [{"role": "user", "content": "hello"}]
    asked = [{"role": "user", "content": "And now?"}]
    system = {"role": "system", "content": SYSTEM}
    desk.call(decode({"model": "m", "messages": [system, *said]}, "openai-chat"), agent=agent)
    verdict = desk.call(decode({"model": "m", "instructions": SYSTEM, "input": asked}, "openai-responses"), agent=agent)
    assert (verdict.cause, verdict.path) == (cause, path)


@pytest.mark.parametrize("known", [(300, 0, 0), (0, 0, 0), (300, 0, 700)], ids=["the first", "none", "first and last"])
def test_tokens_are_told_from_the_provider_s_own_counts_around_them(known: tuple[int, ...]) -> None:
    """Where it counted a first message for itself: its count up to there, and a share of what lies behind."""
    prompt = decode({"model": "m", "messages": [{"role": "user", "content": "word " * 100}] * 3}, "openai-chat")
    size = prompt.sections[0].tokens
    record = SimpleNamespace(prompt=prompt, sections=prompt.sections, totals=[size, 2 * size, 3 * size])
    path = [SimpleNamespace(known=one) for one in known]
    counts = _Counts(record, path, 2.0, Calibration())  # type: ignore[arg-type]
    first = known[0] or 2 * size
    whole = known[2] or 6 * size
    assert counts.theirs(0) == 0
    assert counts.theirs(size // 2) == pytest.approx(first / 2, abs=2)
    assert counts.theirs(size) == pytest.approx(first)
    assert counts.theirs(2 * size) == pytest.approx((first + whole) / 2)
    assert counts.theirs(3 * size) == pytest.approx(whole)

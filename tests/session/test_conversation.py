"""Conversations by themselves: all or nothing, statistics, hand-over, boundaries, hooks, saved states."""

import json
import threading

import pytest

from cacheprefix import (
    CacheprefixWarning,
    Caching,
    Compaction,
    Conversation,
    History,
    RequestBudget,
    Session,
    SharedPrefix,
    ToolResultBudget,
)
from cacheprefix.errors import BodyError, BudgetError, SetupError, StateError
from cacheprefix.prompt import ESTIMATE, Drop, ReplaceResult
from cacheprefix.wire import apply, views_of

WORDS = " ".join(f"word{n}" for n in range(400))


def turn(number, result=None):
    """A user's turn with one tool call."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": f'{{"n":{number}}}'}}
    return [
        {"role": "user", "content": f"question {number}"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": result or f"{number} {WORDS}"},
        {"role": "assistant", "content": f"answer {number}"},
    ]


def history(turns):
    """Several turns."""
    return [message for number in range(turns) for message in turn(number)]


def test_a_malformed_message_appends_nothing_of_its_batch():
    """All or none."""
    conversation = Conversation("t")
    before = conversation.dumps()
    with pytest.raises(BodyError):
        conversation.append({"role": "user", "content": "fine"}, {"role": "nobody", "content": "x"})
    assert conversation.dumps() == before


def test_a_malformed_message_is_no_failure_of_ours():
    """In a session too it raises at once and is not counted."""
    session = Session(budget=ToolResultBudget(100))
    with pytest.raises(BodyError):
        session.conversation("t", api="openai-chat").append({"role": "nobody"})
    assert session.failures == {}


def test_threads_append_without_losing_anything():
    """Eight threads append a hundred messages each."""
    conversation = Conversation("t")

    def work(name):
        for number in range(100):
            conversation.append({"role": "user", "content": f"{name}.{number}"})

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({message["content"] for message in conversation.build_messages()}) == 800


def test_a_trial_that_ends_well_becomes_the_conversation():
    """And one that raced with the conversation is refused."""
    conversation = Conversation("t")
    with conversation.trial() as draft:
        draft.append({"role": "user", "content": "kept"})
        assert conversation.build_messages() == []
    assert len(conversation.build_messages()) == 1
    with pytest.raises(StateError, match="changed"), conversation.trial() as draft:
        conversation.append({"role": "user", "content": "meanwhile"})


def test_durable_context_beyond_its_limit_is_an_error_at_once():
    """It says by how much, and nothing is appended."""
    session = Session(caching=Caching(counter=ESTIMATE))
    conversation = session.conversation("t", api="openai-chat", context_limit=50)
    conversation.append_context("short", key="project")
    with pytest.raises(BudgetError) as caught:
        conversation.append_context(WORDS, key="project")
    assert caught.value.over_by > 0
    assert "word7 " not in conversation.dumps()


def test_statistics_say_what_is_left_and_since_when():
    """Against the request budget, static text included."""
    session = Session(
        "system " * 50, caching=Caching(counter=ESTIMATE), history=History(request_budget=RequestBudget(5_000, 1_000))
    )
    conversation = session.conversation("t", api="openai-chat")
    conversation.append({"role": "user", "content": "hello"})
    stats = conversation.statistics()
    assert stats.limit == 4_000
    assert stats.remaining == 4_000 - stats.tokens
    assert stats.tokens > 50
    assert (stats.at_capacity, stats.since_removal) == (False, 1)


def test_a_plan_is_priced_by_the_models_profile():
    """Reading from the cache is dear or cheap by the provider's own rule, and the preview says it."""
    previews = set()
    for model in ("claude-sonnet-4-6", "gpt-4o"):
        session = Session(caching=Caching(counter=ESTIMATE), compaction=Compaction(9_000, 3_000, keep_turns=2))
        conversation = session.conversation("t", api="openai-chat", model=model)
        conversation.append(*history(12))
        before = conversation.dumps()
        assert "cost units" in conversation.preview(force=True)
        assert conversation.dumps() == before
        previews.add(conversation.plan(force=True).price.rewrite)
    assert len(previews) == 2


@pytest.mark.parametrize("keeps", [True, False], ids=["its own history", "an adapter's history"])
def test_a_compaction_that_can_never_be_due_is_told_once(keeps):
    """What is pinned leaves no room below the trigger; the report says what to change."""
    session = Session(caching=Caching(counter=ESTIMATE), compaction=Compaction(2_000))
    said = [{"role": "user", "content": "x" * 40_000, "_cacheprefix": {"pinned": True}}]
    conversation = session.conversation("t", api="openai-chat", model="gpt-4o") if keeps else session.conversation("t")
    for number in range(6):
        if keeps:
            conversation.append(*said, *turn(number))
            conversation.build()
            said = []
        else:
            said += turn(number)
            condensed(session, conversation, said)
    (note,) = [note for note in session.report().notes if "nothing is compacted" in note]
    assert "raise the trigger" in note


def test_durable_context_beyond_the_request_budget_is_refused_when_it_is_appended():
    """It could never be sent, so it is told at once and by how much, and leaves no trace."""
    session = Session(
        "system " * 50, caching=Caching(counter=ESTIMATE), history=History(request_budget=RequestBudget(1_000, 200))
    )
    conversation = session.conversation("t", api="openai-chat")
    before = conversation.dumps()
    with pytest.raises(BudgetError) as caught:
        conversation.append_context("fact " * 2_000)
    assert caught.value.over_by > 1_500
    assert conversation.dumps() == before


def test_the_hand_over_is_plain_text_of_the_last_messages():
    """Calls are named, results shortened."""
    conversation = Conversation("t")
    conversation.append(*turn(1))
    text = conversation.hand_over(3)
    assert "[calls look]" in text
    assert "answer 1" in text
    assert "question 1" not in text


def test_boundaries_are_known_before_anything_is_sent():
    """Volatile text is the suffix; system text, history and all add up."""
    session = Session("system " * 500, caching=Caching(counter=ESTIMATE))
    conversation = session.conversation("t", api="openai-chat", model="gpt-5.6")
    conversation.append({"role": "user", "content": WORDS})
    found = conversation.boundaries("the time")
    assert [boundary.kind for boundary in found.boundaries] == ["system", "stable"]
    assert 0 < found.suffix_tokens < 20
    body = {"model": "gpt-5.6", "messages": conversation.build_messages("the time")}
    assert session.adapter.boundaries(body, "openai-chat", volatile=1) == found


def test_another_form_than_that_of_the_history_is_refused():
    """A conversation cannot change its form of messages on the way."""
    session = Session()
    session.conversation("t", api="openai-chat").append({"role": "user", "content": "x"})
    with pytest.raises(SetupError, match="openai-chat"):
        session.conversation("t", api="anthropic")


def test_a_saved_conversation_loads_without_a_session():
    """History, mode and ledger are the same; what is no conversation is refused."""
    conversation = Conversation("t", api="openai-chat", mode="manual")
    conversation.append(*turn(1))
    loaded = Conversation("")
    loaded.restore(conversation.dumps())
    assert loaded.dumps() == conversation.dumps()
    assert (loaded.id, loaded.state.mode) == ("t", "manual")
    for wrong in ("{", "[]", '{"version": 99}'):
        with pytest.raises(StateError):
            Conversation("").restore(wrong)


def test_a_conversation_saved_under_another_prefix_is_refused():
    """Its requests would begin otherwise, and pay for one rewrite: only where the application says that it may be."""
    saved = Session(SharedPrefix(system="Rules one.")).conversation("t").dumps()
    other = Session(SharedPrefix(system="Rules two.")).conversation("t")
    with pytest.raises(StateError, match="saved under prefix"):
        other.restore(json.loads(saved))
    other.restore(json.loads(saved), rebase=True)


def test_a_plugin_overrides_the_budget_of_a_tool_result():
    """By a text, or by tokens and a strategy; what it has no opinion on is cut by the budget."""

    class Mine:
        def cacheprefix_replace_tool_result(self, result, budget):
            if "question" in result.text:
                return "mine"
            return (40, "head") if "short" in result.text else None

    session = Session(caching=Caching(counter=ESTIMATE), budget=ToolResultBudget(200), plugins=[Mine()])
    conversation = session.conversation("t", api="openai-chat")
    conversation.append(*turn(1, f"question {WORDS}"), *turn(2, f"short {WORDS}"), *turn(3, f"other {WORDS}"))
    one, two, three = (message["content"] for message in conversation.build_messages() if message["role"] == "tool")
    assert one == "mine"
    assert len(two) < len(three) < len(WORDS)
    assert "word399" not in two
    assert "word399" in three


def test_a_plugin_that_raises_leaves_the_result_to_the_budget():
    """The built-in plugin below it still decides."""

    class Broken:
        def cacheprefix_replace_tool_result(self, result, budget):
            raise ValueError("no idea")

    session = Session(caching=Caching(counter=ESTIMATE), budget=ToolResultBudget(200), plugins=[Broken()])
    conversation = session.conversation("t", api="openai-chat")
    with pytest.warns(UserWarning, match="no idea"):
        conversation.append(*turn(1))
    cut = next(message for message in conversation.build_messages() if message["role"] == "tool")
    assert len(cut["content"]) < len(WORDS)


def condensed(session, conversation, messages):
    """Decisions on a framework's history, and what is sent."""
    views = views_of(messages, "openai-chat", session.adapter.counter("gpt-5.6"))
    decisions = session.adapter.histories.condense(conversation, views, "gpt-5.6", "openai-chat")
    return decisions, apply(messages, decisions, "openai-chat")


def test_condensing_is_due_at_the_trigger_and_then_rests():
    """Hysteresis: after one compaction several turns follow before the next."""
    session = Session(caching=Caching(counter=ESTIMATE), compaction=Compaction(8_000, keep_turns=2, horizon=1_000))
    conversation = session.conversation("t")
    epochs = []
    for turns in range(1, 40):
        condensed(session, conversation, history(turns))
        epochs.append(conversation.ledger.epoch)
    assert epochs[0] == 0
    assert 1 <= epochs[-1] <= 8


def test_the_compact_hook_goes_first():
    """Its decisions are recorded; where they do not reach the target the built-in policies follow."""
    seen = []

    class Mine:
        def cacheprefix_compact(self, view, policy):
            seen.append(policy.trigger)
            return [Drop(0)]

    rules = Compaction(8_000, keep_turns=2, horizon=1_000, keep_head=0, keep_users=False)
    session = Session(caching=Caching(counter=ESTIMATE), compaction=rules, plugins=[Mine()])
    conversation = session.conversation("t")
    _, sent = condensed(session, conversation, history(20))
    assert seen[0] == 8_000
    assert session.failures == {}
    assert conversation.ledger.epoch == 1
    assert all(message.get("content") != "question 0" for message in sent)


def test_nonsense_from_the_compact_hook_is_left_out():
    """It is named once, and the built-in policies do the work."""

    class Mine:
        def cacheprefix_compact(self, view, policy):
            return ["nonsense"]

    rules = Compaction(8_000, keep_turns=2, horizon=1_000)
    session = Session(caching=Caching(counter=ESTIMATE), compaction=rules, plugins=[Mine()])
    conversation = session.conversation("t")
    with pytest.warns(CacheprefixWarning, match="nonsense"):
        condensed(session, conversation, history(20))
    assert conversation.ledger.epoch == 1


def test_condensing_observes_nothing_in_observe_mode():
    """Observe is inert."""
    session = Session(mode="observe", budget=ToolResultBudget(50), compaction=2_000)
    conversation = session.conversation("t")
    messages = history(20)
    decisions, sent = condensed(session, conversation, messages)
    assert decisions == ()
    assert all(one is other for one, other in zip(sent, messages, strict=True))
    assert len(conversation.ledger) == 0


def test_an_impossible_budget_is_an_error_of_condense():
    """It is the one thing that does not fail open, and it says by how much."""
    session = Session(
        "system " * 100, caching=Caching(counter=ESTIMATE), history=History(request_budget=RequestBudget(100, 50))
    )
    with pytest.raises(BudgetError) as caught:
        condensed(session, session.conversation("t"), turn(1))
    assert caught.value.over_by > 0


def test_what_is_said_while_a_summary_is_written_stays_behind_it():
    """The summary stands for what it was asked of; nothing is asked twice, and nothing that came meanwhile is lost."""
    rules = Compaction(4_000, keep_turns=2, horizon=1_000, summarise="fork")
    conversation = Session(caching=Caching(counter=ESTIMATE), compaction=rules).conversation("t", api="openai-chat")
    conversation.append(*history(20))
    asked = []

    def ask(request):
        asked.append(request)
        conversation.append({"role": "user", "content": "Meanwhile."})
        return "What was said, summed up by the model."

    sent = [message["content"] for message in conversation.build(ask=ask).messages]
    assert len(asked) == conversation.ledger.epoch == 1
    assert sent[-1] == "Meanwhile."
    assert "What was said, summed up by the model." in sent


def test_of_two_compactions_at_a_time_one_is_taken():
    """What was planned for a history that another compaction has rewritten meanwhile is dropped, and planned anew."""
    rules = Compaction(4_000, keep_turns=2, horizon=1_000, summarise="fork")
    conversation = Session(caching=Caching(counter=ESTIMATE), compaction=rules).conversation("t", api="openai-chat")
    conversation.append(*history(20))

    def ask(request):
        assert conversation.compact_for_request(RequestBudget(3_000))
        return "Too late. " * 20

    assert "Too late" not in json.dumps(conversation.build(ask=ask).messages)
    assert conversation.ledger.epoch == 1


def test_what_a_window_clears_names_no_tool_that_nobody_has():
    """Without ``read_tool`` the placeholder of a cleared result does not tell the model to call it."""
    session = Session(caching=Caching(counter=ESTIMATE))
    conversation = session.conversation("t", api="openai-chat")
    conversation.append(*history(12))
    assert conversation.compact_for_request(RequestBudget(6_000))
    sent = json.dumps(conversation.build().messages)
    assert "result cleared" in sent
    assert "read_full_result" not in sent


def test_a_trigger_that_cannot_be_known_is_refused_at_set_up():
    """The model's window comes from a request budget."""
    with pytest.raises(SetupError, match="RequestBudget"):
        Session(compaction=Compaction(trigger=None))


def test_thinking_that_is_bound_to_its_prefix_is_not_cleared():
    """The profile's rule reaches the plan, which says what it left."""
    session = Session(caching=Caching(counter=ESTIMATE), compaction=Compaction(3_000, keep_turns=1))
    profile = session.adapter.profile("claude-sonnet-4-6")
    conversation = session.conversation("t", api="anthropic", model="claude-sonnet-4-6")
    for number in range(12):
        thought = {"type": "thinking", "thinking": WORDS, "signature": "s"}
        conversation.append(
            {"role": "user", "content": f"question {number}"},
            {"role": "assistant", "content": [thought, {"type": "text", "text": f"answer {number}"}]},
        )
    refused = [reason for reason in conversation.plan(force=True).refusals if "thinking" in reason]
    assert bool(refused) == profile.thinking_bound


def test_custom_strategies_survive_a_compaction():
    """A plan replays what the budget's own strategy function cut."""

    def shout(text, cut):
        return text[: cut.max_chars].upper()

    budget = ToolResultBudget(100, strategy=shout)
    session = Session(
        caching=Caching(counter=ESTIMATE), budget=budget, compaction=Compaction(1_500, keep_turns=1, horizon=1e6)
    )
    conversation = session.conversation("t")
    decisions, _ = condensed(session, conversation, history(20))
    assert session.failures == {}
    assert conversation.ledger.epoch == 1
    assert any(isinstance(decision, ReplaceResult) for decision in decisions)


def test_saved_state_holds_no_static_text():
    """Digest only."""
    session = Session("a very secret handbook", caching=Caching(counter=ESTIMATE))
    conversation = session.conversation("t", api="openai-chat")
    conversation.append({"role": "user", "content": "x"})
    assert "secret" not in conversation.dumps()
    assert json.loads(conversation.dumps())["context"]["system"]


def test_a_damaged_state_leaves_no_trace():
    """A history whose ledger cannot be read is not taken over by half."""
    conversation = Conversation("t")
    conversation.append(*turn(1))
    saved = json.loads(conversation.dumps())
    saved["ledger"] = {"version": 99}
    fresh = Conversation("u")
    with pytest.raises(StateError):
        fresh.restore(saved)
    assert fresh.build_messages() == []


def test_cleared_results_are_kept_under_the_conversations_scope():
    """Another tenant cannot read them, whichever way the history was made to fit."""
    session = Session(
        caching=Caching(scope="tenant-a", counter=ESTIMATE), history=History(request_budget=RequestBudget(8_000))
    )
    conversation = session.conversation("t", api="openai-chat")
    session.read_tool("t")
    conversation.append(*history(12))
    text = json.dumps(conversation.build_messages())
    ref = text.split("read_full_result(ref='")[1].split("'")[0]
    assert WORDS in session.adapter.histories.results.get(ref, scope="tenant-a").text
    assert session.adapter.histories.results.get(ref, scope="tenant-b") is None


def test_project_context_is_read_from_a_file_and_changes_are_told(tmp_path):
    """Read again where it is another one; that it was changed or emptied stands in the notes and the prompt."""
    file = tmp_path / "AGENTS.md"
    session = Session()
    chat = session.conversation("t", api="openai-chat")
    assert not chat.read_zone("project", file)
    file.write_text("Use tabs.")
    assert chat.read_zone("project", file)
    assert not chat.read_zone("project", file)
    chat.append({"role": "user", "content": "go"}, {"role": "assistant", "content": "yes"})
    assert "Use tabs." in str(chat.build_messages())
    file.write_text("Use spaces.")
    assert chat.read_zone("project", file)
    assert "Use tabs." in str(chat.build_messages())
    file.write_text(" ")
    assert chat.read_zone("project", file)
    notes = " ".join(session.report().notes)
    assert "AGENTS.md was changed" in notes
    assert "AGENTS.md is empty now" in notes
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(SetupError, match="UTF-8"):
        chat.read_zone("project", file)


def test_durable_context_of_the_prefix_and_what_was_appended_to_it_are_consolidated_together():
    """The hook gets the base of the key first, once; from then on what it made of it."""
    seen = []

    def joined(key, texts):
        seen.append((key, tuple(texts)))
        return " / ".join(texts)

    session = Session(
        SharedPrefix(system="S", context={"world": "BASE"}), compaction=Compaction(trigger=2_000, target=600)
    )
    talk = session.conversation("t", consolidate=joined)
    for delta in ("FIRST", "SECOND"):
        for number in range(8):
            talk.append(
                {"role": "user", "content": f"q{number} " + "x " * 300}, {"role": "assistant", "content": "a " * 300}
            )
        talk.append_context(delta, key="world")
        talk.append({"role": "user", "content": "last"})
        talk.compact(force=True)
    assert seen == [("world", ("BASE", "FIRST")), ("world", ("BASE / FIRST", "SECOND"))]
    assert "BASE / FIRST / SECOND" in str(talk.build_messages())


def test_a_state_is_merged_or_taken_in_place_of_what_was_decided_since():
    """Going back to it drops what came behind it; a joined state loses nothing."""
    conversation = Conversation("c")
    conversation.decide("results", "early", "kept")
    saved = conversation.dumps()
    conversation.decide("results", "late", "kept")
    conversation.restore(saved)
    assert conversation.decided_keys("results") == ["early", "late"]
    conversation.restore(saved, merge=False)
    assert conversation.decided_keys("results") == ["early"]
    assert conversation.dumps() == saved


def test_summaries_that_a_model_writes_are_numbered_also_where_an_extract_has_nothing_to_say():
    """The newest ones stand in a history that is kept here, each under its number."""
    rules = Compaction(1_500, target=700, keep_turns=1, summaries=3, summarise="fork", summary_tokens=60, horizon=10**6)
    chat = Session(compaction=rules).conversation("thread", api="openai-chat", mode="agent_cycle")
    for number in range(60):
        chat.append({"role": "user", "content": f"q{number} " + "x " * 150})
        chat.build(ask=lambda _, number=number: f"What was said before {number}.")
        chat.append({"role": "assistant", "content": "y " * 150})
    said = [str(message["content"]) for message in chat.build().messages if "[Summary" in str(message["content"])]
    numbers = [int(text.removeprefix("[Summary ").partition(" ")[0]) for text in said]
    assert numbers == [chat.ledger.epoch - 2, chat.ledger.epoch - 1, chat.ledger.epoch]
    assert all("What was said before" in text for text in said)

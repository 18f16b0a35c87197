"""What the report says that a run had cost unmodified, beside what it costs, at a provider that counts otherwise."""

from __future__ import annotations

import openai
import pytest
from langchain_core.messages import HumanMessage

from benchmarks.bench_langgraph import RULES, run
from benchmarks.langgraph_workloads import WORKLOADS
from cacheprefix.profiles import cost_units, default_registry, normalise_usage
from cacheprefix.server import Fault, Reply
from cacheprefix_langgraph import forked, wrap_model

BY_NAME = {workload.name: workload for workload in WORKLOADS}
PLACES = {rules.name: rules for rules in RULES}


def share(name, rules, **provider):
    """The report's estimate of the unmodified cost, as a share of what the unmodified run costs."""
    plain, _ = run(BY_NAME[name], PLACES[rules], layout="unmodified", **provider)
    _, session = run(BY_NAME[name], PLACES[rules], layout="shared", **provider)
    profile = default_registry().get(rules)
    truth = sum(cost_units(normalise_usage(record.usage, record.api), profile) for record in plain)
    return session.report().total.unmodified_units / truth


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rules", "factor"),
    [
        ("role loop", "openai", 0.7),
        ("role loop", "openai-5.6", 1.4),
        ("own tools", "anthropic", 0.7),
        ("structured fan-out, function calling", "openai-5.6", 1.4),
    ],
)
def test_the_estimate_is_true_where_the_provider_counts_otherwise(name, rules, factor):
    """By its own count of the same calls, with its own rounding and minimum."""
    assert share(name, rules, tokenizer=factor) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("image_tokens", [300, 5_000])
def test_an_image_counts_as_much_as_the_provider_says(image_tokens):
    """300 kB of base64 are no tokens, and the texts around it are not scaled by it."""
    assert share("an image", "openai", image_tokens=image_tokens) == pytest.approx(1, abs=0.02)


def test_marks_of_the_applications_own_belong_to_the_estimate():
    """As deepagents marks its requests for Anthropic's cache itself, and goes on to."""
    assert share("deepagents, fork", "anthropic") == pytest.approx(1, abs=0.02)


@pytest.mark.slow
def test_helpers_whose_requests_are_not_seen_are_named_and_the_whole_is_unknown():
    """Deepagents' isolated helpers have no middleware of ours; those that fork their lead's requests have."""
    apart, forked_too = (
        run(BY_NAME[name], PLACES["openai"], layout="shared")[1].report()
        for name in ("deepagents, isolated", "deepagents, fork")
    )
    assert apart.total.unmodified_units is None
    assert "not seen here" in " ".join(apart.notes)
    assert forked_too.total.unmodified_units is not None


def test_a_stream_that_is_broken_off_is_a_call_of_the_report(bench):
    """The provider was paid for its input."""
    bench.script([Reply("word " * 200)])
    session = bench.session("Be brief. " * 500)
    llm = wrap_model(bench.model(), session)

    @forked(session, role="writer")
    def writer(state):
        stream = llm.stream([HumanMessage("Write at length.")])
        next(stream)
        stream.close()
        return state

    writer({"messages": []})
    assert session.report().total.calls == 1
    assert session.report().unanswered == 0


def test_a_request_without_an_answer_is_named_and_in_no_sum(chat):
    """Whether the provider was paid for it nobody here can know."""
    chat.script([Reply(fault=Fault(status=500, message="down"))])
    session = chat.session("Be brief. " * 500)
    llm = wrap_model(chat.model(), session)

    @forked(session, role="writer")
    def writer(state):
        return {"messages": [llm.invoke([HumanMessage("Write at length.")])]}

    with pytest.raises(openai.InternalServerError):
        writer({"messages": []})
    assert session.report().total.calls == 0
    assert "1 requests got no answer" in str(session.report())

"""Cost units and money."""

from __future__ import annotations

import importlib.metadata
import sys
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.profiles import (
    Usage,
    cost_units,
    default_registry,
    list_price,
    lost_money,
    money,
    priced,
    profile_for,
)
from cacheprefix.profiles import prices as cost

TESTED = "0.2.3"
NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc).timestamp()
"""At night DeepSeek's prices in the library are others."""
OPUS = profile_for("claude-opus-5")


@pytest.fixture
def no_library(monkeypatch):
    """As if genai-prices were not installed."""
    monkeypatch.setattr(cost, "_genai", lambda: None)


def test_cost_units_weigh_uncached_read_and_written_tokens():
    """100 uncached + 900 read at 0.1 + 40 written for 5m at 1.25 + 10 for 1h at 2."""
    usage = Usage(input_tokens=1050, cache_read_tokens=900, cache_write={"5m": 40, "1h": 10})
    assert cost_units(usage, OPUS) == pytest.approx(100 + 90 + 50 + 20)


def test_a_write_without_a_stated_lifetime_costs_the_default_one():
    """Anthropic's default is 5m, and gpt-5.6 reports one number."""
    usage = Usage(input_tokens=1000, cache_read_tokens=0, cache_write={"": 1000})
    assert cost_units(usage, OPUS) == 1250
    assert cost_units(usage, profile_for("gpt-5.6")) == 1250
    assert cost_units(usage, profile_for("gpt-5")) == 1000


def test_what_was_not_reported_counts_at_full_price():
    """Unknown reads must not look like savings."""
    assert cost_units(Usage(input_tokens=1000), OPUS) == 1000
    assert cost_units(Usage(), OPUS) == 0


@given(
    st.sampled_from(list(default_registry())),
    st.integers(0, 10**7),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(["", "5m", "1h", "30m"]),
)
def test_more_reading_never_costs_more(profile, total, share, written, ttl):
    """Reading a token instead of paying for it anew is never dearer under any row."""
    read = int(total * share)
    write = {ttl: int((total - read) * written)}
    with_reads = cost_units(Usage(total, read, write), profile)
    without = cost_units(Usage(total, 0, write), profile)
    assert 0 <= with_reads <= without + 1e-6


def test_money_comes_from_the_library_where_it_knows_the_model():
    """genai-prices: Opus 5 at 5 USD, reads at 0.50, writes at 6.25 and 10 a million tokens."""
    pytest.importorskip("genai_prices", reason="needs the extra prices, which make test installs")
    usage = Usage(input_tokens=1_000_000, cache_read_tokens=500_000, cache_write={"5m": 100_000, "1h": 100_000})
    found = priced(usage, "claude-opus-5", OPUS)
    assert found.source.startswith("genai-prices")
    assert found.usd == pytest.approx(0.3 * 5 + 0.5 * 0.5 + 0.1 * 6.25 + 0.1 * 10)


def test_money_comes_from_the_table_without_the_library(no_library):
    """The same sum from the shipped input price and the row's multipliers."""
    usage = Usage(input_tokens=1_000_000, cache_read_tokens=500_000, cache_write={"5m": 100_000, "1h": 100_000})
    found = priced(usage, "claude-opus-5", OPUS)
    assert found.source.startswith("litellm")
    assert found.usd == pytest.approx(0.3 * 5 + 0.5 * 0.5 + 0.1 * 6.25 + 0.1 * 10)


def test_an_unknown_model_has_no_price(no_library):
    """No number rather than a wrong one."""
    assert money(Usage(input_tokens=5), "frontier-9", default_registry().get("unknown")) is None
    assert money(Usage(), "claude-opus-5", OPUS) is None


def test_exact_rules_are_priced_by_the_models_own_provider():
    """The rule set belongs to no provider; its money is the model's input price times cost units."""
    exact = default_registry().get("exact")
    usage = Usage(input_tokens=1_000_000, cache_read_tokens=900_000)
    assert money(usage, "gpt-5", exact) == pytest.approx(1.25 * 0.19)


def test_a_fine_tuned_model_has_its_own_price():
    """gpt-4.1 tuned costs 3 USD a million tokens where the base costs 2."""
    usage = Usage(input_tokens=1_000_000, cache_read_tokens=0)
    model = "ft:gpt-4.1-2025-04-14:acme::id"
    assert money(usage, model, profile_for(model)) == pytest.approx(3.0)


def test_a_library_without_a_cache_price_gives_way_to_the_table():
    """genai-prices knows mistral-large-latest without a discount; the table has Mistral's 0.1."""
    usage = Usage(input_tokens=1_000_000, cache_read_tokens=1_000_000)
    profile = profile_for("mistral-large-latest")
    assert money(usage, "mistral-large-latest", profile) == pytest.approx(0.05)


def test_a_sum_of_calls_is_priced_in_the_average_calls_tier():
    """Sonnet 4.5 has a long-context tier above 200k; forty short calls must not reach it."""
    pytest.importorskip("genai_prices", reason="needs the extra prices, which make test installs")
    profile = profile_for("claude-sonnet-4-5")
    one = Usage(input_tokens=10_000, cache_read_tokens=0)
    many = sum([one] * 40)
    assert money(many, "claude-sonnet-4-5", profile) == pytest.approx(40 * money(one, "claude-sonnet-4-5", profile))


def test_lost_money_is_the_difference_to_a_read():
    """Opus 5: a million tokens not read cost 5.00 instead of 0.50; written anew, 6.25."""
    assert lost_money(1_000_000, "claude-opus-5", OPUS) == pytest.approx(4.5)
    assert lost_money(1_000_000, "claude-opus-5", OPUS, written=True) == pytest.approx(5.75)
    assert lost_money(0, "claude-opus-5", OPUS) == 0
    assert lost_money(1000, "frontier-9", default_registry().get("unknown")) is None


def test_every_listed_model_finds_its_price_and_its_row():
    """The table and the rows were taken from one source: read and write prices agree, or it is known why."""
    differing = {}
    for provider, models in cost._prices().items():
        for model, listed in models.items():
            profile = profile_for(model, provider)
            assert list_price(model, provider) == listed
            stated = (round(profile.read, 4), round(profile.default_ttl.write, 4))
            if stated != (listed.read, listed.write):
                differing[model] = (stated, (listed.read, listed.write))
    assert differing == {}


def test_the_table_agrees_with_the_library_or_the_difference_is_listed():
    """Two price lists; where they differ, the model stands here so that a reader can look it up."""
    library = pytest.importorskip("genai_prices", reason="needs the extra prices, which make test installs")
    known = {
        "openai": {"gpt-4o-search-preview", "gpt-4o-search-preview-2025-03-11"},
        "gemini": {"gemini-2.5-pro-preview-tts"},
        "deepseek": {"deepseek-chat", "deepseek-flash", "deepseek-reasoner", "deepseek-v3.2",
                     "deepseek-v4-flash", "deepseek-v4-flash-vision-exp", "deepseek-v4-pro"},
        "xai": {"grok-code-fast", "grok-code-fast-1", "grok-code-fast-1-0825"},
        "mistral": {"codestral-latest", "devstral-small-latest", "magistral-medium-latest",
                    "magistral-small-latest", "ministral-3b-latest", "mistral-large-4", "mistral-large-4-0",
                    "mistral-large-latest", "mistral-medium", "mistral-tiny", "open-mistral-nemo",
                    "pixtral-large-latest"},
    }  # fmt: skip
    found: dict[str, set[str]] = {}
    compared = 0
    for provider, models in cost._prices().items():
        for model, listed in models.items():
            whole = cost._genai_price(Usage(1000, 0), model, provider, NOON)
            if whole is None:
                continue
            compared += 1
            read = cost._genai_price(Usage(1000, 1000), model, provider, NOON)
            theirs = (whole.usd * 1000, None if read is None else read.usd / whole.usd)
            ours = (listed.input_usd_per_mtok, listed.read)
            if theirs[1] is None or theirs != pytest.approx(ours, rel=2e-3):
                found.setdefault(provider, set()).add(model)
    assert compared > 100
    if importlib.metadata.version("genai-prices") == TESTED:
        assert found == known
    else:
        assert sum(map(len, found.values())) < compared / 4, (library, found)


def test_a_call_costs_what_it_cost_when_it_was_made():
    """DeepSeek's models are cheaper at night; the same call has one price, whenever it is asked for."""
    pytest.importorskip("genai_prices", reason="needs the extra prices, which make test installs")
    usage, profile = Usage(1000, 0), profile_for("deepseek-r1")
    by_day, by_night = (money(usage, "deepseek-r1", profile, at=NOON + hours * 3600) for hours in (0, 8))
    assert by_night is not None
    assert by_day == pytest.approx(550e-6)
    assert by_night < by_day
    lost = lost_money(1000, "deepseek-r1", profile, at=NOON)
    assert lost == pytest.approx(by_day - money(Usage(1000, 1000), "deepseek-r1", profile, at=NOON))


@pytest.mark.parametrize("at", [-5.0, 0.0, 17.0, 1.7e12, 1e300, float("inf"), float("nan")])
def test_a_clock_that_tells_no_day_is_priced_as_of_now(at):
    """Session clocks may count from anywhere, and logs hold milliseconds."""
    assert money(Usage(1000, 0), "gpt-5.2", profile_for("gpt-5.2"), at=at) == money(
        Usage(1000, 0), "gpt-5.2", profile_for("gpt-5.2")
    )


def test_the_library_is_not_imported_before_a_price_is_asked_for():
    """genai-prices takes 0.4 s to import; the core must stay light."""
    import subprocess

    code = "import sys, cacheprefix.profiles as p; p.profile_for('gpt-5'); print('genai_prices' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

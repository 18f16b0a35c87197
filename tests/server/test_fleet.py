"""Sizing by simulation: lifetimes, bounds, replicas and routing over recorded arrivals."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix import cli
from cacheprefix.audit import arrivals
from cacheprefix.errors import SetupError
from cacheprefix.profiles import default_registry
from cacheprefix.server import Arrival, Setting, play

EXACT = default_registry().get("exact")
FREE = Setting(ttl=None)


def turns(count, conversations=1, pause=10.0, start=100):
    """Conversations that grow by one block a turn, taking turns."""
    made = []
    for turn in range(count):
        for talk in range(conversations):
            names = ("common", *((talk, i) for i in range(turn + 1)))
            made.append(Arrival((turn * conversations + talk) * pause, names, (start,) * len(names)))
    return made


def _in_time(rows):
    found, now = [], 0.0
    for pause, path in rows:
        now += pause
        names = tuple(tuple(path[: i + 1]) for i in range(len(path)))
        found.append(Arrival(now, names, tuple(10 + len(name) for name in names)))
    return found


traffic = st.lists(
    st.tuples(st.floats(0, 50), st.lists(st.integers(0, 3), min_size=1, max_size=5)), min_size=1, max_size=30
).map(_in_time)


def test_an_endless_cache_reads_all_that_was_there_before():
    """Every turn reads the whole of the turn before, and writes only what is new."""
    done = play(turns(4), FREE, EXACT)
    assert (done.input_tokens, done.read_tokens, done.written_tokens) == (1400, 900, 500)
    assert done.cost_units == pytest.approx(900 * EXACT.read + 500 * EXACT.default_ttl.write)
    assert done.peak_tokens == 500


def test_a_lifetime_ends_when_nobody_reads():
    """A read starts it anew; one second too late and all is written again."""
    assert play(turns(4, pause=10), Setting(ttl=10), EXACT).read_tokens == 900
    assert play(turns(4, pause=11), Setting(ttl=10), EXACT).read_tokens == 0


def test_a_full_cache_keeps_what_is_shared():
    """With room for one prompt the deepest blocks of the least recent one go first, and the common beginning stays."""
    done = play(turns(2, conversations=3), Setting(ttl=None, capacity=300), EXACT)
    assert done.peak_tokens <= 300
    assert done.evicted_tokens > 0
    assert done.read_tokens >= 5 * 100


def test_sticky_conversations_read_as_if_alone_and_spread_ones_do_not():
    """Each of four talks finds its own on four replicas; sent anywhere, they find less."""
    talks = turns(12, conversations=4)
    alone = play(talks, FREE, EXACT).read_tokens
    sticky = play(talks, replace(FREE, replicas=4, routing="sticky"), EXACT)
    spread = play(talks, replace(FREE, replicas=4), EXACT)
    # Only the common block is written once on every replica.
    assert sticky.read_tokens == alone - 3 * 100
    assert spread.read_tokens < sticky.read_tokens
    assert sticky.busiest == pytest.approx(0.25)


def test_what_a_provider_would_not_cache_is_not_read():
    """The profile's minimum and block size hold here too."""
    small = replace(EXACT, min_tokens=250)
    assert play(turns(4), FREE, small).read_tokens == 300 + 400
    assert play(turns(4), FREE, replace(EXACT, block_tokens=128)).read_tokens == 128 + 256 + 384


@given(traffic, st.integers(20, 200), st.integers(1, 4))
def test_the_sums_add_up_and_bounds_hold(given_traffic, capacity, replicas):
    """Read and written never exceed the input, no replica holds more than it may, and a cache never costs more here."""
    for routing in ("spread", "sticky"):
        done = play(given_traffic, Setting(30.0, capacity, replicas, routing), EXACT)
        assert done.read_tokens + done.written_tokens <= done.input_tokens
        assert done.peak_tokens <= capacity
        assert 0 <= done.cost_units <= done.input_tokens * max(1, EXACT.default_ttl.write)
        assert 1 / replicas - 1e-9 <= done.busiest <= 1


@given(traffic)
def test_a_longer_life_never_reads_less(given_traffic):
    """Without a bound on size."""
    reads = [play(given_traffic, Setting(ttl), EXACT).read_tokens for ttl in (1.0, 10.0, 100.0, None)]
    assert reads == sorted(reads)


@pytest.mark.parametrize("options", [{"ttl": 0}, {"ttl": -1}, {"capacity": 0}, {"replicas": 0}])
def test_impossible_fleets_are_refused(options):
    """With the option's name."""
    with pytest.raises(SetupError, match=next(iter(options))):
        Setting(**options)


@pytest.fixture
def mooncake(tmp_path):
    """A packed trace of Mooncake's form, one line of it broken."""
    path = tmp_path / "trace.jsonl.gz"
    lines = [
        {"timestamp": 1000 * i, "input_length": 512 * n - 12, "output_length": 5, "hash_ids": list(range(n))}
        for i, n in enumerate((2, 3, 4))
    ]
    with gzip.open(path, "wt") as stream:
        stream.write("\n".join([json.dumps(lines[0]), '{"timestamp": 1}', *map(json.dumps, lines[1:])]))
    return path


def test_mooncakes_blocks_are_read_with_their_last_one_short(mooncake):
    """512 tokens each but the last; what is broken is counted."""
    found, skipped = arrivals([str(mooncake)])
    assert [each.sizes for each in found] == [(512, 500), (512, 512, 500), (512, 512, 512, 500)]
    assert [each.at for each in found] == [0.0, 1.0, 2.0]
    assert skipped == 1


def test_the_command_plays_a_grid(mooncake, capsys):
    """Data with --json, a table without, exit code 1 for the broken line."""
    command = ["simulate", str(mooncake), "--ttl", "none", "--capacity", "1k", "--replicas", "1", "--replicas", "2"]
    assert cli.main([*command, "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["requests"], data["skipped"], data["rules"]) == (3, 1, "exact")
    rows = [(r["ttl"], r["capacity_tokens"], r["replicas"], r["routing"]) for r in data["rows"]]
    assert rows == [(None, 1000, 1, "spread"), (None, 1000, 2, "spread"), (None, 1000, 2, "sticky")]
    assert cli.main(["simulate", str(mooncake), "--sticky"]) == 1
    out = capsys.readouterr().out
    assert "1 lines could not be read" in out
    assert "spread" not in out


def test_a_request_log_is_played_section_by_section(tmp_path, capsys):
    """Any log that audit reads: what two requests begin with is read by the second."""
    path = tmp_path / "log.jsonl"
    bodies = [
        {"model": "gpt-5", "messages": [{"role": "system", "content": "s" * 400}, {"role": "user", "content": f"{i}"}]}
        for i in range(2)
    ]
    path.write_text("\n".join(map(json.dumps, bodies)))
    assert cli.main(["simulate", str(path), "--ttl", "300", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert 0.4 < row["cached_share"] < 0.5


@pytest.mark.parametrize(
    "arguments", [["missing.jsonl"], ["--ttl", "x"], ["--capacity", "0"], ["--ttl", "nan"], ["--rules", "nobody"], []]
)
def test_wrong_use_is_told_in_a_line(tmp_path, mooncake, capsys, arguments):
    """Exit code 2, no traceback."""
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    options = arguments if arguments and arguments[0].startswith("-") else []
    log = mooncake if options else tmp_path / arguments[0] if arguments else empty
    assert cli.main(["simulate", str(log), *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_recorded_hour_gives_the_figures_of_the_docs(traces):
    """Mooncake's conversations: more life and sticky routing read more, by about what docs/scale.md says."""
    found, skipped = arrivals([str(traces("mooncake") / "conversation_trace.jsonl.gz")], limit=4_000)
    assert skipped == 0
    short, long = (play(found, Setting(ttl), EXACT).cached_share for ttl in (60.0, 900.0))
    spread, sticky = (play(found, Setting(300.0, None, 8, way), EXACT).cached_share for way in ("spread", "sticky"))
    assert long > 2 * short
    assert sticky > 2 * spread


def busy_hour():
    """More conversations of one prefix at a time than one key serves."""
    busy = [
        Arrival(talk * 3.0 + turn * 5.0, ("common", *((talk, i) for i in range(turn + 1))), (100,) * (turn + 2))
        for talk in range(100)
        for turn in range(12)
    ]
    return sorted(busy, key=lambda one: one.at)


def test_more_routing_keys_keep_conversations_where_they_are_read():
    """One key serves 15 requests a minute; those beyond go anywhere, and read nothing there."""
    busy = busy_hour()
    where = Setting(ttl=None, replicas=8, routing="keys")
    one, auto, many = (play(busy, replace(where, keys=keys), EXACT).read_tokens for keys in (1, "auto", 64))
    sticky = play(busy, Setting(ttl=None, replicas=8, routing="sticky"), EXACT).read_tokens
    assert one < auto < many
    assert many > 0.8 * sticky


def test_a_number_of_keys_is_the_same_in_every_process_of_a_fleet():
    """Whichever process a conversation's request comes to; apart, each counts its own part of the traffic alone."""
    busy, where = busy_hour(), Setting(ttl=None, replicas=8, routing="keys", keys=64)
    assert play(busy, replace(where, processes=8), EXACT).read_tokens == play(busy, where, EXACT).read_tokens
    alone, apart = (play(busy, replace(where, keys="auto", processes=n), EXACT).read_tokens for n in (1, 8))
    together = play(busy, replace(where, keys="auto", processes=8, together=True), EXACT).read_tokens
    assert alone > apart
    assert together > 0.9 * alone


def test_few_requests_need_one_key(capsys, tmp_path):
    """Within its rate a key is as good as knowing the conversation; the command shows it beside the others."""
    calm = turns(4, conversations=3, pause=10.0)
    alone = play(calm, Setting(ttl=None, replicas=8, routing="keys"), EXACT)
    assert alone.read_tokens == play(calm, FREE, EXACT).read_tokens
    log = tmp_path / "trace.jsonl"
    rows = ({"timestamp": n * 1_000, "input_length": 1_024, "output_length": 1, "hash_ids": [1, n]} for n in range(9))
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.main(["simulate", str(log), "--replicas", "4", "--keys", "1", "--keys", "auto", "--json"]) == 0
    shown = [(row["routing"], row.get("keys")) for row in json.loads(capsys.readouterr().out)["rows"]]
    assert shown == [("spread", None), ("sticky", None), ("keys", 1), ("keys", "auto")]
    assert cli.main(["simulate", str(log), "--replicas", "4", "--keys", "0"]) == 2

"""The report is one file that needs no network and shows in a browser what the audit found."""

import json
import re
import time
from io import StringIO
from pathlib import Path

import pytest
from audit_logs import Conversation, prose, quiet, team, write

from cacheprefix.audit import audit
from cacheprefix.report import page_data, write_page

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
SECRET = "Zanzibar-4711 </script><b>&"


def log(tmp_path, rounds=4):
    """A team's log with four breaks, one of them in a text that must not leak."""
    lines = team(rounds, api="anthropic")
    lines[6]["request"]["tools"].reverse()
    lines[8]["request"]["messages"][1]["content"] = SECRET
    lines[10]["request"]["system"][0]["text"] = "Now: 10:00\n" + lines[10]["request"]["system"][0]["text"]
    talk = Conversation(api="anthropic", seed=7, words=700)
    for number in range(5):
        talk.turn()
        if number == 4:
            talk.messages[2]["content"] = f"{SECRET} {talk.messages[2]['content']}"
        lines.append(talk.line(9_000 + 20 * number, agent="writer"))
    return write(tmp_path / "log.jsonl", lines)


def page(path, tmp_path, **options):
    """The report of a log, as a file."""
    with audit([path], **options) as found, (tmp_path / "report.html").open("w", encoding="utf-8") as stream:
        write_page(found, stream)
    return tmp_path / "report.html"


def text_of(path, **options):
    """The report of a log, as text."""
    stream = StringIO()
    with audit([path], **options) as found:
        write_page(found, stream)
    return stream.getvalue()


def test_the_page_loads_nothing(tmp_path):
    """No address, no import, no style sheet; and a policy that forbids them."""
    html = text_of(log(tmp_path))
    assert "default-src 'none'" in html
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<link|@import|\bsrc=|url\(", html)


def test_no_prompt_text_stands_in_the_page_unless_it_is_asked_for(tmp_path):
    """Not a word of the prompts; with include_text the difference is there, and safely quoted."""
    path = log(tmp_path)
    html = text_of(path)
    assert "Zanzibar" not in html
    assert prose("handbook", 5) not in html
    html = text_of(path, include_text=True)
    assert "Zanzibar" in html
    assert html.count("</script>") == 2


def test_every_call_is_a_row_with_its_parts(tmp_path):
    """Read, written, lost and the tiers are numbers that add up."""
    with audit([log(tmp_path)]) as found:
        data = page_data(found)
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["calls"]]
    assert len(rows) == 17
    for row in rows:
        assert row["read"] + row["written"] <= row["input"]
        assert sum(row["tiers"]) == row["counted"]
        assert 0 <= (row["break_at"] or 0) <= row["counted"]
        assert (row["break_at"] is not None) == row["broke"]
    assert {data["causes"][row["cause"]] for row in rows if row["broke"]} >= {"tools_reordered", "system_changed"}


def test_a_page_holds_a_bounded_number_of_calls(tmp_path):
    """Totals are those of all calls."""
    with audit([log(tmp_path)]) as found:
        data = page_data(found, calls=5)
    assert len(data["calls"]) == 5
    assert data["totals"]["calls"] == 17


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium; skips with the reason where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright's Python package is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM} (Debian: apt-get install chromium)")
    with api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def opened(browser):
    """``opened(path)`` is the page in a fresh tab; at the end nothing may have failed or asked the network."""
    problems, tabs = [], []

    def open_(path, **options):
        tab = browser.new_page(viewport={"width": 1440, "height": 1000}, **options)
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("console", lambda said: problems.append(said.text) if said.type in {"error", "warning"} else None)
        tab.on("request", lambda asked: None if asked.url.startswith("file:") else problems.append(asked.url))
        tab.goto(path.as_uri())
        tab.wait_for_selector("html[data-ready]")
        tabs.append(tab)
        return tab

    yield open_
    for tab in tabs:
        tab.close()
    assert problems == []


@pytest.mark.slow
def test_a_break_is_marked_and_explained(tmp_path, opened):
    """The first break is chosen: its bar has a mark, the detail its cause, place, fix and the log's line."""
    tab = opened(page(log(tmp_path), tmp_path))
    detail = tab.locator("#detail")
    assert tab.locator("#rows .row.chosen .mark").count() == 1
    assert detail.locator(".tag").inner_text() == "tools reordered"
    for expected in ("tools[0]", "log.jsonl:7", "Sort the tools once"):
        assert expected in detail.inner_text()
    assert "--include-text" in detail.inner_text()


@pytest.mark.slow
def test_the_difference_is_shown_where_text_was_kept(tmp_path, opened):
    """Both sides, as text and never as markup."""
    tab = opened(page(log(tmp_path), tmp_path, include_text=True))
    tab.evaluate("pick(calls.filter(call => call.cause === 'history_edited' && call.broke).at(-1).index)")
    assert SECRET in tab.locator("#detail .diff ins").inner_text()
    assert tab.locator("#detail .diff b").count() == 0


@pytest.mark.slow
def test_filters_leave_what_they_say(tmp_path, opened):
    """By agent, by cause, breaks only; the tree is drawn anew for what is left."""
    tab = opened(page(log(tmp_path), tmp_path))
    count = tab.locator("#rows .row").count
    assert count() == 17
    tab.select_option("#f-agent", label="writer")
    assert count() == 5
    tab.select_option("#f-agent", label="all")
    tab.select_option("#f-cause", label="tools reordered")
    assert count() == 2  # there, and back
    tab.select_option("#f-cause", label="all")
    tab.click("#only")
    assert count() == tab.locator("#rows .row .mark").count() > 2
    assert f"{count()} calls" in tab.locator("#count").inner_text()


@pytest.mark.slow
def test_forks_leave_the_line_they_come_from(tmp_path, opened):
    """A row's dot stands in its line's column; every fork has a curve from its parent's."""
    tab = opened(page(log(tmp_path, rounds=6), tmp_path))
    drawn = tab.evaluate("shown.map(call => [call.node, call.up, call.first])")
    roots = [row for row in drawn if row[1] is None]
    forks = [row for row in drawn if row[1] is not None and row[2]]
    assert roots
    assert all(column != up for column, up, _ in forks)
    assert tab.locator("#rows svg path").count() == len(forks)


@pytest.mark.slow
def test_the_keyboard_reaches_every_call(tmp_path, opened):
    """Arrows move, n and p go from break to break, and the choice is told to assistive technology."""
    tab = opened(page(log(tmp_path), tmp_path))
    tab.focus("#scroll")
    tab.keyboard.press("Home")
    assert tab.locator("#scroll").get_attribute("aria-activedescendant") == "call-0"
    tab.keyboard.press("ArrowDown")
    assert tab.locator("#rows [aria-selected=true]").get_attribute("id") == "call-1"
    tab.keyboard.press("End")
    assert tab.locator("#scroll").get_attribute("aria-activedescendant") == "call-16"
    tab.keyboard.press("Home")
    tab.keyboard.press("n")
    first = tab.locator("#scroll").get_attribute("aria-activedescendant")
    tab.keyboard.press("n")
    tab.keyboard.press("p")
    assert tab.locator("#scroll").get_attribute("aria-activedescendant") == first


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_colour_schemes(tmp_path, opened, scheme):
    """Every text has a contrast of at least 4.5 to 1 (WCAG AA) against what is behind it."""
    tab = opened(page(log(tmp_path), tmp_path, include_text=True), color_scheme=scheme)
    faint = tab.evaluate(CONTRAST)
    assert faint == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 820, 1440])
def test_nothing_sticks_out_at_any_width(tmp_path, opened, width):
    """The page never scrolls sideways."""
    tab = opened(page(log(tmp_path), tmp_path))
    tab.set_viewport_size({"width": width, "height": 900})
    tab.wait_for_timeout(100)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_five_thousand_calls_are_few_nodes(tmp_path, opened):
    """Only the rows in sight exist, at the top and after a jump to the end."""
    lines, now = [], 1_000.0
    for seed in range(200):
        lines += quiet(25, seed=seed, start=now, words=20, system="Be brief.")
        now += 600
    tab = opened(page(write(tmp_path / "log.jsonl", lines), tmp_path, what_if=False))
    assert "5,000 calls" in tab.locator("#count").inner_text()
    assert tab.locator("#rows .row").count() < 80
    started = time.perf_counter()
    tab.evaluate("scroll.scrollTop = scroll.scrollHeight")
    tab.wait_for_selector("#call-4999")
    assert time.perf_counter() - started < 30
    assert tab.locator("#rows .row").count() < 80


def test_an_empty_log_is_an_empty_page(tmp_path, opened):
    """A log in which nothing could be read still gives a page that says so."""
    tab = opened(page(write(tmp_path / "log.jsonl", ["{broken"]), tmp_path))
    assert "could not be read" in tab.locator("#foot").inner_text()


def test_counts_without_text_are_drawn_too(traces, tmp_path, opened):
    """TraceLab's rounds have numbers only."""
    tab = opened(page(str(traces("tracelab") / "round_trace.jsonl"), tmp_path))
    assert tab.locator("#rows .row").count() == 19


def test_the_data_in_the_page_is_valid_json(tmp_path):
    """Whatever the prompts hold, the embedded block parses."""
    html = text_of(log(tmp_path), include_text=True)
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert json.loads(block[1])["totals"]["calls"] == 17


CONTRAST = """() => {
  const light = text => {
    const [r, g, b] = text.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const sheet = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const over = (under, colour) => {
    sheet.fillStyle = `rgb(${under.join(" ")})`; sheet.fillRect(0, 0, 1, 1);
    sheet.fillStyle = colour; sheet.fillRect(0, 0, 1, 1);
    return [...sheet.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const behind = node => {
    const chain = [];
    for (let at = node; at; at = at.parentElement) chain.unshift(getComputedStyle(at).backgroundColor);
    return chain.reduce(over, [255, 255, 255]);
  };
  const faint = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
    if (!own || node.closest("script, style, .sr, option") || !node.getClientRects().length) continue;
    const ground = behind(node), ink = over(ground, getComputedStyle(node).color);
    const [low, high] = [light(ink), light(ground)].sort((a, b) => a - b);
    const ratio = (high + .05) / (low + .05);
    if (ratio < 4.5) faint.push(`${node.className || node.tagName}: ${node.textContent} ${ratio.toFixed(2)}`);
  }
  return [...new Set(faint)];
}"""

"""The demonstration's picture: each request a bar, and the figures that README's picture shows."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("langgraph", reason="the demonstration runs in the core's own environment (make test)")

from cacheprefix.errors import SetupError
from cacheprefix_langgraph.demo.picture import picture
from cacheprefix_langgraph.demo.run import run_simulated
from cacheprefix_langgraph.demo.source import read_source

README = Path(__file__).resolve().parents[2] / "docs" / "demo.svg"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def rows():
    """The demonstration under OpenAI's rules."""
    return run_simulated(read_source("starlette"), ["openai"], latency=0.0)


def test_each_request_is_a_bar_as_long_as_its_input(rows):
    """Read and paid part stand side by side, to one scale in both layouts."""
    drawn = ET.fromstring(picture(rows))
    bars = {
        kind: [float(one.get("width")) for one in drawn.iter(f"{SVG}rect") if one.get("class") == kind][1:]
        for kind in ("read", "paid")
    }
    requests = [bar for row in rows for bar in row.requests]
    assert len(bars["read"]) == len(bars["paid"]) == len(requests) == 28
    scale = (bars["read"][0] + bars["paid"][0]) / requests[0].input_tokens
    for read, paid, bar in zip(bars["read"], bars["paid"], requests, strict=True):
        assert read == pytest.approx(bar.read_tokens * scale, rel=0.01, abs=0.2)
        assert paid == pytest.approx((bar.input_tokens - bar.read_tokens) * scale, rel=0.01, abs=0.2)


def test_the_picture_of_the_readme_shows_what_the_demonstration_costs(rows):
    """After a change of the figures: make picture. Which of three reviewers is first differs, and by a block or two."""
    said = [unescape(re.search("<title>(.*?)</title>", text)[1]) for text in (README.read_text(), picture(rows))]
    drawn, now = ([int(one.replace(",", "")) for one in re.findall(r"[\d,]*\d", text)] for text in said)
    requests, plain, shared, percent = drawn
    assert (requests, plain, percent) == (now[0], now[1], now[3])
    assert now[2] == pytest.approx(shared, rel=0.02)


def test_half_a_picture_is_refused(rows):
    """With the name of the layout that is missing."""
    with pytest.raises(SetupError, match="shared"):
        picture([row for row in rows if row.layout == "unmodified"])

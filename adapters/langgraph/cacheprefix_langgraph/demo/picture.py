"""The demonstration as a picture: the same team's requests as bars, what was read from the cache and what was paid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from cacheprefix.errors import SetupError

if TYPE_CHECKING:
    from cacheprefix_langgraph.demo.run import Row

_WIDTH, _LEFT, _BAR, _GAP, _HEAD, _BLOCK_GAP = 860, 120, 12, 3, 76, 42
"""Pixels: the picture, the names' column, a bar, the space below it, the legend, the space between the layouts."""

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600; font-size: 15px } .small { font-size: 11px; fill: #57606a }
.read { fill: #9ec5a8 } .paid { fill: #b3432b }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } .read { fill: #3d6b4a } .paid { fill: #e0775f }
}"""


def picture(rows: Sequence[Row]) -> str:
    """An SVG of the unmodified and the shared run under the first rule set of ``rows``.

    A bar is a request, its length the tokens of its input, in the order in which they were sent. Raises SetupError
    where one of the two layouts is missing.
    """
    layouts = {row.layout: row for row in rows if row.rules == rows[0].rules} if rows else {}
    try:
        plain, shared = layouts["unmodified"], layouts["shared"]
    except KeyError as missing:
        raise SetupError(f"a picture needs both layouts under one rule set; {missing} is missing") from None
    longest = max(bar.input_tokens for row in (plain, shared) for bar in row.requests)
    scale = (_WIDTH - _LEFT - 90) / longest
    block = len(plain.requests) * (_BAR + _GAP) + _BLOCK_GAP
    height = _HEAD + block + len(shared.requests) * (_BAR + _GAP) + 24
    ratio = shared.cost_units / plain.cost_units
    legend = (
        f"one bar a request, in the order they were sent; the number: tokens paid in full; "
        f"rules of {escape(plain.rules)}, simulated provider"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(_said(plain, shared, ratio))}</title><style>{_STYLE}</style>",
        f'<rect class="paid" x="{_LEFT}" y="14" width="12" height="12"/>',
        f'<text x="{_LEFT + 18}" y="25">paid in full</text>',
        f'<rect class="read" x="{_LEFT + 120}" y="14" width="12" height="12"/>',
        f'<text x="{_LEFT + 138}" y="25">read from the provider\'s cache, at {_share(plain)} of the price</text>',
        f'<text class="small" x="{_LEFT}" y="46">{legend}</text>',
        *_layout(plain, "as it is usually built", _HEAD, scale, ""),
        *_layout(shared, "on one shared prefix", _HEAD + block, scale, f"{ratio:.0%} of the cost"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _layout(row: Row, title: str, top: int, scale: float, remark: str) -> Iterator[str]:
    """One layout as SVG, from ``top`` on: a title, then a bar a request with what it read and what it paid."""
    cost = f"{row.cost_units:,.0f} cost units" + (f", {remark}" if remark else "")
    yield f'<text class="title" x="{_LEFT}" y="{top}">{escape(title)}: {cost}</text>'
    for number, bar in enumerate(row.requests):
        y = top + 10 + number * (_BAR + _GAP)
        read = bar.read_tokens * scale
        paid = (bar.input_tokens - bar.read_tokens) * scale
        yield f'<text x="{_LEFT - 8}" y="{y + _BAR - 2}" text-anchor="end">{escape(bar.agent)}</text>'
        yield f'<rect class="read" x="{_LEFT}" y="{y}" width="{read:.1f}" height="{_BAR}"/>'
        yield f'<rect class="paid" x="{_LEFT + read:.1f}" y="{y}" width="{paid:.1f}" height="{_BAR}"/>'
        said = f"{bar.input_tokens - bar.read_tokens:,}"
        yield f'<text class="small" x="{_LEFT + read + paid + 6:.1f}" y="{y + _BAR - 2}">{said}</text>'


def _share(row: Row) -> str:
    return f"{row.read_price:.0%}"


def _said(plain: Row, shared: Row, ratio: float) -> str:
    return (
        f"The same team's {len(plain.requests)} requests. As usually built {plain.cost_units:,.0f} cost units; on one "
        f"shared prefix {shared.cost_units:,.0f}, which is {ratio:.0%}."
    )

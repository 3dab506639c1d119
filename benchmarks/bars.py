"""Bar charts as SVG: a line for each bar, its value at the end. Legible on light and on dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, BAR, GAP, TOP = 900, 18, 8, 44
LABELS = 340  # pixels for the names
VALUES = 230  # pixels for figure and guarantee, to the right of the longest bar

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600 }
  .value, .unit { fill: #57606a }
  .ours { fill: #0969da } .other { fill: #8c959f } .range { stroke: #24292f; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .value, .unit { fill: #9198a1 }
    .ours { fill: #4493f8 } .other { fill: #656c76 } .range { stroke: #e6edf3 }
  }
"""


@dataclass(frozen=True)
class Bar:
    """One bar; ``least`` and ``most`` are drawn as a whisker; ``is_ours`` decides its colour, ``note`` follows it."""

    label: str
    value: float
    least: float
    most: float
    is_ours: bool
    note: str = ""


def chart(title: str, unit: str, bars: Sequence[Bar]) -> str:
    """The chart, from zero to the greatest value."""
    height = TOP + len(bars) * (BAR + GAP) + GAP
    scale = (WIDTH - LABELS - VALUES) / max(bar.most for bar in bars)
    description = "; ".join(f"{bar.label} {bar.value:,.0f}" for bar in bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(f'{unit}: {description}')}</desc>",
        f"<style>{STYLE}</style>",
        f'<text class="title" x="0" y="16">{escape(title)}</text>',
        f'<text class="unit" x="0" y="34">{escape(unit)}; the line is from least to most</text>',
    ]
    for n, bar in enumerate(bars):
        lines += _bar(bar, TOP + n * (BAR + GAP), scale)
    return "\n".join([*lines, "</svg>", ""])


def _bar(bar: Bar, top: int, scale: float) -> list[str]:
    base, middle = top + 13, top + BAR / 2
    least, most = LABELS + bar.least * scale, LABELS + bar.most * scale
    note = escape(f" · {bar.note}") if bar.note else ""
    kind, width = "ours" if bar.is_ours else "other", max(1.0, bar.value * scale)
    return [
        f'<text x="{LABELS - 8}" y="{base}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect class="{kind}" x="{LABELS}" y="{top}" rx="2" width="{width:.1f}" height="{BAR}"/>',
        f'<line class="range" x1="{least:.1f}" x2="{most:.1f}" y1="{middle}" y2="{middle}"/>',
        f'<text class="value" x="{most + 8:.1f}" y="{base}">{bar.value:,.0f}{note}</text>',
    ]

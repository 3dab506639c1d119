"""Writes the tables and plots of ``docs/performance.md`` from a report.

python benchmarks/page.py bench-report.json

The text between ``<!-- bench:NAME -->`` and ``<!-- /bench -->`` is written again, the prose around it is left alone;
plots and a copy of the report go to ``docs/assets``. A test holds page, plots and that copy together.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bars import Bar, chart
from questions import GROUPS
from report import RATE, Row

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
ASSETS = ROOT / "docs" / "assets"
COPY = ASSETS / "bench-report.json"
_PART = re.compile(r"(<!-- bench:([\w-]+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
_MET = {True: "met", False: "**missed**", None: "not measured"}
_PLAIN = {"seconds", "cpu_seconds", "transactions", "pairs", "stored_rows", "conflicts_percent"}

PLOTS: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "core": ("core", "Topic to table, 10,000 records a transaction", ()),
    "peers": ("peers", "Others, one slot and two", ("append", "upsert", "append, 2 workers", "upsert, 2 workers")),
    "batches": ("batches", "By records per transaction", ("append",)),
}
"""By name: the group, the title, and which questions of other groups stand beside its own."""


def render(report: Row, text: str) -> str:
    """The page's text with its parts written again; raises LookupError for an unknown part."""
    parts: dict[str, Callable[[Row], str]] = {
        "setting": _setting,
        "goals": _goals,
        **{group: _group(group) for group in GROUPS},
        "profile": _profile,
    }
    return _PART.sub(lambda found: f"{found[1]}{parts[found[2]](report)}{found[3]}", text)


def plots(report: Row) -> dict[str, str]:
    """File names and SVG; none where nothing was measured."""
    made = {}
    for name, (group, title, ours) in PLOTS.items():
        lines = [line for line in report["summary"] if RATE in line and "case" not in line]
        if any(line["group"] == group for line in lines):
            bars = [_bar(line) for line in lines if line["group"] == group or line["question"] in ours]
            made[f"{name}.svg"] = chart(title, "records per second", sorted(bars, key=lambda bar: -bar.value))
    return made


def _bar(line: Row) -> Bar:
    name = line["question"]
    return Bar(name, line[RATE], line["min"], line["max"], name.startswith(("append", "upsert")))


def shown(report: Row) -> str:
    """The report as it is kept: a row a line."""
    rows = ",\n".join(json.dumps(row) for row in report["rows"])
    rest = {name: value for name, value in report.items() if name != "rows"}
    return json.dumps(rest, indent=1)[:-2] + f',\n "rows": [\n{rows}\n ]\n}}\n'


# -- the parts ------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---" if n == 0 or name in _LEFT else "--:" for n, name in enumerate(head)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


_LEFT = {"ratios within a round", "what it is", "figures", "how", ""}


def _setting(report: Row) -> str:
    """A line for each machine with its servers and versions, with the runs on it."""
    runs: dict[str, list[str]] = {}
    for run in report["runs"]:
        machine, versions = run["machine"], run["versions"]
        settings = ", ".join(f"`{name}={value}`" for name, value in run["postgres_settings"].items())
        busy = statistics.median(row["busy_percent"] for row in report["rows"] if row["run"] == run["run"])
        where = (
            f"{run['records']:,} records of `{run['kind']}`; {run['cores_used']} of {machine['cores']} processors"
            f" ({machine['processor']}), {machine['memory_gib']} GiB, {machine['system']}; {', '.join(run['servers'])};"
            f" {settings}; {', '.join(f'{name} {number}' for name, number in versions.items())}"
        )
        runs.setdefault(where, []).append(f"{run['run']} ({run['at']}, {busy:.0f} %)")
    return "".join(
        f"- {where}. Runs, with the median of other load before a subject began: {', '.join(these)}.\n"
        for where, these in runs.items()
    )


def _goals(report: Row) -> str:
    return goals_table(report["goals"])


def goals_table(goals: Sequence[Row]) -> str:
    """Each goal with its figure, and whether that meets it."""
    rows = [
        [
            goal["goal"],
            goal["bar"].replace("<", "&lt;").replace(">", "&gt;"),
            _number(goal["figure"]),
            "too few rounds" if goal["met"] is None and goal["figure"] is not None else _MET[goal["met"]],
        ]
        for goal in goals
    ]
    return _table(["goal", "bar", "figure", ""], rows)


def _group(group: str) -> Callable[[Row], str]:
    def part(report: Row) -> str:
        lines = [line for line in report["summary"] if line["group"] == group]
        if not lines:
            return "Not measured yet.\n"
        drawn = plots(report)
        plot = next(
            (f"![{PLOTS[n][1]}](assets/{n}.svg)\n\n" for n in PLOTS if PLOTS[n][0] == group and f"{n}.svg" in drawn), ""
        )
        return plot + group_tables(lines)

    return part


def group_tables(lines: Sequence[Row]) -> str:
    """The tables of a group's lines: those with rates, and those with other figures."""
    found = ""
    if rated := [line for line in lines if RATE in line or "skipped" in line]:
        found = _rates(rated)
    if others := [line for line in lines if RATE not in line and "skipped" not in line]:
        found += ("\n" if found else "") + _figures(others)
    return found


def _profile(report: Row) -> str:
    """By stage, without a key and with one; the figure beside ``all of it`` is the ceiling."""
    lines = [line for line in report["summary"] if line["group"] == "profile" and "case" in line]
    if not lines:
        return "Not measured yet.\n"
    names = list(dict.fromkeys(line["question"] for line in lines))
    found = {(line["question"], line["case"]): line["figures"] for line in lines}
    stages = list(dict.fromkeys(line["case"] for line in lines))
    head = [
        "where",
        *(f"{what}, {'key' if 'key' in name else 'no key'}" for name in names for what in ("CPU µs", "elapsed µs")),
    ]
    rows = [
        [stage, *(_us(found.get((name, stage), {}), key) for name in names for key in ("cpu_us", "elapsed_us"))]
        for stage in stages
    ]
    ceilings = ""
    for name in names:
        told = {key: value for key, value in found.get((name, "all of it"), {}).items() if not key.endswith("_us")}
        ceilings += f"- {'With a key' if 'key' in name else 'Without a key'}, records/s: {_told(told)}.\n"
    return f"{_table(head, rows)}\n{ceilings}"


def _us(figures: Mapping[str, float], key: str) -> str:
    return f"{figures[key]:.2f}" if key in figures else ""


def _rates(lines: Sequence[Row]) -> str:
    rows = []
    for line in lines:
        if "skipped" in line:
            rows.append([_name(line), "-", "", "", "", f"not run: {_flat(line['skipped'])}"])
            continue
        per_record = f"{line['cpu_us_per_record']:.2f}" if "cpu_us_per_record" in line else "-"
        ratios = "; ".join(f"{ratio:.2f} of {base}" for base, ratio in line.get("ratios", {}).items())
        own = _told({name: value for name, value in line["figures"].items() if name not in _PLAIN})
        kind = line.get("guarantee") or ("" if "case" in line else line.get("mode", ""))
        what = "; ".join(part for part in (line.get("version", ""), kind, own) if part)
        rows.append(
            [_name(line), f"{line[RATE]:,}", f"{line['min']:,}-{line['max']:,}", per_record, ratios, _flat(what)]
        )
    head = ["question", "records/s", "least-most", "CPU µs a record", "ratios within a round", "what it is"]
    return _table(head, rows)


def _figures(lines: Sequence[Row]) -> str:
    return _table(["question", "figures"], [[_name(line), _told(line["figures"])] for line in lines])


def _told(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in figures.items())


def _name(line: Row) -> str:
    return _flat(f"{line['question']}: {line['case']}" if "case" in line else line["question"])


def _flat(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def main() -> int:
    """Write page, plots and copy."""
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    report: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    ASSETS.mkdir(exist_ok=True)
    COPY.write_text(shown(report), encoding="utf-8")
    for old in ASSETS.glob("*.svg"):
        old.unlink()
    for name, svg in plots(report).items():
        (ASSETS / name).write_text(svg, encoding="utf-8")
    PAGE.write_text(render(report, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

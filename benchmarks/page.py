"""Writes the tables and plots of two pages from a report.

python benchmarks/page.py bench-report.json
python benchmarks/page.py docs/assets/bench-report.json bench-report.json    adds the second report

``docs/internals/benchmarks.md`` has all rows: the text between ``<!-- bench:NAME -->`` and ``<!-- /bench -->`` is
replaced. ``docs/performance.md`` has the rows that its markers name: ``<!-- rates: append ÷ floor; loop -->`` with rate
and ratio, ``<!-- figures: latency: 100 a second [latency_p50_ms] -->`` with these figures; a question's case comes
after a colon. Plots and a copy of the report go to ``docs/assets``. A test checks that pages, plots and copy agree.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path

from bars import Bar, chart
from goals import judge
from questions import GROUPS, GUARANTEES, QUESTIONS
from report import CPU, RATE, Row, summary

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "docs" / "performance.md", ROOT / "docs" / "internals" / "benchmarks.md"]
ASSETS = ROOT / "docs" / "assets"
COPY = ASSETS / "bench-report.json"
_PART = re.compile(r"(<!-- (bench|rates|figures|plot): ?([^>]+?) -->\n).*?(<!-- /bench -->)", re.DOTALL)
_FIGURES = re.compile(r"(.+?) \[(.+)\]")
_MET = {True: "met", False: "**missed**", None: "not measured"}
_PLAIN = {"seconds", "cpu_seconds", "transactions", "pairs", "stored_rows", "conflicts_percent"}

PLOTS: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "core": ("core", "Topic to table, 10,000 records a transaction", ()),
    "peers": ("peers", "Others, one slot and two", ("append", "upsert", "append, 2 workers", "upsert, 2 workers")),
    "batches": ("batches", "By records per transaction", ("append", "loop")),
    "workers": ("workers", "By number of workers", ("floor", "append", "append, 2 workers")),
}
"""By name: the group, the title, and the questions of other groups that are shown, too."""
BESIDE: Mapping[str, Sequence[str]] = {"workers": ("append", "append, 2 workers")}
"""By group: the questions of other groups that its table has, too, on any number of processors."""


def render(report: Row, text: str) -> str:
    """The page's text with its parts replaced; raises LookupError for an unknown part, row or figure."""
    parts: dict[str, Callable[[Row], str]] = {
        "setting": _setting,
        "goals": _goals,
        **{group: _group(group) for group in GROUPS},
        "profile": _profile,
    }

    def written(part: re.Match[str]) -> str:
        kind, what = part[2], part[3]
        if kind == "bench":
            return parts[what](report)
        if kind == "plot":
            return f"![{PLOTS[what][1]}](assets/{what}.svg)\n"
        chosen = [" ".join(choice.split()) for choice in what.split(";")]
        return (_chosen_rates if kind == "rates" else _chosen_figures)(report["summary"], chosen)

    return _PART.sub(lambda part: f"{part[1]}{written(part)}{part[4]}", text)


def plots(report: Row) -> dict[str, str]:
    """File names and SVG; empty if nothing was measured."""
    charts = {}
    for name, (group, title, ours) in PLOTS.items():
        lines = [line for line in report["summary"] if RATE in line and "case" not in line]
        if any(line["group"] == group for line in lines):
            bars = [_bar(line) for line in lines if line["group"] == group or line["question"] in ours]
            charts[f"{name}.svg"] = chart(title, "records per second", sorted(bars, key=lambda bar: -bar.value))
    return charts


def _bar(line: Row) -> Bar:
    is_ours = line["question"].startswith(("append", "upsert, ")) or line["question"] == "upsert"
    return Bar(_name(line), line[RATE], line["min"], line["max"], is_ours, _guarantee(line))


def _guarantee(line: Row) -> str:
    """The guarantee that the script printed, or the known one; empty if a row is about something else."""
    question = QUESTIONS.get(_plain(line["question"]))
    guarantee: str = line.get("guarantee") or (GUARANTEES.get(question.script, "") if question is not None else "")
    return guarantee.partition(":")[0]


def with_verdicts(report: Row) -> Row:
    """The report with summary and goals computed from its rows, by the present questions and goals."""
    rows, runs = report["rows"], report["runs"]
    suffixes = ["", *{f" ({run['cores_used']} processors)" for run in runs}]
    against = {
        q.name + suffix: [base if q.cases else base + suffix for base in q.against]
        for q in QUESTIONS.values()
        for suffix in suffixes
    }
    return {"runs": runs, "goals": judge(rows, runs), "summary": summary(rows, against), "rows": rows}


def joined(report: Row, other: Row) -> Row:
    """The report with the runs of another, which may be of another machine: no ratio spans two runs.

    Raises ValueError if both have rows of one question, whose medians would mix two machines.
    """
    both = {row["question"] for row in report["rows"]} & {row["question"] for row in other["rows"]}
    if both:
        raise ValueError(f"both reports have {', '.join(sorted(both))}: continue the first with run.py --resume")
    last = max(run["run"] for run in report["runs"])
    runs, rows = ([{**entry, "run": entry["run"] + last} for entry in other[part]] for part in ("runs", "rows"))
    return {"runs": [*report["runs"], *runs], "rows": [*report["rows"], *rows]}


def shown(report: Row) -> str:
    """The report as text, with one row per line."""
    rows = ",\n".join(json.dumps(row) for row in report["rows"])
    rest = {name: value for name, value in report.items() if name != "rows"}
    return json.dumps(rest, indent=1)[:-2] + f',\n "rows": [\n{rows}\n ]\n}}\n'


# -- the parts ------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---" if n == 0 or name in _LEFT else "--:" for n, name in enumerate(head)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


_LEFT = {"ratios within a round", "what it is", "figures", "how", ""}


def _setting(report: Row) -> str:
    """A line for each machine: its servers, versions and runs."""
    runs: dict[str, list[str]] = {}
    for run in report["runs"]:
        machine, versions = run["machine"], run["versions"]
        settings = ", ".join(f"`{name}={value}`" for name, value in run["postgres_settings"].items())
        busy = statistics.median(row["busy_percent"] for row in report["rows"] if row["run"] == run["run"])
        where = (
            f"{run['records']:,} records of `{run['kind']}`; servers and subjects on {run['cores_used']} of"
            f" {machine['cores']} processors ({machine['processor']}), {machine['memory_gib']} GiB,"
            f" {machine['system']}; {', '.join(run['servers'])};"
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
    """A table of goals and figures, then what limits the missed goals."""
    tables = ""
    for processors in dict.fromkeys(goal["processors"] for goal in goals):
        mine = [goal for goal in goals if goal["processors"] == processors]
        where = "with any number of processors" if processors is None else f"with {processors} processors"
        tables += _table([where, *_GOALS_HEAD], [_goal(goal) for goal in mine]) + "\n"
    limits: dict[str, list[str]] = {}
    for goal in goals:
        if goal["met"] is False:
            limits.setdefault(goal["limit"], []).append(f"*{goal['goal']}*")
    return tables + "".join(f"- {'; '.join(dict.fromkeys(names))}: {limit}\n" for limit, names in limits.items())


_GOALS_HEAD = ("before", "bar", "far goal", "figure (least-most)", "median of", "")


def _goal(goal: Row) -> list[str]:
    figure, least, most = (_number(goal[name]) for name in ("figure", "least", "most"))
    met = "too few rounds" if goal["met"] is None and goal["figure"] is not None else _MET[goal["met"]]
    far = _escape(goal["far_goal"] or "")
    spread = figure if least == most else f"{figure} ({least}-{most})"
    rounds = {0: "-", 1: "one run"}.get(goal["rounds"], f"{goal['rounds']} rounds")
    return [goal["goal"], _number(goal["before"]), _escape(goal["bar"]), far, spread, rounds, met]


def _group(group: str) -> Callable[[Row], str]:
    def part(report: Row) -> str:
        if not any(line["group"] == group for line in report["summary"]):
            return "Not measured yet.\n"
        others = BESIDE.get(group, ())
        lines = [line for line in report["summary"] if line["group"] == group or _plain(line["question"]) in others]
        asked_again = {line["question"] for line in lines if "skipped" not in line}
        return group_tables([line for line in lines if "skipped" not in line or line["question"] not in asked_again])

    return part


def group_tables(lines: Sequence[Row]) -> str:
    """The tables of a group's lines: those with rates, and those with other figures."""
    tables = ""
    if rated := [line for line in lines if RATE in line or "skipped" in line]:
        tables = _rates(rated)
    if others := [line for line in lines if RATE not in line and "skipped" not in line]:
        tables += ("\n" if tables else "") + _figures(others)
    return tables


def _chosen_rates(lines: Sequence[Row], choices: Sequence[str]) -> str:
    """A row for each of the questions, with its rate and its ratios to the questions that the choice names."""
    rows = []
    for choice in choices:
        name, *bases = choice.split(" ÷ ")
        line = _line(lines, name)
        ratios = "; ".join(f"{line['ratios'][base][0]:.2f} of {label_of(base)}" for base in bases)
        rows.append([_name(line), f"{line[RATE]:,}", ratios])
    return _table(["", "records/s", "ratios within a round"], rows)


def _chosen_figures(lines: Sequence[Row], choices: Sequence[str]) -> str:
    """A row for each chosen case, with the figures that the choices name, equal in all of them."""
    rows, head = [], list[str]()
    for choice in choices:
        if (parts := _FIGURES.fullmatch(choice)) is None:
            raise LookupError(f"{choice}: must be a question and [figures]")
        line, head = _line(lines, parts[1]), parts[2].split(", ")
        rows.append([line.get("case") or _name(line), *(_number(line["figures"][figure]) for figure in head)])
    return _table(["", *(figure.replace("_", " ") for figure in head)], rows)


def _line(lines: Sequence[Row], name: str) -> Row:
    """The line of a question, or of a case: ``question: case``."""
    question, _, case = name.partition(": ")
    for line in lines:
        if (line["question"], line.get("case", "")) == (question, case):
            return line
    raise LookupError(f"{name!r} is not in the report")


def _profile(report: Row) -> str:
    """By stage, without a key and with one; the figure of ``all of it`` is the ceiling."""
    lines = [line for line in report["summary"] if line["group"] == "profile" and "case" in line]
    if not lines:
        return "Not measured yet.\n"
    names = list(dict.fromkeys(line["question"] for line in lines))
    figures = {(line["question"], line["case"]): line["figures"] for line in lines}
    stages = list(dict.fromkeys(line["case"] for line in lines))
    head = [
        "where",
        *(f"{what}, {'key' if 'key' in name else 'no key'}" for name in names for what in ("CPU µs", "elapsed µs")),
    ]
    rows = [
        [stage, *(_us(figures.get((name, stage), {}), key) for name in names for key in ("cpu_us", "elapsed_us"))]
        for stage in stages
    ]
    ceilings = ""
    for name in names:
        ceiling = {key: value for key, value in figures.get((name, "all of it"), {}).items() if not key.endswith("_us")}
        ceilings += f"- {'With a key' if 'key' in name else 'Without a key'}, records/s: {_told(ceiling, {})}.\n"
    return f"{_table(head, rows)}\n{ceilings}"


def _us(figures: Mapping[str, float], key: str) -> str:
    return f"{figures[key]:.2f}" if key in figures else ""


def _rates(lines: Sequence[Row]) -> str:
    rows = []
    for line in lines:
        if "skipped" in line:
            rows.append([_name(line), "-", "", "", "", f"not run: {_flat(line['skipped'])}"])
            continue
        ratios = "; ".join(
            f"{_spread(*numbers)} of {label_of(base)}" for base, numbers in line.get("ratios", {}).items()
        )
        own = {name: value for name, value in line["figures"].items() if name not in _PLAIN}
        kind = "" if "case" in line or "guarantee" in line else line.get("mode", "")
        others = _told(own, line["figures_range"])
        what = "; ".join(part for part in (line.get("version", ""), kind, _guarantee(line), others) if part)
        rate, least_most = f"{line[RATE]:,}", f"{line['min']:,}-{line['max']:,}"
        rows.append([_name(line), rate, least_most, _cpu(line), ratios, _flat(what)])
    head = ["question", "records/s", "least-most", "CPU µs a record", "ratios within a round", "what it is"]
    return _table(head, rows)


def _spread(median: float, least: float, most: float, digits: int = 2) -> str:
    if least == most:
        return f"{median:.{digits}f}"
    return f"{median:.{digits}f} ({least:.{digits}f}-{most:.{digits}f})"


def _cpu(line: Row) -> str:
    if CPU not in line:
        return "-"
    least, most = line["cpu_us_range"]
    return _spread(line[CPU], least, most, 2 if line[CPU] < 100 else 0)


def _figures(lines: Sequence[Row]) -> str:
    rows = [[_name(line), _told(line["figures"], line["figures_range"])] for line in lines]
    return _table(["question", "figures"], rows)


def _told(figures: Mapping[str, float], ranges: Mapping[str, Sequence[float]]) -> str:
    """Medians, each with its least and most if the rounds differ."""
    return ", ".join(
        f"{name.replace('_', ' ')} {_number(value)}"
        + (f" ({'-'.join(map(_number, ranges[name]))})" if name in ranges else "")
        for name, value in figures.items()
    )


def _name(line: Row) -> str:
    label = label_of(line["question"])
    return _flat(f"{label}: {line['case']}" if "case" in line else label)


def label_of(question: str) -> str:
    """The question's name in tables and plots."""
    known = QUESTIONS.get(_plain(question))
    return known.label + question.removeprefix(known.name) if known is not None else question


def _plain(question: str) -> str:
    """The question's name without the processors that it was asked on."""
    return re.sub(r" \(\d+ processors\)$", "", question)


def _flat(text: str) -> str:
    return " ".join(_escape(text.replace("|", "\\|")).split())


def _escape(text: str) -> str:
    return text.replace("<", "&lt;").replace(">", "&gt;")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def main() -> int:
    """Write pages, plots and copy."""
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    reports = [json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:]]
    report = with_verdicts(reduce(joined, reports))
    ASSETS.mkdir(exist_ok=True)
    COPY.write_text(shown(report), encoding="utf-8")
    for old in ASSETS.glob("*.svg"):
        old.unlink()
    for name, svg in plots(report).items():
        (ASSETS / name).write_text(svg, encoding="utf-8")
    for page in PAGES:
        page.write_text(render(report, page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

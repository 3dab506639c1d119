"""What the benchmarks report of their rows: medians, ratios within a round, goals. On rows that were not measured."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import Any

import pytest

import goals
import microseconds
import page
import report
import show
from goals import GOALS, Goal
from questions import GROUPS, HERE, QUESTIONS, chosen, with_bases


def row(question: str, rate: float | None, *, run: int = 1, n: int = 1, **more: Any) -> dict[str, Any]:
    rates = {} if rate is None else {"records_per_second": rate}
    return {"question": question, "group": "core", "run": run, "round": n, "mode": "as it is", **rates, **more}


def three(question: str, *rates: float, **more: Any) -> list[dict[str, Any]]:
    return [row(question, rate, n=n, **more) for n, rate in enumerate(rates, 1)]


FLOOR = Goal("of the floor", 0.65, "append", "floor")


def test_a_goal_is_met_by_the_median_of_the_ratios_within_a_round() -> None:
    # The medians of the rates alone would give 700 / 1,000.
    rows = [*three("floor", 1000, 2000, 1000), *three("append", 600, 1400, 700)]
    judged = FLOOR.judge(rows, 2)
    assert (judged["figure"], judged["met"], judged["bar"]) == (0.7, True, ">= 0.65")
    assert judged["how"] == "median of 3 rounds: records_per_second of 'append' / 'floor', within a round"


def test_a_goal_is_missed_below_its_bar() -> None:
    rows = [*three("floor", 1000, 1000, 1000), *three("append", 649, 649, 900)]
    assert FLOOR.judge(rows, 2)["met"] is False


@pytest.mark.parametrize(
    "rows",
    [
        [],
        three("append", 700, 700, 700),
        three("floor", 1000, 1000, 1000),
        [*three("floor", 1000, 1000, 1000, run=1), *three("append", 900, 900, 900, run=2)],
        [*three("floor", 1000, 1000, 1000), *(row("append", None, n=n, skipped="failed: x") for n in (1, 2, 3))],
    ],
    ids=["nothing", "no floor", "no append", "another run", "failed"],
)
def test_what_was_not_measured_in_the_same_round_has_no_figure_and_is_not_met(rows: list[dict[str, Any]]) -> None:
    judged = FLOOR.judge(rows, 2)
    assert (judged["figure"], judged["met"]) == (None, None)
    assert judged["how"].startswith("not measured: ")


def test_of_fewer_than_three_rounds_nothing_is_said() -> None:
    judged = FLOOR.judge([*three("floor", 1000, 1000), *three("append", 900, 900)], 2)
    assert (judged["figure"], judged["met"]) == (0.9, None)
    assert "fewer than 3" in judged["how"]


def test_the_table_says_of_how_many_rounds_a_figure_is_the_median() -> None:
    rows = [*three("floor", 1000, 1000, 1000), *three("append", 700, 700, 700), row("claims", None, claim_ms=2.5)]
    claims = Goal("claims", 3, "claims", key="claim_ms", at_most=True, once=True)
    unasked = Goal("of another", 0.5, "append", "another")
    judged = [goal.judge(rows, 2) for goal in (FLOOR, claims, unasked)]
    assert [goal["rounds"] for goal in judged] == [3, 1, 0]
    assert judged[1]["how"] == "one run: claim_ms of 'claims'"
    head, _, *lines = page.goals_table(judged).splitlines()
    assert head.endswith("| figure (least-most) | median of |  |")
    assert [line.split(" | ")[-3:] for line in lines[:3]] == [
        ["0.7", "3 rounds", "met |"],
        ["2.5", "one run", "met |"],
        ["-", "-", "not measured |"],
    ]


def test_one_of_several_rounds_is_no_median() -> None:
    judged = FLOOR.judge([row("floor", 1000), row("append", 900)], 2)
    assert (judged["rounds"], judged["met"]) == (1, None)
    assert judged["how"].startswith("one run: ")
    assert "| one run | too few rounds |" in page.goals_table([judged])


def test_a_table_may_have_lines_of_other_groups_beside_its_own() -> None:
    lines = [
        {"question": question, "group": group, "figures": {}, "figures_range": {}, report.RATE: 5, "min": 4, "max": 6}
        for question, group in [
            ("append", "core"),
            ("upsert", "core"),
            ("append, 2 workers (4 processors)", "core"),
            ("append, 3 workers", "workers"),
        ]
    ]
    text = "<!-- bench:workers -->\n<!-- /bench -->"
    rendered = page.render({"summary": lines}, text)
    assert [name for name in ("append |", "upsert |", "append, 2 workers (4 processors) |") if name in rendered] == [
        "append |",
        "append, 2 workers (4 processors) |",
    ]
    assert "Not measured yet" in page.render({"summary": lines[:3]}, text)


def test_questions_asked_on_another_machine_are_added_as_other_runs() -> None:
    ours = {
        "runs": [{"run": 1, "cores_used": 4}, {"run": 2, "cores_used": 2}],
        "rows": [{"question": "append", "run": 2}],
    }
    other = {"runs": [{"run": 1, "cores_used": 2}], "rows": [{"question": "debezium", "run": 1}]}
    both = page.joined(ours, other)
    assert [(run["run"], run["cores_used"]) for run in both["runs"]] == [(1, 4), (2, 2), (3, 2)]
    assert [(row["question"], row["run"]) for row in both["rows"]] == [("append", 2), ("debezium", 3)]
    with pytest.raises(ValueError, match="both reports have append"):
        page.joined(ours, ours)


def test_a_figure_of_its_own_may_have_a_most_and_be_measured_once() -> None:
    goal = Goal("claims", 3, "claims", key="claim_ms", case="1,000", at_most=True, once=True)
    rows = [row("claims", None, mode="10 partitions", claim_ms=0.1), row("claims", None, mode="1,000", claim_ms=3.1)]
    judged = goal.judge(rows, 2)
    assert (judged["figure"], judged["met"], judged["bar"]) == (3.1, False, "<= 3")


def test_a_goal_on_other_processors_than_the_reports_has_rows_of_its_own() -> None:
    goal = Goal("of the floor", 0.65, "append", "floor", processors=4)
    rows = [*three("floor", 1000, 1000, 1000), *three("append", 900, 900, 900)]
    assert goal.judge(rows, 4)["figure"] == 0.9
    assert goal.judge(rows, 2)["figure"] is None
    rows += [*three("floor (4 processors)", 1000, 1000, 1000), *three("append (4 processors)", 700, 700, 700)]
    assert goal.judge(rows, 2)["figure"] == 0.7


def test_cpu_time_is_of_a_record_and_a_missed_goal_names_its_limit() -> None:
    goal = Goal("cpu", 2.1, "append", key=report.CPU, at_most=True, limit="decode: profile")
    rows = three("append", 1, 1, 1, cpu_seconds=5, records=2_000_000)
    judged = goal.judge(rows, 2)
    assert (judged["figure"], judged["met"], judged["limit"]) == (2.5, False, "decode: profile")


def test_every_goal_is_in_every_report() -> None:
    judged = goals.judge([], [])
    assert [goal["goal"] for goal in judged] == [goal.goal for goal in GOALS]
    assert all(goal["met"] is None for goal in judged)


def test_every_goal_asks_for_questions_that_there_are() -> None:
    for goal in GOALS:
        assert {goal.of, goal.to or goal.of} <= set(QUESTIONS), goal.goal
    assert len({(goal.goal, goal.processors) for goal in GOALS}) == len(GOALS)


def test_the_goals_ask_for_what_their_processors_need() -> None:
    two, four = set(goals.ASKED[2]), set(goals.ASKED[4])
    assert {"append", "floor", "append, 1", "loop, 1", "flink xa"} <= two
    assert "append, 2 workers" in four - two
    assert (two | four) <= set(QUESTIONS)


def test_every_question_has_a_label_of_its_own() -> None:
    labels = [question.label for question in QUESTIONS.values()]
    assert len(set(labels)) == len(labels)
    assert QUESTIONS["seeds, sync"].label == "kafka-python, commit after each poll"
    assert QUESTIONS["append, 1"].label == "Seekpoint append, 1"
    assert page.label_of("append, 1 (2 processors)") == "Seekpoint append, 1 (2 processors)"


def test_an_estimate_is_in_proportion_to_the_records_of_a_whole_topic() -> None:
    rows = [
        row("append", 1, whole_seconds=4, records=500),
        row("append", 1, n=2, whole_seconds=6, records=500),
        row("append, 1", 1, whole_seconds=3, records=50),
        row("claims", None, case="a", whole_seconds=7),
        row("claims", None, case="b", whole_seconds=7),
    ]
    durations = show.durations(rows, [{"run": 1, "records": 500}], 1000)
    assert durations == {"append": 10, "append, 1": 3, "claims": 7}


def test_a_line_has_median_least_most_and_ratios() -> None:
    rows = [*three("floor", 1000, 900, 1100), *three("append", 500, 600, 700, records=2_000_000, cpu_seconds=5)]
    floor, append = report.summary(rows, {"append": ["floor", "loop"]})
    assert (floor["records_per_second"], floor["min"], floor["max"], floor["rounds"]) == (1000, 900, 1100, 3)
    assert append["ratios"] == {"floor": [0.636, 0.5, 0.667]}, "loop was not run: no ratio to it"
    assert append["figures"] == {"cpu_seconds": 5}
    assert (append["cpu_us_per_record"], append["cpu_us_range"]) == (2.5, [2.5, 2.5])


def test_what_was_skipped_says_why() -> None:
    rows = [row("flink xa", None, skipped="no jars"), row("append", 500)]
    line, _ = report.summary(rows, {"flink xa": ["append"]})
    assert line == {"question": "flink xa", "group": "core", "rounds": 0, "skipped": "no jars"}


def test_a_round_that_failed_does_not_count() -> None:
    rows = [row("append", 500), row("append", None, n=2, skipped="failed: x"), row("append", 700, n=3)]
    (line,) = report.summary(rows, {})
    assert (line["rounds"], line["records_per_second"]) == (2, 600)


def test_cases_of_a_script_are_lines_of_their_own() -> None:
    rows = [row("handlers", 10, case="ORM"), row("handlers", 30, case="Core"), row("handlers", 20, case="ORM", n=2)]
    lines = report.summary(rows, {"handlers": ["ORM", "append"]})
    assert [(line["case"], line["records_per_second"]) for line in lines] == [("ORM", 15), ("Core", 30)]
    assert [line["ratios"] for line in lines] == [{}, {"ORM": [3.0, 3.0, 3.0]}]


def test_the_registry_names_scripts_groups_and_bases_that_there_are() -> None:
    for question in QUESTIONS.values():
        script = question.script.replace(".", "/") + ".py" if question.is_peer else question.script
        assert (HERE / script).is_file(), question.name
        assert question.group in GROUPS
        assert question.cases or set(question.against) <= set(QUESTIONS), question.name


LEDGER = ["ledger, 1,000", "ledger, 10,000", "append, unobserved", "append, observed"]


def test_questions_are_chosen_by_group_and_name_with_what_they_are_compared_with() -> None:
    asked = chosen(["ledger", "append, key"])
    assert [q.name for q in asked] == ["append, key", *LEDGER]
    assert [q.name for q in with_bases(asked)] == [
        "floor, key",
        "loop, key",
        "bare, key",
        "append, key",
        *LEDGER,
    ]
    assert {q.name for q in chosen([], quick=True)} == {"floor", "loop", "seeds, sync", "append", "upsert"}
    with pytest.raises(LookupError, match="nonsense"):
        chosen(["nonsense"])


def test_each_stage_of_the_microseconds_is_a_function_of_the_library() -> None:
    for stage, place in microseconds.STAGES.items():
        module, _, path = place.partition(":")
        function = attrgetter(path)(import_module(module))
        assert callable(function), stage

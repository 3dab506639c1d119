"""What ``seekpoint spark verify`` prints of tables whose frames join inputs."""

from __future__ import annotations

import json

import pytest
import typer

from seekpoint.cli.verify import print_report
from seekpoint.jobs.reload import Difference, Report

ROWS = Difference("public.orders", 5, 0, 0, 1, (), ())
SUMS = Difference("public.sales", 8, 1, 1, 0, (), ("customers",))
EQUAL = Difference("public.sales", 9, 0, 0, 0, (), ("customers",))
SENTENCE = (
    "public.sales: rebuilt rows are joined with customers as it is now, live rows with its values when they were "
    "applied\n"
)


def report(*tables: Difference) -> Report:
    return Report(tables, {"sales orders/0": 7}, 0)


def test_differences_that_a_changed_input_may_explain_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        print_report(report(ROWS, SUMS), as_json=False)
    output = capsys.readouterr().out
    assert ended.value.exit_code == 1
    assert output.count("as it is now") == 1
    assert SENTENCE in output
    with pytest.raises(typer.Exit):
        print_report(report(ROWS, SUMS), as_json=True)
    assert [table["inputs"] for table in json.loads(capsys.readouterr().out)["tables"]] == [[], ["customers"]]


def test_equal_tables_say_nothing_of_their_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(report(EQUAL), as_json=False)
    assert "customers" not in capsys.readouterr().out

"""A worker in a child process: its reports arrive, whatever the program prints between them."""

from __future__ import annotations

from seekpoint.testing.child_process import ChildProcess, start_python

PRINTING = """
from seekpoint.testing.child_process import report

print("before")
report("Began", number=1)
print(7, flush=True)
print({"amount": 3})
print("the beginning of a line", end="", flush=True)
report("Ended", number=2)
print(" and its end")
"""


def test_what_a_program_prints_is_no_report_and_is_in_its_tail() -> None:
    with ChildProcess(start_python("-c", PRINTING)) as process:
        assert process.ended() == 0, process.tail()
        reports = [(report["event"], report["number"]) for report in process.reports]
        assert reports == [("Began", 1), ("Ended", 2)]
        printed = ["before", "7", "{'amount': 3}", "the beginning of a line", " and its end"]
        assert process.errors.splitlines() == printed
        assert "the beginning of a line" in process.tail()

"""``make test`` leaves out long tests, but no promise: each invariant, sink and command has a test on real servers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import seekpoint
from seekpoint.cli.app import every_command
from seekpoint.sinks.arrow import AppendArrow
from seekpoint.sinks.base import TableSink
from support.docs_pages import ROOT
from support.every_row import for_each

FENCE = "tests/postgres/ledger/test_fence.py"
CLI_BATCH, CLI_EXPORT = "tests/jobs/cli/test_cli_batch.py", "tests/jobs/cli/test_cli_export.py"
CLI_RELOAD, CLI_VERIFY = "tests/jobs/cli/test_cli_reload.py", "tests/jobs/cli/test_cli_verify.py"
DEAD_LETTERS, DEV = "tests/postgres/test_cli_dead_letters.py", "tests/kafka/test_cli_dev.py"
OFFSETS, OPERATORS = "tests/kafka/test_cli_offsets.py", "tests/kafka/test_cli_operators.py"
SCHEMA, LOSSES = "tests/migrations/test_cli.py", "tests/kafka/test_losses.py"

INVARIANTS = {
    "I1": f"{FENCE}::test_rows_and_offsets_appear_together",
    "I2": f"{FENCE}::test_a_zombie_is_refused_at_advance",
    "I3": f"{FENCE}::test_another_position_is_refused",
    "I4": f"{LOSSES}::test_a_topic_that_was_created_again",
    "I5": f"{OFFSETS}::test_a_running_worker_obeys_within_a_second",
    "I6": "tests/kafka/test_mirror.py::test_a_start_at_committed_offsets_refuses_a_mirrors",
}
SINKS = {
    seekpoint.Accumulate: "tests/postgres/test_accumulate.py",
    seekpoint.Append: "tests/postgres/test_append.py",
    seekpoint.Upsert: "tests/postgres/test_upsert.py",
    AppendArrow: "tests/postgres/test_arrow.py",
}
COMMANDS = {
    "batch": f"{CLI_BATCH}::test_a_batch_applies_what_is_new",
    "db check": f"{SCHEMA}::test_upgrade_and_check",
    "db downgrade": "tests/migrations/test_downgrade.py",
    "db revision": "tests/migrations/test_host.py",
    "db roles": "tests/postgres/test_roles.py::test_the_command_prints_the_script_or_the_rights",
    "db sql": f"{SCHEMA}::test_sql_needs_no_database_and_makes_the_ledger",
    "db table": "tests/kafka/test_cli.py::test_the_command_prints_the_table_and_what_it_lacks",
    "db upgrade": f"{SCHEMA}::test_upgrade_and_check",
    "dead-letters discard": f"{DEAD_LETTERS}::test_discard_is_a_dry_run_without_apply",
    "dead-letters edit": f"{DEAD_LETTERS}::test_edit_is_a_dry_run_without_apply",
    "dead-letters export": f"{DEAD_LETTERS}::test_export_writes_json_lines",
    "dead-letters list": f"{DEAD_LETTERS}::test_list_shows_the_open_ones",
    "dead-letters purge": "tests/postgres/test_purge.py::test_closed_ones_are_purged_by_their_age",
    "dead-letters replay": f"{DEAD_LETTERS}::test_replay_applies_and_says_what_became_of_each",
    "dead-letters replay-request": f"{DEAD_LETTERS}::test_a_running_worker_is_asked_to_replay",
    "dead-letters show": f"{DEAD_LETTERS}::test_show_prints_the_whole_dead_letter_and_what_can_be_done",
    "dev env": f"{DEV}::test_env_names_the_pair_to_a_shell",
    "dev produce": f"{DEV}::test_lines_become_values",
    "dev sql": f"{DEV}::test_sql_prints_what_each_statement_answers",
    "dev topic": f"{DEV}::test_a_topic_is_created_once",
    "doctor": "tests/postgres/test_doctor.py::test_the_command_answers_with_exit_code_and_without_a_password",
    "explain": "tests/postgres/ledger/test_explain_group.py::test_the_command",
    "export": f"{CLI_EXPORT}::test_an_export_and_the_next_one",
    "exporter": "tests/kafka/test_metrics.py::test_the_exporter_answers_until_sigterm",
    "groups forget": "tests/postgres/ledger/test_forget.py::test_a_group_is_forgotten_and_comes_back_at_its_offsets",
    "groups list": f"{OPERATORS}::test_groups_are_listed",
    "groups pause": f"{OPERATORS}::test_a_pause_is_a_plan_first",
    "groups replace": "tests/kafka/test_replace.py::test_a_newer_handler_takes_the_groups_place",
    "groups resume": f"{OPERATORS}::test_a_pause_is_a_plan_first",
    "lost accept": f"{LOSSES}::test_a_running_worker_resumes",
    "lost list": f"{LOSSES}::test_a_running_worker_resumes",
    "offsets export": f"{OFFSETS}::test_offsets_are_exported_and_read_from_files",
    "offsets history": f"{OFFSETS}::test_history_names_who_did_what",
    "offsets import": "tests/kafka/test_mirror.py::test_a_group_begins_at_the_commits_of_a_plain_consumer",
    "offsets mirror": "tests/kafka/test_mirror.py"
    "::test_a_stopped_groups_positions_are_written_where_a_plain_consumer_continues",
    "offsets reset": f"{OFFSETS}::test_a_backward_reset_is_a_plan_first_and_is_read_again",
    "reload abort": f"{CLI_RELOAD}::test_abort_ends_a_run_once",
    "reload resume": f"{CLI_RELOAD}::test_a_cut_over_that_is_refused_is_resumed_with_other_bounds",
    "reload run": f"{CLI_RELOAD}::test_a_cut_over_that_is_refused_is_resumed_with_other_bounds",
    "reload status": f"{CLI_RELOAD}::test_status_is_for_people_and_says_what_to_do",
    "reload sweep": f"{CLI_RELOAD}::test_sweep_ends_the_runs_of_drivers_that_are_gone",
    "run": "tests/kafka/test_process.py::test_probes_answer_while_the_worker_runs",
    "spark reload": "tests/jobs/spark/test_cli_spark.py::test_tables_are_rebuilt_once_it_was_shown_what_would_be_done",
    "spark run": "tests/jobs/spark/test_cli_spark.py::test_what_is_there_now_is_applied_and_the_command_ends",
    "spark verify": "tests/jobs/spark/test_cli_spark.py::test_what_is_there_now_is_applied_and_the_command_ends",
    "status": "tests/kafka/test_cli.py",
    "topics accept": f"{LOSSES}::test_a_topic_that_was_created_again",
    "ui": "tests/web/test_serving.py::test_it_serves_until_the_block_ends",
    "verify": f"{CLI_VERIFY}::test_what_differs_is_shown_and_fails",
}
"""Each with a file's test, or with a file of which at least one test is not marked."""
ON_SERVERS = ("tests/jobs/", "tests/kafka/", "tests/migrations/", "tests/postgres/", "tests/web/")


def test_the_table_has_every_command_and_sink() -> None:
    assert sorted(COMMANDS) == sorted(_commands(every_command()))
    assert set(_subclasses(TableSink)) == SINKS.keys()


@for_each([*INVARIANTS.items(), *SINKS.items(), *COMMANDS.items()])
def test_each_promise_has_a_test_in_the_short_suite(row: tuple[object, str]) -> None:
    file, _, name = row[1].partition("::")
    assert file.startswith(ON_SERVERS), f"the tests of {file} need no server, or `make test` leaves them out"
    unmarked = _unmarked(file)
    assert unmarked, f"{file} has no test that always runs"
    assert not name or name in unmarked, f"{name} is marked long, may be skipped, or is not in {file}"


def _subclasses(kind: type) -> Iterator[type]:
    below: list[type] = kind.__subclasses__()
    for part in below:
        if part.__module__.startswith("seekpoint."):
            yield part
            yield from _subclasses(part)


def _commands(command: Any, *path: str) -> Iterator[str]:
    below = getattr(command, "commands", {})
    for name, part in below.items():
        yield from _commands(part, *path, name)
    if path and not below:
        yield " ".join(path)


@cache
def _unmarked(file: str) -> frozenset[str]:
    """Names of a file's tests that always run: no mark, on them or on the module, leaves them out or skips them."""
    tree = ast.parse((Path(ROOT) / file).read_text())
    marks = [ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign) and _is_mark(node)]
    if any(map(_LEFT_OUT.search, marks)):
        return frozenset()
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return frozenset(t.name for t in tests if not any(_LEFT_OUT.search(ast.unparse(d)) for d in t.decorator_list))


_LEFT_OUT = re.compile(r"mark\.(long|skip|skipif|xfail)\b")


def _is_mark(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)

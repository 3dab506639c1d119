"""Limits, start positions, waits, and what an SQLSTATE says about the work."""

from __future__ import annotations

import math
import random
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from seekpoint import Limits, Retry, StartAt
from seekpoint.backoff import Backoff
from seekpoint.errors import ConfigError, SeekpointError
from seekpoint.ledger import GroupLedger
from seekpoint.postgres.sqlstates import Fault, connection_lost, fault, is_data_error, is_transient, sqlstate
from seekpoint.records import Partition
from support.every_row import for_each

NAMES = [field.name for field in fields(Limits)]


WRONG = [0, -1, -0.5, math.nan, math.inf, "5", None, True, timedelta(seconds=5), [5]]


@for_each([(name, value) for name in NAMES for value in WRONG])
def test_a_limit_is_a_finite_number_greater_than_zero(limit: tuple[str, Any]) -> None:
    name, value = limit
    if (name, value) == ("start_wait", None):  # no limit
        assert Limits(start_wait=None) == Limits()
        return
    if (name, value) == ("sample_positions", 0):  # never
        assert Limits(sample_positions=0).sample_positions == 0
        return
    with pytest.raises(ConfigError) as caught:
        Limits(**{name: value})
    whole = name in {"batch_records", "batch_bytes", "waiting"}
    must = "a whole number, 1 or greater" if whole else "a finite number of seconds greater than 0"
    must += ", or None for no limit" if name == "start_wait" else ""
    must = "from 1 to 120, or 0 for never" if name == "sample_positions" else must
    assert str(caught.value) == f"Limits({name}={value!r}): must be {must} [SP1001]"


def test_a_share_of_a_record_is_no_limit() -> None:
    with pytest.raises(ConfigError, match="must be a whole number"):
        Limits(batch_records=2.5)  # type: ignore[arg-type]


@for_each([(field.name, value) for field in fields(Retry) for value in (True, "5", None, -1, [1])])
def test_a_retry_of_another_type_is_refused(option: tuple[str, Any]) -> None:
    name, value = option
    with pytest.raises(ConfigError, match=rf"Retry\({name}="):
        Retry(**{name: value})


@for_each([{"batch_records": 5}, Limits, Retry(), 500, "Limits()"])
def test_limits_of_another_type_are_refused(limits: Any) -> None:
    with pytest.raises(ConfigError, match="limits= must be a Limits"):
        GroupLedger("postgresql://unknown@127.0.0.1:1/none", "g", limits=limits)


@for_each(NAMES)
def test_every_limit_can_be_set_and_is_described(name: str) -> None:
    assert getattr(Limits(**{name: 7}), name) == 7
    assert f"``{name}``" in (Limits.__doc__ or "")


def test_start_at_is_a_value() -> None:
    assert StartAt.earliest() == StartAt.earliest() != StartAt.latest()
    assert StartAt.committed().kind == "committed"
    time = datetime(2026, 8, 1, tzinfo=UTC)
    assert StartAt.time(time).moment == time
    assert StartAt.offsets({("b", 1): 5, ("a", 0): 0}).positions == ((Partition("a", 0), 0), (Partition("b", 1), 5))


def test_a_start_time_must_be_aware() -> None:
    with pytest.raises(ConfigError, match=r"give an aware time, e\.g\. datetime\(\.\.\., tzinfo=UTC\)"):
        StartAt.time(datetime(2026, 8, 1))


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({("orders", 0): -1}, "offsets must be 0 or greater, got orders/0: -1"),
        ({"orders": 5}, r"give \{\(topic, partition\): offset\}, got \{'orders': 5\}"),
        ({("orders", 0): "earliest"}, r"give \{\(topic, partition\): offset\}"),
        ({("orders", 0): 3.7}, r"give \{\(topic, partition\): offset\}"),
        ({("orders", 0.0): 3}, r"give \{\(topic, partition\): offset\}"),
        ({("orders",): 5}, r"give \{\(topic, partition\): offset\}"),
        ([("orders", 0, 5)], r"give \{\(topic, partition\): offset\}"),
    ],
)
def test_start_offsets_name_partitions(given_: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StartAt.offsets(given_)


@given(
    st.floats(0.001, 60),
    st.floats(1, 1000),
    st.integers(),
)
def test_waits_double_within_their_bounds(initial: float, times: float, seed: int) -> None:
    ceiling = initial * times
    waits = list(islice(Backoff(initial, ceiling).waits(random.Random(seed)), 30))
    expected = initial
    for wait in waits:
        assert expected / 2 <= wait <= expected
        expected = min(expected * 2, ceiling)
    assert max(waits) <= ceiling
    assert waits[-1] >= min(ceiling, initial * 2**29) / 2


def test_waits_of_workers_that_failed_together_differ() -> None:
    firsts = {round(next(Backoff().waits(random.Random(seed))), 6) for seed in range(100)}
    assert len(firsts) > 90


TRANSIENT, DATA, PROGRAM = Fault.TRANSIENT, Fault.DATA, Fault.PROGRAM


SQLSTATES = {
    None: TRANSIENT,
    "08006": TRANSIENT,  # connection failure
    "40001": TRANSIENT,  # serialization failure
    "40P01": TRANSIENT,  # deadlock
    "53100": TRANSIENT,  # disk full
    "53300": TRANSIENT,  # too many connections
    "57014": TRANSIENT,  # query cancelled, statement_timeout
    "57P01": TRANSIENT,  # terminated by the administrator
    "57P03": TRANSIENT,  # starting up
    "58030": TRANSIENT,  # I/O error
    "25006": TRANSIENT,  # read-only: a standby
    "25P03": TRANSIENT,  # idle in transaction for too long
    "25P04": TRANSIENT,  # transaction_timeout
    "55P03": TRANSIENT,  # lock not available
    "22001": DATA,  # string too long
    "22003": DATA,  # out of range
    "22008": DATA,  # date out of range
    "22021": DATA,  # not in the encoding
    "22P02": DATA,  # not of the type's syntax
    "22P05": DATA,  # a character that has no place in the encoding
    "23502": DATA,  # NOT NULL
    "23503": DATA,  # foreign key
    "23505": DATA,  # unique
    "23514": DATA,  # check
    "23P01": DATA,  # exclusion
    "44000": DATA,  # WITH CHECK OPTION
    "54000": DATA,  # too long for its index
    "54001": DATA,  # JSON too deep for the stack
    "25P02": PROGRAM,  # the transaction is aborted: an error was swallowed
    "28P01": PROGRAM,  # wrong password
    "3D000": PROGRAM,  # no such database
    "42501": PROGRAM,  # no right
    "42601": PROGRAM,  # syntax
    "42703": PROGRAM,  # no such column
    "42P01": PROGRAM,  # no such table
    "0A000": PROGRAM,  # not supported
    "XX000": PROGRAM,  # internal error
    "P0001": DATA,  # RAISE EXCEPTION: a trigger that refuses a row
    "OV404": DATA,  # an application's own class
    "42X01": DATA,  # an application's own, in a class of Postgres
    "UE001": DATA,
    "57X01": TRANSIENT,  # a newer server's, or a pooler's
    "42883": PROGRAM,  # no such function
}


@for_each(SQLSTATES)
def test_what_an_sqlstate_says(code: str | None) -> None:
    assert fault(code) is SQLSTATES[code]


ERRORS: dict[str, type[psycopg.Error]] = {
    code: error
    for error in vars(psycopg.errors).values()
    if isinstance(error, type) and issubclass(error, psycopg.Error) and (code := getattr(error, "sqlstate", None))
}


@given(st.sampled_from(sorted(ERRORS)))
def test_every_error_of_the_driver_is_classified_bare_or_wrapped(code: str) -> None:
    assert len(ERRORS) > 200
    bare = ERRORS[code]("said")
    wrapped = DBAPIError("statement", {}, bare)
    for error in (bare, wrapped):
        assert sqlstate(error) == code
        assert is_transient(error) is (fault(code) is TRANSIENT)
        assert is_data_error(error) is (fault(code) is DATA)
        assert connection_lost(error) is (code[:2] in {"08", "57"})


@pytest.mark.parametrize("kind", [psycopg.OperationalError, psycopg.InterfaceError])
def test_an_error_without_an_sqlstate_is_a_lost_connection(kind: type[psycopg.Error]) -> None:
    assert is_transient(kind("the connection is lost"))
    assert connection_lost(DBAPIError("statement", {}, kind("the connection is lost")))
    assert not is_data_error(kind("the connection is lost"))


def test_a_pool_without_a_free_connection_passes_and_nothing_was_sent() -> None:
    """A job or a replay waits for connections of the application's pool; no COMMIT of it is in doubt."""
    error = PoolTimeout("QueuePool limit of size 1 overflow 0 reached")
    assert is_transient(error)
    assert not connection_lost(error)
    assert not is_data_error(error)


@pytest.mark.parametrize(
    "error", [psycopg.ProgrammingError("cannot adapt"), psycopg.DataError("NUL"), ValueError(), SeekpointError("")]
)
def test_other_errors_do_not_pass_by_themselves(error: Exception) -> None:
    assert not is_transient(error)
    assert not connection_lost(error)

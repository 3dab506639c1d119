"""Classifies database errors by SQLSTATE: transient, data or program error."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

import psycopg
from psycopg import Error, errors
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from seekpoint.records import error_attribute

# The names are those of Postgres' Appendix A.
FEATURE_NOT_SUPPORTED = "0A000"
CARDINALITY_VIOLATION = "21000"
INVALID_TEXT_REPRESENTATION = "22P02"
UNIQUE_VIOLATION, EXCLUSION_VIOLATION = "23505", "23P01"
READ_ONLY_SQL_TRANSACTION = "25006"
IDLE_IN_TRANSACTION_SESSION_TIMEOUT, TRANSACTION_TIMEOUT = "25P03", "25P04"
INVALID_SQL_STATEMENT_NAME = "26000"
INVALID_PASSWORD = "28P01"  # noqa: S105 -- a code
DEPENDENT_OBJECTS_STILL_EXIST = "2BP01"
INVALID_CATALOG_NAME, INVALID_SCHEMA_NAME = "3D000", "3F000"
SERIALIZATION_FAILURE, DEADLOCK_DETECTED = "40001", "40P01"
INSUFFICIENT_PRIVILEGE = "42501"
ACTIVE_SQL_TRANSACTION = "25001"
UNDEFINED_TABLE, UNDEFINED_COLUMN = "42P01", "42703"
UNDEFINED_FUNCTION, UNDEFINED_OBJECT, AMBIGUOUS_FUNCTION = "42883", "42704", "42725"
AMBIGUOUS_PARAMETER, INDETERMINATE_DATATYPE = "42P08", "42P18"
DATATYPE_MISMATCH, CANNOT_COERCE = "42804", "42846"
WRONG_OBJECT_TYPE, INVALID_COLUMN_REFERENCE, GENERATED_ALWAYS = "42809", "42P10", "428C9"
OBJECT_NOT_IN_PREREQUISITE_STATE, OBJECT_IN_USE, LOCK_NOT_AVAILABLE = "55000", "55006", "55P03"
QUERY_CANCELED = "57014"


class Fault(Enum):
    """The three kinds of database errors."""

    TRANSIENT = "try again"
    DATA = "a record's fault"
    PROGRAM = "a mistake in the program or its rights"


# Classes: 08 connection, 40 rollback (serialization, deadlock), 53 resources, 57 operator intervention, 58 system
# error, F0 configuration file. Of the single codes, a read-only transaction means that the server is a standby, after a
# failover.
_TRANSIENT_CLASSES = frozenset({"08", "40", "53", "57", "58", "F0"})
_TRANSIENT_CODES = frozenset(
    {READ_ONLY_SQL_TRANSACTION, *(_ENDED := (IDLE_IN_TRANSACTION_SESSION_TIMEOUT, TRANSACTION_TIMEOUT))}
    | {LOCK_NOT_AVAILABLE, OBJECT_IN_USE}
)
# Transient errors that a single record may cause, in addition to class 40.
_ONE_RECORDS = frozenset({QUERY_CANCELED, LOCK_NOT_AVAILABLE, OBJECT_IN_USE})
# A transaction was rolled back only because of concurrent ones.
_CONFLICTS = frozenset({SERIALIZATION_FAILURE, DEADLOCK_DETECTED, LOCK_NOT_AVAILABLE})
# 22 data exception, 23 integrity constraint violation, 44 WITH CHECK OPTION violation, 54 program limit exceeded
# (a value too long for an index, JSON nested too deep for the server's stack), P0 raised by a function in PL/pgSQL
# (a trigger that refuses a row).
_DATA_CLASSES = frozenset({"22", "23", "44", "54", "P0"})
# A parameter has the type of the record's value, so true for a number is 42804 (in a cast 42846), not 22P02. And 21000
# means that the batch gave one ON CONFLICT DO UPDATE two rows of the same key.
_DATA_CODES = frozenset({CARDINALITY_VIOLATION, DATATYPE_MISMATCH, CANNOT_COERCE})

# Errors of a statement that was composed or prepared before its table was altered, so that it has parameters or casts
# of the old types.
_ALTERED = frozenset(
    {DATATYPE_MISMATCH, CANNOT_COERCE, UNDEFINED_FUNCTION, UNDEFINED_COLUMN, UNDEFINED_OBJECT, AMBIGUOUS_FUNCTION}
    | {AMBIGUOUS_PARAMETER, INDETERMINATE_DATATYPE, INVALID_COLUMN_REFERENCE, GENERATED_ALWAYS}
)


def fault(sqlstate: str | None) -> Fault:
    """Classify an SQLSTATE; None means a lost connection.

    A code that Postgres does not define is an application's own, raised by a trigger or a function: a data error. In a
    class of transient errors it is transient, because newer servers and poolers add codes to these classes.
    """
    if sqlstate is None or sqlstate[:2] in _TRANSIENT_CLASSES or sqlstate in _TRANSIENT_CODES:
        return Fault.TRANSIENT
    is_data = sqlstate[:2] in _DATA_CLASSES or sqlstate in _DATA_CODES or not _is_defined(sqlstate)
    return Fault.DATA if is_data else Fault.PROGRAM


def may_be_one_records(sqlstate: str | None) -> bool:
    """Whether one record may cause the transient error: a conflict, a held lock, a timeout.

    Otherwise the server or the connection caused it, and any record would have failed.
    """
    return sqlstate is not None and (sqlstate[:2] == "40" or sqlstate in _ONE_RECORDS)


_INPUT_CLASSES = frozenset({"42", "XX"})
# How an error's context begins if the server was reading a value: "COPY t, line 1, column c: ..", "unnamed portal
# parameter $1 = .."; numbers and names are in the same places in every language.
_READING = re.compile(r"COPY [^\n]*\d, \S|[^\n\"]*\$\d+ = ")


def may_be_of_input(code: str | None) -> bool:
    """Whether the code is ambiguous: a type's input function rejected a text, or the statement is wrong."""
    return code is not None and code[:2] in _INPUT_CLASSES


def fault_of_error(error: Error) -> Fault:
    """Classify an error of the driver. A row that a row security policy refuses is a data error.

    The policy's error has the SQLSTATE of a missing privilege, but the server names the function that raised it,
    ``ExecWithCheckOptions``, which does not check privileges. A value refused by its type's input function is also a
    data error, whatever its SQLSTATE: tsquery, jsonpath and ltree raise syntax errors, regclass an undefined table.
    """
    code = error.diag.sqlstate or error.sqlstate
    if may_be_of_input(code) and _READING.match(error.diag.context or ""):
        code = INVALID_TEXT_REPRESENTATION
    if code == INSUFFICIENT_PRIVILEGE and error.diag.source_function == "ExecWithCheckOptions":
        return Fault.DATA
    return fault(code)


def _is_defined(sqlstate: str) -> bool:
    try:
        errors.lookup(sqlstate)
    except KeyError:
        return False
    return True


def driver_error(error: BaseException) -> Any:
    """The driver's error inside an error of SQLAlchemy; any other error unchanged."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a database error; None for a lost connection or any other error."""
    code = error_attribute(driver_error(error), "sqlstate")
    return code if isinstance(code, str) else None


def is_transient(error: BaseException) -> bool:
    """Whether a database error is transient: the statement may succeed when run again.

    False after Ctrl-C: a statement that the user has interrupted must not run again.
    """
    return not was_interrupted(error) and _may_succeed_again(error)


def was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C interrupted a statement in psycopg, and ending that statement raised this error."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _may_succeed_again(error: BaseException) -> bool:
    if isinstance(error, PoolTimeout):  # "QueuePool limit": nothing was sent
        return True
    inner = driver_error(error)
    if not isinstance(inner, psycopg.Error):
        return False
    code = sqlstate(error)
    if code is None:  # the statement never reached the server, or its answer was lost
        is_of_connection = isinstance(inner, psycopg.OperationalError | psycopg.InterfaceError)
        # If the server ends the session right after its answer, psycopg reports two results.
        return is_of_connection or (isinstance(error, DBAPIError) and error.connection_invalidated)
    return fault(code) is Fault.TRANSIENT


def may_be_of_before_alter(error: BaseException) -> bool:
    """Whether the statement may fail only because it was composed or prepared before its table was altered."""
    return sqlstate(error) in _ALTERED


def is_timeout(error: BaseException) -> bool:
    """Whether a statement or its transaction exceeded a timeout, which it would exceed again."""
    return sqlstate(error) in {QUERY_CANCELED, *_ENDED}


def is_ended_by_age(error: BaseException) -> bool:
    """Whether the server ended a session because its transaction was too old, or idle for too long."""
    return sqlstate(error) in _ENDED


def is_conflict(error: BaseException) -> bool:
    """Whether a transaction was rolled back because of concurrent ones."""
    return sqlstate(error) in _CONFLICTS


def is_database_error(error: BaseException) -> bool:
    """Whether psycopg raised the error; handlers may also use other drivers."""
    return isinstance(driver_error(error), psycopg.Error)


def is_data_error(error: BaseException) -> bool:
    """Whether a database error is caused by values: the same rows are refused at every attempt.

    Without an SQLSTATE the statement never reached the server: the driver cannot send a value (a NUL character, a dict
    for a plain parameter).
    """
    inner, code = driver_error(error), sqlstate(error)
    if code is None:
        unwritable = isinstance(inner, psycopg.ProgrammingError) and str(inner).startswith("cannot adapt type")
        return isinstance(inner, psycopg.DataError) or unwritable
    return (fault_of_error(inner) if isinstance(inner, psycopg.Error) else fault(code)) is Fault.DATA


def fault_of(error: BaseException) -> Fault | None:
    """The kind of an error that a statement raised; None if it is not a database error, or has ended the session."""
    if not is_database_error(error):
        return None
    if is_data_error(error):
        return Fault.DATA
    if not _may_succeed_again(error):
        return Fault.PROGRAM  # also errors without an SQLSTATE: the driver refused the statement
    code = sqlstate(error)
    has_ended = code is None or code[:2] == "08" or code[:3] == "57P" or code in _ENDED
    return None if has_ended else Fault.TRANSIENT


def connection_lost(error: BaseException) -> bool:
    """Whether the server's answer is missing, so that the outcome of a COMMIT is unknown."""
    code, was_sent = sqlstate(error), not isinstance(error, PoolTimeout)
    return was_sent and _may_succeed_again(error) and (code is None or code[:2] in {"08", "57"})

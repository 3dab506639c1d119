"""Runs several statements in one round trip, in libpq's pipeline mode.

Direct calls of libpq take a fraction of the time of psycopg's cursors. Parameters are text; results are libpq's own.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

import psycopg
from psycopg import generators
from psycopg.abc import Buffer
from psycopg.adapt import Transformer
from psycopg.errors import InFailedSqlTransaction, error_from_result
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row

from seekpoint.postgres.sqlstates import INVALID_SQL_STATEMENT_NAME

_PLACEHOLDER = re.compile(r"%(?:%|s|\((\w+)\)s)")

Query = tuple[str, Mapping[str, Any]]
"""A statement with the driver's placeholders, and its parameters."""


class Statement(NamedTuple):
    """A statement with ``$1``, ``$2`` ..., and its parameters, as text in the client's encoding.

    ``is_prepared``: the server keeps the plan and the parameters' types. Not for statements on users' tables, which may
    be altered.
    """

    text: str
    values: Sequence[Buffer | None] = ()
    is_prepared: bool = False


class StatementFailed(Exception):  # noqa: N818 -- control: the caller raises the error
    """Statement ``number``, counted from 0, failed; the later ones were not run.

    ``results``, if given, start with the answers to the earlier statements.
    """

    def __init__(self, number: int, error: psycopg.Error, results: Sequence[PGresult] = ()) -> None:
        super().__init__(str(error))
        self.number, self.error, self.results = number, error, results


_BEGIN = Statement("BEGIN ISOLATION LEVEL READ COMMITTED")
_COMMIT, _ROLLBACK = Statement("COMMIT"), Statement("ROLLBACK")

# The prepared statements' names, by text.
_prepared: WeakKeyDictionary[psycopg.Connection[Any], dict[str, bytes]] = WeakKeyDictionary()
_numbers = count()


def round_trip(driver: psycopg.Connection[Any], statements: Iterable[Statement]) -> list[PGresult]:
    """Send the statements and await their answers; returns the result of each, in binary.

    Raises StatementFailed for the first statement that failed, psycopg.OperationalError if the connection is lost.
    """
    pgconn, encoding, prepared = driver.pgconn, driver.info.encoding, _prepared.setdefault(driver, {})
    names = None if driver.prepare_threshold is None else prepared  # None: the connection is through a pooler
    pgconn.enter_pipeline_mode()
    sent = [
        number for number, statement in enumerate(statements) for _ in range(_send(pgconn, statement, encoding, names))
    ]
    pgconn.pipeline_sync()
    results = driver.wait(_answers(pgconn, len(sent)))
    with suppress(psycopg.OperationalError):  # the server has ended the session
        pgconn.exit_pipeline_mode()
    for number, result in zip(sent, results, strict=False):
        if result.status == ExecStatus.FATAL_ERROR:
            prepared.clear()  # statements after the failed one were not prepared
            raise StatementFailed(number, error_from_result(result, encoding), results)
    return list(dict(zip(sent, results, strict=True)).values())


def begin_and_run(driver: psycopg.Connection[Any], statements: Sequence[Statement]) -> list[PGresult]:
    """Run these statements in one round trip, after BEGIN if no transaction is open; returns the result of each.

    Raises StatementFailed with the number of the failed statement, from 0. Close the connection then.
    """
    # Otherwise the application's code has begun a transaction.
    begins = driver.pgconn.transaction_status == TransactionStatus.IDLE
    try:
        return round_trip(driver, [*[_BEGIN][:begins], *statements])[begins:]
    except StatementFailed as failed:
        if not begins or failed.error.sqlstate != INVALID_SQL_STATEMENT_NAME:
            raise StatementFailed(failed.number - begins, failed.error) from None
    # psycopg's DEALLOCATE ALL after a ROLLBACK TO has dropped what was prepared here. Nothing was written.
    round_trip(driver, [_ROLLBACK])
    try:
        return round_trip(driver, [_BEGIN, *statements])[1:]
    except StatementFailed as failed:
        raise StatementFailed(failed.number - 1, failed.error) from None


def commit(driver: psycopg.Connection[Any], *following: Statement) -> list[PGresult]:
    """Send COMMIT, then these statements, in one round trip; returns the statements' results.

    Raises COMMIT's error, InFailedSqlTransaction if the server answers COMMIT with ROLLBACK (I1), and StatementFailed
    if COMMIT has succeeded and another statement has failed.
    """
    if driver.pgconn.transaction_status == TransactionStatus.IDLE and not following:
        return []
    try:
        results = round_trip(driver, [_COMMIT, *following]) if following else [_alone(driver, _COMMIT)]
    except StatementFailed as failed:
        if failed.number == 0:
            raise failed.error from None
        _require_committed(failed.results[0])
        raise
    _require_committed(results[0])
    return results[1:]


def _require_committed(result: PGresult) -> None:
    if result.command_status != b"COMMIT":
        raise InFailedSqlTransaction(f"COMMIT was answered with {(result.command_status or b'').decode()}")


def _alone(driver: psycopg.Connection[Any], statement: Statement) -> PGresult:
    """Run a statement without parameters as one message, which the server receives whole or not at all."""
    driver.pgconn.send_query(statement.text.encode())
    result: PGresult = driver.wait(generators.execute(driver.pgconn))[0]
    if result.status == ExecStatus.FATAL_ERROR:
        raise StatementFailed(0, error_from_result(result, driver.info.encoding))
    return result


def texts(driver: psycopg.Connection[Any], statement: Statement) -> list[str]:
    """The only row of a query whose columns are texts; begins no transaction. Raises the query's error."""
    try:
        (result,) = round_trip(driver, [statement])
    except StatementFailed as failed:
        raise failed.error from None
    encoding = driver.info.encoding
    return [(result.get_value(0, column) or b"").decode(encoding) for column in range(result.nfields)]


def rows_of(driver: psycopg.Connection[Any], *queries: Query, is_prepared: bool = False) -> list[list[tuple[Any, ...]]]:
    """The rows of each query; in one round trip, with BEGIN, if no transaction is open.

    Raises the first error. Within a transaction the driver runs the queries one by one, because it may have deallocated
    statements that this module has prepared.
    """
    if driver.info.transaction_status != TransactionStatus.IDLE:
        cursor = psycopg.Cursor(driver, row_factory=tuple_row)  # in spite of a row factory that a handler has set
        answers = (cursor.execute(*query, binary=True) for query in queries)
        return [answer.fetchall() if answer.description else [] for answer in answers]
    statements = [with_values(*query, driver.info.encoding)._replace(is_prepared=is_prepared) for query in queries]
    try:
        results = begin_and_run(driver, statements)
    except StatementFailed as failed:
        raise failed.error from None
    return values_of(driver, results)


def values_of(driver: psycopg.Connection[Any], results: Iterable[PGresult]) -> list[list[tuple[Any, ...]]]:
    """The rows of each result, as Python values."""
    transformer, rows = Transformer(driver), []
    for result in results:
        transformer.set_pgresult(result)
        rows.append(transformer.load_rows(0, result.ntuples, tuple))
    return rows


def _send(pgconn: PGconn, statement: Statement, encoding: str, prepared: dict[str, bytes] | None) -> int:
    """Send one statement; returns the number of its answers: two if it is prepared now.

    ``prepared`` are the names of prepared statements, by text; None if nothing may be prepared.
    """
    if not statement.is_prepared or prepared is None:
        pgconn.send_query_params(statement.text.encode(encoding), statement.values, result_format=Format.BINARY)
        return 1
    is_new = statement.text not in prepared
    if is_new:
        prepared[statement.text] = b"seekpoint_%d" % next(_numbers)
        pgconn.send_prepare(prepared[statement.text], statement.text.encode(encoding))
    pgconn.send_query_prepared(prepared[statement.text], statement.values, result_format=Format.BINARY)
    return 1 + is_new


def _answers(pgconn: PGconn, number: int) -> Generator[Any, Any, list[PGresult]]:
    """Read ``number`` results and the answer to the sync; fewer if the server ended the session with an error."""
    yield from generators.send(pgconn)
    results: list[PGresult] = []
    try:
        while len(results) < number:
            results += yield from generators.fetch_many(pgconn)
        yield from generators.fetch_many(pgconn)
    except psycopg.OperationalError:
        if not results or results[-1].status != ExecStatus.FATAL_ERROR:
            raise
    return results


@lru_cache(maxsize=256)
def positional(statement: str) -> tuple[str, tuple[str, ...]]:
    """The text with ``$1``, ``$2`` ... instead of ``%(name)s`` or ``%s``, and the names in that order."""
    numbers: dict[str, int] = {}

    def number(placeholder: re.Match[str]) -> str:
        if placeholder[0] == "%%":
            return "%"
        return f"${numbers.setdefault(placeholder[1] or str(len(numbers)), len(numbers) + 1)}"

    return _PLACEHOLDER.sub(number, statement), tuple(numbers)


def with_values(statement: str, parameters: Mapping[str, Any], encoding: str) -> Statement:
    """The prepared Statement for SQL with the driver's placeholders; each parameter is sent as its ``str()``."""
    text, names = positional(statement)
    values = [None if (parameter := parameters[name]) is None else str(parameter).encode(encoding) for name in names]
    return Statement(text, values, is_prepared=True)


def array(values: Iterable[Any]) -> str:
    """An array literal; for a thousand partitions this is ten times as fast as psycopg's adaptation."""
    return f"{{{','.join(map(_element, values))}}}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if type(value) is int:
        return str(value)
    if type(value) is UUID:
        return value.hex
    text = str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

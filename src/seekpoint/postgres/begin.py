"""A transaction's first statements, in one round trip with BEGIN; their parameters and rows are the driver's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from seekpoint.postgres.pipeline_log import repeated_errors_unlogged

Query = tuple[str, Mapping[str, Any]]


def first_row(driver: psycopg.Connection[Any], query: Query) -> Any:
    """The first row of a query; where it begins the transaction, in one round trip with BEGIN."""
    (cursor,) = _run(driver, [query], binary=False)
    return cursor.fetchone()


def rows_of(driver: psycopg.Connection[Any], *queries: Query) -> list[list[tuple[Any, ...]]]:
    """All rows of each query; in one round trip with BEGIN where they begin the transaction. Raises the first error."""
    return [cursor.fetchall() for cursor in _run(driver, queries, binary=True)]


def _run(driver: psycopg.Connection[Any], queries: Iterable[Query], *, binary: bool) -> list[psycopg.Cursor[Any]]:
    """Cursors that have the answers. Their rows are tuples, whatever row factory a handler has set.

    The transaction is READ COMMITTED. psycopg would wait for the answer to BEGIN, also in pipeline mode, unless a
    statement is outstanding.
    """
    if driver.info.transaction_status != TransactionStatus.IDLE or not psycopg.Pipeline.is_supported():
        return [_cursor(driver).execute(*query, binary=binary) for query in queries]
    try:
        with repeated_errors_unlogged(), driver.pipeline() as pipeline:
            driver.pgconn.send_query_params(b"BEGIN ISOLATION LEVEL READ COMMITTED", None)
            pipeline.result_queue.append(None)
            return [_cursor(driver).execute(*query, binary=binary) for query in queries]
    except psycopg.Error as error:
        raise _first(error) from None


def _cursor(driver: psycopg.Connection[Any]) -> psycopg.Cursor[Any]:
    return psycopg.Cursor(driver, row_factory=tuple_row)


def _first(error: psycopg.Error) -> psycopg.Error:
    """The error that caused the others: after one, the server skips the rest of the pipeline."""
    first, cause = error, error.__context__
    while cause is not None:
        if isinstance(cause, psycopg.Error) and isinstance(first, psycopg.errors.PipelineAborted):
            first = cause
        cause = cause.__context__
    return first

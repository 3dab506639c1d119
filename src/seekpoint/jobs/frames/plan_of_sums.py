"""Checks whether a DataFrame's plan makes rows for an Accumulate: each aggregate must match its column's option.

Below its one Aggregate the plan must work row by row. Above it, columns may only be selected and renamed, because an
expression or a filter would use the sum of one micro-batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, StringType

from seekpoint.errors import ConfigError
from seekpoint.jobs.frames.plan import STRANGE_ROWS, Operator, analyzed_plan, by_chance, require_by_row
from seekpoint.sinks.accumulate.accumulate import Accumulate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUP, SUM, LEAST, MOST, MIXED = "group", "sum", "least", "most", "mixed"  # origin of a column
_PASSING = frozenset({
    "SubqueryAlias", "View", "ResolvedHint", "Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions",
    "WithCTE",
})  # fmt: skip
_FUNCTION_ORIGINS = {"sum": SUM, "count": SUM, "count_if": SUM, "min": LEAST, "max": MOST}
_CALL = re.compile(r"(sum|count|count_if|min|max)(\(.*\))", re.DOTALL)
_FILTERED = re.compile(r"(.*\)) FILTER \(WHERE .*\)", re.DOTALL)
_NAMED = re.compile(r"(?:(.*) AS )?(.*#\d+L?)", re.DOTALL)
_ID = re.compile(r"#(\d+)")


def require_adding(frame: str, rows: DataFrame, sink: Accumulate) -> bool:
    """Whether the plan aggregates. Raises ConfigError, beginning with ``frame``, if its rows cannot be added up."""
    try:
        origins = _origins(analyzed_plan(rows))
        if origins is None:
            return False
        if len(origins) != len(rows.columns):
            raise ConfigError("it selects a column of groupBy twice: select each once, named as in the table")
        for column, origin in zip(rows.columns, origins.values(), strict=True):
            _require_place(sink, column, origin)
        _require_same_order(rows, sink)
        _require_ansi(rows, sink)
    except ConfigError as error:
        raise ConfigError(f"{frame}: {error.text}") from None
    return True


def _origins(plan: Operator) -> dict[str, str] | None:
    """The origin of each output column, in order; None if the plan does not aggregate the records."""
    if not plan.reads_records:
        raise ConfigError(STRANGE_ROWS)
    if not _aggregates(plan):
        require_by_row(plan, adds=True)
        return None
    if any(query.reads_records for query in plan.subqueries):
        raise ConfigError("a subquery reads the records, but only those of one micro-batch: join with a table instead")
    if plan.name == "Aggregate":
        require_by_row(plan.inputs[0], adds=True)
        return _aggregated(plan)
    if plan.name == "Union":
        return _united([_origins(branch) for branch in plan.inputs])
    if plan.name != "Project" and plan.name not in _PASSING:
        raise ConfigError(
            f"its plan uses the sums after groupBy (operator {plan.name}), but they are sums of one micro-batch: "
            "compute before groupBy, or when you read the table. After groupBy only select and rename columns"
        )
    below = _origins(plan.inputs[0])
    assert below is not None
    return _projected(plan, below) if plan.name == "Project" else below


def _aggregates(plan: Operator) -> bool:
    """Whether an Aggregate is between this operator and the records."""
    return plan.reads_records and (plan.name == "Aggregate" or any(map(_aggregates, plan.inputs)))


def _united(branches: list[dict[str, str] | None]) -> dict[str, str]:
    if None in branches:
        raise ConfigError("a union of sums with rows that are not aggregated: make the union first, then groupBy")
    first, *others = [branch for branch in branches if branch is not None]
    for other in others:
        pairs = zip(first.items(), other.values(), strict=True)
        first = {column: origin if origin == other_origin else MIXED for (column, origin), other_origin in pairs}
    return first


def _aggregated(plan: Operator) -> dict[str, str]:
    lists = [*_lists(plan.text)]
    if not lists or len(lists) > 2:
        raise _unreadable(plan.text)
    groups = _items(lists[0]) if len(lists) == 2 else []
    origins = {}
    for item in _items(lists[-1]):
        expression, column = _named(item)
        origins[column] = GROUP if expression in groups or _is_literal(expression) else _function(expression)
    return origins


def _function(expression: str) -> str:
    """The origin of an aggregate function's column. Raises ConfigError for a function whose results do not merge."""
    filtered = _FILTERED.fullmatch(expression)
    call = _CALL.fullmatch(filtered[1] if filtered else expression)
    if call is None or not _is_closed(call[2]) or call[2].startswith("(distinct "):
        raise ConfigError(
            f"it aggregates with {_shown(expression)}, whose results for two micro-batches do not add up to the "
            "result for both: use sum, count and count_if for add=, min for least=, max for most=. Compute their "
            "arguments "
            "before groupBy, by withColumn, and group by columns"
        )
    return _FUNCTION_ORIGINS[call[1]]


def _projected(plan: Operator, below: Mapping[str, str]) -> dict[str, str]:
    lists = [*_lists(plan.text)]
    if len(lists) != 1:
        raise _unreadable(plan.text)
    by_id = {_ID.findall(column)[-1]: origin for column, origin in below.items()}
    origins = {}
    for item in _items(lists[0]):
        expression, column = _named(item)
        origin = below.get(expression)
        if origin is None:
            if by_chance(expression) or any(by_id.get(id_) != GROUP for id_ in _ID.findall(expression)):
                raise ConfigError(
                    f"it computes {_shown(expression)} from the sum of one micro-batch: compute before groupBy, or "
                    "when you read the table"
                )
            origin = GROUP
        origins[column] = origin
    return origins


def _require_place(sink: Accumulate, column: str, origin: str) -> None:
    """Raise ConfigError for a column whose origin does not match the sink's option."""
    for option, columns, takes in (
        ("key", sink.key, {GROUP}),
        ("add", sink.add, {SUM}),
        ("least", sink.least, {GROUP, LEAST}),
        ("most", sink.most, {GROUP, MOST}),
    ):
        if column in columns and origin not in takes:
            what = {
                GROUP: "a column of the group", SUM: "a sum or a count", LEAST: "a min", MOST: "a max",
                MIXED: "made in different ways by a union",
            }[origin]  # fmt: skip
            raise ConfigError(
                f"its column {column!r} is {what}, and {sink!r} has it in {option}=: key= takes columns of the group, "
                "add= sums and counts, least= min, most= max"
            )


def _require_same_order(rows: DataFrame, sink: Accumulate) -> None:
    """Raise ConfigError for min and max of texts: Spark compares bytes, and the table uses its collation."""
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    for column in (*sink.least, *sink.most):
        kind = kinds[column]
        if isinstance(kind.elementType if isinstance(kind, ArrayType) else kind, StringType):
            raise ConfigError(
                f"its column {column!r} is a text, and Spark's min and max order texts differently from the table: "
                "leave groupBy out; the sink aggregates the rows"
            )


def _require_ansi(rows: DataFrame, sink: Accumulate) -> None:
    """Raise ConfigError for settings under which a sum that overflows would silently be wrong or null."""
    if sink.add and str(rows.sparkSession.conf.get("spark.sql.ansi.enabled")).lower() != "true":
        raise ConfigError(
            "spark.sql.ansi.enabled is off, so a sum that is too large becomes a wrong number without an error: set it "
            "to true, the default since Spark 4"
        )
    if sink.conversions.round:
        raise ConfigError(
            f"round=True of {sink!r} would round the sums of each micro-batch: round the values before groupBy"
        )


# -- the text of an operator ------------------------------------------------------------------------------------------


def _lists(text: str) -> Iterator[str]:
    """The texts between outermost brackets. Raises ConfigError for unbalanced ones."""
    depth, start = 0, 0
    for index, sign in enumerate(text):
        if sign == "[":
            depth, start = depth + 1, start if depth else index + 1
        elif sign == "]":
            depth -= 1
            if depth == 0:
                yield text[start:index]
            if depth < 0:
                raise _unreadable(text)
    if depth:
        raise _unreadable(text)


def _items(text: str) -> list[str]:
    """Split a list into its expressions."""
    items, depth, start = [], 0, 0
    for index, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0 and text.startswith(", ", index):
            items.append(text[start:index])
            start = index + 2
    if depth:
        raise _unreadable(text)
    return [*items, text[start:]] if text else []


def _named(item: str) -> tuple[str, str]:
    """An expression and its attribute: the name after AS, or the expression itself."""
    match = _NAMED.fullmatch(item)
    if match is None:
        raise _unreadable(item)
    return match[1] or match[2], match[2]


def _is_literal(expression: str) -> bool:
    return "#" not in expression and "(" not in expression


def _is_closed(call: str) -> bool:
    """Whether the last parenthesis closes the first one."""
    depth = 0
    for index, sign in enumerate(call):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return index == len(call) - 1
    return False


def _shown(expression: str) -> str:
    return re.sub(r"#\d+L?", "", expression)


def _unreadable(text: str) -> ConfigError:
    return ConfigError(
        f"this part of its plan cannot be read, perhaps because of a text in an expression: {_shown(text.strip())}. "
        "Compute it before groupBy, by withColumn"
    )

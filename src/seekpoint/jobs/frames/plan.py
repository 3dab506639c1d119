"""Checks whether a DataFrame's plan merges (see :class:`Frame`), from the analyzed plan that EXPLAIN EXTENDED prints.

EXPLAIN's text is Spark's only public form of a plan; Spark Connect has it, too. Unknown operators are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.explained import analyzed_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORDS = "seekpoint-records"  # the source's name in a plan that reads the records

#: Operators whose output for a row does not depend on other rows.
_BY_ROW = frozenset({
    "Project", "Filter", "SubqueryAlias", "View", "Generate", "Expand", "MapInArrow", "MapInPandas", "ResolvedHint",
    "Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions", "Union", "WithCTE", "CTERelationDef",
    "CTERelationRef",
})  # fmt: skip
STRANGE_ROWS = (
    "a union adds rows that come from no record, and each micro-batch would write them again: insert them into the "
    "table once"
)
_MEANING = {
    "Aggregate": "it aggregates rows (groupBy, agg, count)",
    "Pivot": "it aggregates rows (pivot)",
    "Window": "it compares rows with each other (over, Window)",
    "Deduplicate": "it drops rows that are equal to others (distinct, dropDuplicates)",
    "Distinct": "it drops rows that are equal to others (distinct, UNION)",
    "GlobalLimit": "it takes the first rows (limit)",
    "LocalLimit": "it takes the first rows (limit)",
    "Offset": "it skips the first rows (offset)",
    "Tail": "it takes the last rows (tail)",
    "Sample": "it samples rows at random (sample)",
    "Intersect": "it compares the records with other rows (intersect)",
    "Except": "it compares the records with other rows (except, subtract)",
}
_JOINED = {  # for each kind of join, the sides that may read the records
    "Inner": (0, 1), "Cross": (0, 1), "LeftOuter": (0,), "LeftSemi": (0,), "LeftAnti": (0,), "RightOuter": (1,),
    "FullOuter": (),
}  # fmt: skip
# Random functions, whose argument is a seed, and numbers that depend on which records are read together. The lookahead
# excludes columns with such a name: "#" and a number follow it.
_CHANCE = re.compile(r"\b(?:rand|randn|random|uuid|shuffle|randstr|uniform)\((?![^()]*(?:\([^()]*\))?\)#)")
_NUMBERS = re.compile(r"\b(?:monotonically_increasing_id|SPARK_PARTITION_ID)\(\)(?!#)", re.IGNORECASE)
_NAMES_ALONE = frozenset({  # operators whose text contains no expressions
    "SubqueryAlias", "View", "RelationV2", "WithCTE", "CTERelationDef", "CTERelationRef",
})  # fmt: skip
_PASSING = frozenset({"Project", "SubqueryAlias", "View", "ResolvedHint", "Union", "WithCTE"})
_FIELDS = "spark.sql.debug.maxToStringFields"
_LINE = re.compile(r"^((?:\+- |:- |:  |   )*)([A-Za-z]\w*)(.*)$")


@dataclass(slots=True)
class Operator:
    """One operator of a plan; ``inputs`` are the operators that it reads, without its subqueries."""

    name: str
    text: str
    inputs: list[Operator] = field(default_factory=list)
    subqueries: list[Operator] = field(default_factory=list)

    @property
    def reads_records(self) -> bool:
        """Whether it reads the records, directly or through inputs and subqueries."""
        if self.name == "RelationV2" and self.text.endswith(f" {RECORDS}"):
            return True
        return any(operator.reads_records for operator in (*self.inputs, *self.subqueries))


def require_merging(frame: str, rows: DataFrame) -> None:
    """Raise ConfigError for a plan that does not work row by row; ``frame`` begins the message."""
    try:
        require_by_row(analyzed_plan(rows))
    except ConfigError as error:
        raise ConfigError(f"{frame}: {error.text}") from None


def require_by_row(plan: Operator, *, adds: bool = False) -> None:
    """Raise ConfigError for a plan that does not work row by row; ``adds``: the sink aggregates the rows."""
    for reason in _reasons(plan, is_last=not adds):
        raise ConfigError(reason)


def by_chance(text: str) -> bool:
    """Whether an expression is random, or depends on which records are read together."""
    return bool(_CHANCE.search(text) or _NUMBERS.search(text))


def analyzed_plan(rows: DataFrame) -> Operator:
    """The analyzed plan of these rows. Raises ConfigError if it does not read the records."""
    spark = rows.sparkSession
    fields = spark.conf.get(_FIELDS, "25")
    try:
        spark.conf.set(_FIELDS, str(2**31 - 1))  # keeps Spark from truncating long lists of columns
        row = spark.sql("EXPLAIN EXTENDED SELECT * FROM {rows}", rows=rows).head()
    finally:
        spark.conf.set(_FIELDS, str(fields))
    plan = analyzed("" if row is None else str(row[0]))
    if plan is None or not plan.reads_records:
        raise ConfigError(
            "its plan does not read the records. Build the result from the DataFrame that the function gets; an RDD, "
            "a checkpoint or a local copy hides which records the rows come from"
        )
    return plan


def _reasons(plan: Operator, *, is_last: bool) -> Iterator[str]:
    """Yield why the plan's result for two ranges may differ from its results for each range.

    ``is_last``: no operator above this one uses the values of its columns.
    """
    if any(query.reads_records for query in plan.subqueries):
        yield (
            "a subquery reads the records, so a row depends on which other records are in its micro-batch: join with a "
            "table that stores the records, or make each row from one record"
        )
    with_records = [number for number, operator in enumerate(plan.inputs) if operator.reads_records]
    if plan.name == "Join":
        yield from _of_join(plan, with_records)
    elif with_records and plan.name not in _BY_ROW:
        yield _refusal(plan.name)
    if with_records and plan.name == "Union" and len(with_records) < len(plan.inputs):
        yield STRANGE_ROWS
    if with_records:
        yield from _of_chance(plan, is_last=is_last)
    is_last = is_last and plan.name in _PASSING
    for number in with_records:
        yield from _reasons(plan.inputs[number], is_last=is_last)


def _of_chance(plan: Operator, *, is_last: bool) -> Iterator[str]:
    text = "" if plan.name in _NAMES_ALONE else plan.text
    if match := _NUMBERS.search(text):
        yield (
            f"{match[0].lower()} numbers the rows of one micro-batch, and the next one repeats the numbers: use the "
            "record's partition and offset, or an id from its value"
        )
    if (match := _CHANCE.search(text)) and not (is_last and plan.name == "Project"):
        yield (
            f"rows, keys or amounts depend on random values ({match[0]}...)), which differ in a repeated task or a "
            "reload. Use random values only in the last select, for columns of Append and Upsert"
        )


def _of_join(plan: Operator, with_records: Sequence[int]) -> Iterator[str]:
    kind = plan.text.strip().split(",")[0].split(" ")[0]
    if len(with_records) > 1:
        yield (
            "it joins the records with themselves, and the two records of a pair may be in different micro-batches: "
            "store one side in a table, and join with that table"
        )
    elif with_records and with_records[0] not in _JOINED.get(kind, ()):
        yield (
            f"a join {kind} also returns rows without a record of the micro-batch: use a join that returns only rows "
            "with a record (inner, or outer on the records' side)"
        )


def _refusal(name: str) -> str:
    if name not in _MEANING:
        return (
            f"its plan has the operator {name}, which may not work row by row: its result may depend on where "
            "micro-batches begin and end. Use select, where, withColumn, explode, union, join or mapInArrow instead"
        )
    meaning = f"{_MEANING[name]}, so its result depends on where micro-batches begin and end"
    sums = ", or let the sink aggregate (Accumulate)" if name in {"Aggregate", "Pivot"} else ""
    return f"{meaning} (operator {name}). Make each row from one record{sums}"


def analyzed(explained: str) -> Operator | None:
    """Parse the analyzed plan in EXPLAIN's text; None if there is none. Raises ConfigError for an incomplete plan."""
    text, is_whole = analyzed_text(explained)
    if text and not is_whole:
        raise ConfigError("Spark has truncated its plan: leave spark.sql.maxPlanStringLength at its default")
    lines = text.splitlines()
    root = next((number for number, line in enumerate(lines) if line.startswith("Project [")), None)
    if root is None:
        return None
    plan = Operator("Project", lines[root])
    queries: dict[str, Operator] = {}  # the queries of WITH, by number
    open_: list[Operator | None] = [plan]  # path from the root to the previous line's operator; None above a subquery
    for line in lines[root + 1 :]:
        parts = _LINE.match(line)
        depth = 0 if parts is None else len(parts[1]) // 3
        if parts is None or depth == 0:
            continue  # continuation of the previous line: a text in an expression may have line breaks
        operator = Operator(parts[2], parts[3])
        if depth > len(open_) + 1:
            raise ConfigError(f"its plan has a line without a parent operator: {line.strip()!r}")
        if depth == len(open_) + 1:
            open_.append(None)
        if (parent := open_[depth - 1]) is not None:
            parent.inputs.append(operator)
        elif (outer := open_[depth - 2]) is not None:
            outer.subqueries.append(operator)
        open_[depth:] = [operator]
        _refer(operator, queries)
    _leave_definitions_out(plan)
    return plan


def _refer(operator: Operator, queries: dict[str, Operator]) -> None:
    """Store a query that WITH defines, or add it to the inputs of an operator that refers to it."""
    number = operator.text.split(",")[0].strip()
    if operator.name == "CTERelationRef":
        if number not in queries:
            raise ConfigError(f"its plan reads an undefined query of WITH ({number}): write the query without WITH")
        operator.inputs.append(queries[number])
    elif operator.name == "CTERelationDef":
        queries[number] = operator


def _leave_definitions_out(plan: Operator) -> None:
    """Remove the definitions of WITH from the plan: their queries are read only where they are referred to."""
    for operator in (*plan.inputs, *plan.subqueries):
        _leave_definitions_out(operator)
    if plan.name == "WithCTE":
        plan.inputs = plan.inputs[-1:]

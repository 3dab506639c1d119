"""Rows are compared byte by byte: values that ``=`` takes for one may be two, and a merge stores what was rebuilt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from psycopg.types.json import Json as JsonText
from psycopg.types.json import Jsonb
from sqlalchemy.exc import NotSupportedError

from seekpoint import Json, Pipeline, Upsert
from support.before_cutover import diffed, reloaded
from support.databases import create_extension
from support.reload_orders import OrdersGroup

# How a column is declared, and two values that the type's own equality takes for one.
PAIRS = {
    "city": ("public.citext", "Berlin", "BERLIN"),
    "price": ("numeric", "1.0", "1.00"),
    "time": ("interval", "1 day", "24 hours"),
    "angle": ("float8", "0", "-0"),
    "fields": ("jsonb", '{"a": 1.0}', '{"a": 1.00}'),
    "code": ("bpchar", "a", "a "),
    "prices": ("numeric[]", "{1.0}", "{1.00}"),
    "folded": ('text COLLATE {schema}."folded"', "Berlin", "BERLIN"),
}
# Types without an equality that rows could be compared by.
WITHOUT = {
    "raw": ("json", '{"a":1}', '{"a": 1}'),
    "place": ("point", "(0,0)", "(-0,0)"),
    "page": ("xml", "<a/>", "<a></a>"),
}
KEYS = ("city", "price", "time", "angle", "fields", "folded")
NEEDS = {
    "folded": ("CREATE COLLATION {schema}.folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",),
    "page": ("SELECT CAST('<a/>' AS xml)",),
}
RECORDS = 20
Columns = dict[str, tuple[str, Any, Any]]


@pytest.fixture
def columns(orders_group: OrdersGroup) -> Columns:
    """The columns of which this server has the type; one that was built without ICU or libxml lacks some."""

    def is_there(column: str) -> bool:
        try:
            if column == "city":
                create_extension(orders_group.engine, "citext")
            for statement in NEEDS.get(column, ()):
                orders_group.execute(statement)
        except NotSupportedError:
            return False
        return True

    pairs = {name: of for name, of in (PAIRS | WITHOUT).items() if is_there(name)}
    return {
        name: (of.format(schema=orders_group.schema), literal(of, old), literal(of, new))
        for name, (of, old, new) in pairs.items()
    }


def literal(of: str, value: str) -> Any:
    """What is given for a column of this type; a text for a JSON column is JSON already."""
    if of == "json":
        return JsonText(value, dumps=str)
    return Jsonb(value, dumps=str) if of == "jsonb" else value


def filled(orders_group: OrdersGroup, pipeline: Pipeline) -> None:
    orders_group.produce(orders_group.topic, [(str(n), json.dumps({"id": n})) for n in range(RECORDS)], partition=0)
    orders_group.apply(pipeline, RECORDS)


def as_text(orders_group: OrdersGroup, table: str, columns: Any) -> list[tuple[Any, ...]]:
    return orders_group.execute(
        f"SELECT {', '.join(f'concat({column})' for column in columns)} FROM {{schema}}.{table} ORDER BY 1"
    )


def test_a_merge_stores_the_values_that_equal_the_old_ones(orders_group: OrdersGroup, columns: Columns) -> None:
    """Verify sees each of them, and shows both sides; the merge leaves none of the old code's values."""
    declared = ", ".join(f"{name} {of}" for name, (of, *_) in columns.items())
    orders_group.execute(f"CREATE TABLE {{schema}}.typed (id bigint PRIMARY KEY, {declared})")

    def pipeline(version: int) -> Pipeline:
        def row(record: Any) -> dict[str, Any]:  # each column's value is the new code's in a record of its own
            n = record.value["id"]
            return {"id": n} | {
                name: pair[1 + (version == 2 and n == place)] for place, (name, pair) in enumerate(columns.items())
            }

        sink = Upsert((orders_group.schema, "typed"), key=["id"], columns=["id", *columns], row=row)
        return Pipeline(orders_group.group, topics=orders_group.topic, value=Json(), sinks=[sink], version=version)

    filled(orders_group, pipeline(1))
    (table,) = orders_group.reload([pipeline(2)]).verify().tables
    assert (table.equal, table.different) == (RECORDS - len(columns), len(columns))
    for sample, name in zip(table.samples, columns, strict=True):
        assert sample.live is not None
        assert sample.rebuilt is not None
        assert [name for name in sample.live if sample.live[name] != sample.rebuilt[name]] == [name]
    reloaded(orders_group.reload([pipeline(2)]))
    assert orders_group.reload([pipeline(2)]).verify().is_empty


@pytest.mark.long
@pytest.mark.repeats("is_late")
@pytest.mark.parametrize("is_late", [False, True])
def test_a_merge_sets_keys_whose_bytes_differ(orders_group: OrdersGroup, columns: Columns, is_late: bool) -> None:
    """The row stays: what is not the pipeline's in it is kept. Also where the key is touched after the comparison."""
    keys = {name: columns[name] for name in KEYS if name in columns}
    for name, (of, *_) in keys.items():
        orders_group.execute(f"CREATE TABLE {{schema}}.by_{name} ({name} {of} PRIMARY KEY, note text DEFAULT 'none')")

    def pipeline(version: int) -> Pipeline:
        def sink(name: str, value: Any) -> Upsert:
            return Upsert((orders_group.schema, f"by_{name}"), key=[name], columns=[name], row=lambda _: {name: value})

        sinks = [sink(name, pair[version]) for name, pair in keys.items()]
        return Pipeline(orders_group.group, topics=orders_group.topic, value=Json(), sinks=sinks, version=version)

    filled(orders_group, pipeline(1))
    for name in keys:
        orders_group.execute(f"UPDATE {{schema}}.by_{name} SET note = 'kept'")
    before = [as_text(orders_group, f"by_{name}", [name, "note"]) for name in keys]
    with diffed(orders_group.reload([pipeline(2)])) as (reload, driver, rounds):
        if is_late:
            orders_group.produce(orders_group.topic, [("7", json.dumps({"id": 7}))], partition=0)
            orders_group.apply(pipeline(1), RECORDS + 1)
        reload.cut_over(driver, rounds)
    after = [as_text(orders_group, f"by_{name}", [name, "note"]) for name in keys]
    assert [[note for _, note in rows] for rows in after] == [["kept"]] * len(keys)
    assert all(new != old for new, old in zip(after, before, strict=True))
    assert orders_group.reload([pipeline(2)]).verify().is_empty


def test_a_key_whose_bytes_are_equal_is_not_set(orders_group: OrdersGroup) -> None:
    """A trigger on the key's column, or a role that may not change it, meets no statement that names the column."""
    orders_group.execute("CREATE TABLE {schema}.typed (id numeric PRIMARY KEY, price numeric)")
    orders_group.execute(
        "CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the key was set'; END $$"
    )

    def pipeline(version: int) -> Pipeline:
        def row(record: Any) -> dict[str, Any]:
            return {"id": record.value["id"], "price": PAIRS["price"][version]}

        sink = Upsert((orders_group.schema, "typed"), key=["id"], columns=["id", "price"], row=row)
        return Pipeline(orders_group.group, topics=orders_group.topic, value=Json(), sinks=[sink], version=version)

    filled(orders_group, pipeline(1))
    orders_group.execute(
        "CREATE TRIGGER refuse BEFORE UPDATE OF id ON {schema}.typed FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()"
    )
    reloaded(orders_group.reload([pipeline(2)]))
    assert as_text(orders_group, "typed", ["price"]) == [("1.00",)] * RECORDS

"""SQL that stores a partition's trouble, as a worker that has ended would have left it."""

from __future__ import annotations


def put_trouble(schema: str, where: str = "true", /, **columns: str) -> str:
    """The statement that sets these columns, by expressions over the position ``o``, where ``where`` is true."""
    names, values = ", ".join(columns), ", ".join(columns.values())
    again = ", ".join(f"{name} = excluded.{name}" for name in columns)
    return (
        f"INSERT INTO {schema}.partition_trouble (consumer_group, topic, partition, {names}) "
        f"SELECT o.consumer_group, o.topic, o.partition, {values} FROM {schema}.partition_offset o WHERE {where} "
        f"ON CONFLICT (consumer_group, topic, partition) DO UPDATE SET {again}"
    )


def put_stop(schema: str, kind: str, offset: str, where: str = "true", *, message: str = "m") -> str:
    """The statement that stores a stop at ``offset``, an expression, without choices."""
    return put_trouble(
        schema,
        where,
        stop_kind=f"'{kind}'",
        stop_offset=offset,
        stop_message=f"'{message}'",
        stop_choices="ARRAY[]::text[]",
        stopped_at="now()",
    )

"""The records of one transaction, as passed to a handler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from seekpoint.codecs.arrow import required
from seekpoint.records import K_co, Partition, Record, Span, V_co

if TYPE_CHECKING:
    import pyarrow as pa


class Batch(Sequence[Record[V_co, K_co]]):
    """The records of one transaction, each partition's in the log's order; partitions may be mixed."""

    __slots__ = ("_records", "spans")

    def __init__(self, records: Sequence[Record[V_co, K_co]], spans: Sequence[Span] = ()) -> None:
        self._records = tuple(records)
        self.spans: tuple[Span, ...] = tuple(spans)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record[V_co, K_co]]:
        return iter(self._records)

    @overload
    def __getitem__(self, index: int) -> Record[V_co, K_co]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Record[V_co, K_co], ...]: ...
    def __getitem__(self, index: int | slice) -> Record[V_co, K_co] | tuple[Record[V_co, K_co], ...]:
        return self._records[index]

    def __repr__(self) -> str:
        return f"Batch({len(self)} records: {', '.join(map(str, self.spans))})"

    def by_partition(self) -> Mapping[Partition, Sequence[Record[V_co, K_co]]]:
        """Group the records by partition; each group keeps the order of its offsets."""
        groups: dict[Partition, list[Record[V_co, K_co]]] = {}
        for record in self._records:
            groups.setdefault(Partition(record.topic, record.partition), []).append(record)
        return groups

    def arrow(self, schema: Any = None, *, provenance: Mapping[str, str] | Sequence[str] | None = None) -> pa.Table:
        """The batch as a ``pyarrow.Table``: a row for each record, a column for each field of the values.

        ``schema`` is a ``pyarrow.Schema``, or a Struct, dataclass or TypedDict; by default the annotations of the
        values' type decide the columns' types, or without these the values. Values without fields become one column,
        ``value``; values that are Arrow tables are concatenated. ``provenance`` adds columns for the records' topic,
        partition and offset: three names, or a mapping, which may also name ``timestamp`` and ``key``.

        Raises Poison, which names the records, for values that a column cannot hold, and ConfigError for arguments that
        contradict the values. Needs the extra ``arrow``; raises ConfigError without it.
        """
        required()
        from seekpoint.pipeline.arrow.table import build  # noqa: PLC0415 -- pyarrow, an extra

        return build(self._records, schema, provenance)

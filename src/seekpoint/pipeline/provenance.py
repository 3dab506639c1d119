"""``provenance=``: the columns for a record's topic, partition and offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from seekpoint.errors import ConfigError


def provenance_columns(
    me: str, columns: Mapping[str, str] | Sequence[str] | None, attributes: Sequence[str]
) -> dict[str, str]:
    """The column for each stored attribute of a record, in the order of ``attributes``. Raises ConfigError."""
    if columns is None:
        return {}
    if not isinstance(columns, Mapping):
        if isinstance(columns, str) or len(columns) != 3:
            raise ConfigError(
                f"{me}provenance= names the columns of topic, partition and offset, in this order, or maps some of "
                f"{', '.join(attributes)} to columns: provenance={{'offset': 'kafka_offset'}}; got {columns!r}"
            )
        columns = dict(zip(attributes, columns, strict=False))
    if not columns or (unknown := sorted(set(columns) - set(attributes))):
        problem = f"there is no {', '.join(map(repr, unknown))}" if columns else "nothing is named"
        raise ConfigError(f"{me}provenance= maps some of {', '.join(attributes)} to columns; {problem}")
    if len({*columns.values()}) < len(columns):
        raise ConfigError(f"{me}provenance= names one column twice: {', '.join(columns.values())}")
    return {name: columns[name] for name in attributes if name in columns}

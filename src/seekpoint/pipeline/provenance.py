"""``provenance=``: which columns take a record's topic, partition, offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from seekpoint.errors import ConfigError


def provenance_columns(
    me: str, given: Mapping[str, str] | Sequence[str] | None, known: Sequence[str]
) -> dict[str, str]:
    """Which of a record's ``known`` attributes go into which columns, in the order of ``known``. Raises ConfigError."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        if isinstance(given, str) or len(given) != 3:
            raise ConfigError(
                f"{me}provenance= names the columns of topic, partition and offset, in this order, or maps some of "
                f"{', '.join(known)} to columns: provenance={{'offset': 'kafka_offset'}}; got {given!r}"
            )
        given = dict(zip(known, given, strict=False))
    if not given or (unknown := sorted(set(given) - set(known))):
        what = f"there is no {', '.join(map(repr, unknown))}" if given else "nothing is named"
        raise ConfigError(f"{me}provenance= maps some of {', '.join(known)} to columns; {what}")
    if len({*given.values()}) < len(given):
        raise ConfigError(f"{me}provenance= names one column twice: {', '.join(given.values())}")
    return {name: given[name] for name in known if name in given}

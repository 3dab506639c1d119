"""What a sink may change about a value so that its column can hold it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from seekpoint.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Conversions:
    """``round``: fraction digits beyond a declared scale, and those that a float lacks, may be lost.

    ``timezone``: aware times are converted to this zone and stored without it, in columns that have none.
    """

    round: bool = False
    timezone: tzinfo | None = None


EXACT = Conversions()


def conversions(me: str, *, round: bool, timezone: str | tzinfo | None) -> Conversions:  # noqa: A002 -- the sinks' option
    """The options of a sink. Raises ConfigError for a time zone that is not known."""
    if not isinstance(timezone, str):
        return Conversions(round, timezone)
    try:
        return Conversions(round, ZoneInfo(timezone))
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ConfigError(f"{me}: timezone={timezone!r} is no time zone that is known: {error}; write 'UTC'") from error

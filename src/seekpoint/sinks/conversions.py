"""How a sink may change a value so that its column can hold it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from seekpoint.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Conversions:
    """Conversions that a sink allows. ``round``: a value may lose digits that the column or a float cannot hold.

    ``timezone``: for columns without a zone, aware times are converted to this zone.
    """

    round: bool = False
    timezone: tzinfo | None = None


EXACT = Conversions()


def conversions(me: str, *, round: bool, timezone: str | tzinfo | None) -> Conversions:  # noqa: A002 -- the sinks' option
    """What a sink's options allow. Raises ConfigError for an unknown time zone."""
    if not isinstance(timezone, str):
        return Conversions(round, timezone)
    try:
        return Conversions(round, ZoneInfo(timezone))
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ConfigError(
            f"{me}: timezone={timezone!r} is not a known time zone: {error}; write a name such as 'UTC'"
        ) from error

"""A change event's position at the source as one number, which grows with each change of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def source_position(source: Mapping[str, Any]) -> int:
    """The position in an envelope's ``source``: Postgres' LSN, Oracle's SCN, or a number made of several fields.

    For MySQL and MariaDB these are the binlog file's number, the position in the file and the row in the event; for SQL
    Server the commit's LSN, the change's LSN and the event's number. Raises ValueError if the source has no position.
    """
    connector = source.get("connector")
    if not isinstance(connector, str) or connector not in _POSITIONS:
        raise ValueError(
            f"the source's position is known for {', '.join(sorted(_POSITIONS))}, and the event's connector is "
            f"{connector!r}: leave out order_by="
        )
    try:
        return _POSITIONS[connector](source)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the event's source has no position that can be read: {error!r}") from error


def _binlog(source: Mapping[str, Any]) -> int:
    file = str(source["file"]).rpartition(".")[2]  # mysql-bin.000003
    return int(file) << 96 | int(source["pos"]) << 32 | int(source.get("row") or 0)


def _sql_server(source: Mapping[str, Any]) -> int:
    commit, change = (_lsn(source.get(name)) for name in ("commit_lsn", "change_lsn"))
    return commit << 112 | change << 32 | int(source.get("event_serial_no") or 0)


def _lsn(text: str | None) -> int:
    """SQL Server's LSN of 80 bits, written as three hexadecimal numbers: 00000027:00000ac0:0002."""
    return int(text.replace(":", ""), 16) if text else 0


_POSITIONS: Mapping[str, Callable[[Mapping[str, Any]], int]] = {
    "postgresql": lambda source: int(source["lsn"]),
    "mysql": _binlog,
    "mariadb": _binlog,
    "sqlserver": _sql_server,
    "oracle": lambda source: int(source["scn"]),
}

"""A dead letter as JSON can hold it, without loss."""

from __future__ import annotations

from base64 import b64encode
from datetime import datetime
from typing import Any

from seekpoint.ledger.dead_letters import DeadLetter, name_bytes
from seekpoint.records import utc

_AS_THEY_ARE = (
    *("id", "topic", "partition", "offset", "leader_epoch", "timestamp_ms"),
    *("error", "traceback", "sqlstate", "attempts", "version", "replays", "replay_error", "replay_traceback"),
    *("closed_by", "closed_reason"),
)


def portable(dead_letter: DeadLetter, group: str) -> dict[str, Any]:
    """Every field of the dead letter. Bytes are ``{"base64": …}`` with ``"text"`` beside it where they are UTF-8.

    Headers are pairs of name and value, in order, duplicates kept; names are bytes too: not all of them are UTF-8.
    Times are ISO 8601.
    """
    names = [name_bytes(name) for name, _ in dead_letter.headers]
    return {name: getattr(dead_letter, name) for name in _AS_THEY_ARE} | {
        "group": group,
        "topic_id": str(dead_letter.topic_id),
        "timestamp": _time(utc(dead_letter.timestamp_ms)),
        "key": _bytes(dead_letter.key),
        "value": _bytes(dead_letter.value),
        "size": dead_letter.size,
        "headers": [[_bytes(name), _bytes(value)] for name, (_, value) in zip(names, dead_letter.headers, strict=True)],
        "state": dead_letter.state.value,
        "cause": dead_letter.cause.value,
        "dead_lettered_at": _time(dead_letter.dead_lettered_at),
        "dead_lettered_by": None if dead_letter.dead_lettered_by is None else str(dead_letter.dead_lettered_by),
        "replayed_at": _time(dead_letter.replayed_at),
        "closed_at": _time(dead_letter.closed_at),
    }


def _bytes(given: bytes | None) -> dict[str, str] | None:
    if given is None:
        return None
    encoded = {"base64": b64encode(given).decode("ascii")}
    try:
        return encoded | {"text": given.decode()}
    except UnicodeDecodeError:
        return encoded


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()

"""Names of tables and columns, as Postgres shortens them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from seekpoint.errors import ConfigError

_MOST = 63  # bytes of a name; the server cuts longer names


def cut_name(name: str) -> str:
    """The name as the server cuts it: its first 63 bytes, without part of a character."""
    return name.encode(errors="surrogatepass")[:_MOST].decode(errors="ignore")


def require_whole_names(me: str, names: Iterable[str]) -> None:
    """Raise ConfigError for a name that the server would truncate to another one."""
    for name in names:
        encoded = name.encode(errors="surrogatepass")
        if len(encoded) > _MOST:
            cut = cut_name(name)
            raise ConfigError(
                f"{me}: the name {name!r} has {len(encoded)} bytes, and Postgres cuts it to {cut!r}: write {cut!r}, or "
                "rename it in the database; if it is a field of the value, row= can return it under another name"
            )


def require_short_names(owner: str, topic: str, path: Sequence[str]) -> None:
    """Raise ConfigError if Postgres would cut the name of a topic's table: two topics could then have one table."""
    for name in path:
        if (length := len(name.encode(errors="surrogatepass"))) > _MOST:
            raise ConfigError(
                f"{owner}: the table of topic {topic!r} would be {name!r}, of {length} bytes, and Postgres cuts names "
                f"to {_MOST}: name it by a function of the topic"
            )

"""Names of tables and columns, as Postgres reads them."""

from __future__ import annotations

from collections.abc import Iterable

from seekpoint.errors import ConfigError

_MOST = 63  # bytes of a name; the server cuts a longer one


def require_whole_names(me: str, names: Iterable[str]) -> None:
    """Raise ConfigError for a name that the server would cut: it is another name then."""
    for name in names:
        encoded = name.encode(errors="surrogatepass")
        if len(encoded) > _MOST:
            cut = encoded[:_MOST].decode(errors="ignore")
            raise ConfigError(
                f"{me}: the name {name!r} has {len(encoded)} bytes, and Postgres cuts it to {cut!r}: write {cut!r}, or "
                "rename it in the database; row= makes rows with other names than the value's fields"
            )

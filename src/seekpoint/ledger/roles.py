"""The roles that use a ledger, and the privileges that each needs on its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import groupby
from types import MappingProxyType


class Role(StrEnum):
    """A role that uses a ledger. The owner, which migrates it, has all privileges on its tables without a grant."""

    OWNER = "owner"
    WRITER = "writer"
    """Runs workers, and replays dead letters."""
    OPERATOR = "operator"
    """Looks at groups, pauses and resets them, and closes dead letters; runs no pipeline's code."""
    READER = "reader"
    """Reads the views for dashboards, and the columns for exporters; no keys, values, headers or errors."""
    STAGER = "stager"
    """Runs reloads, batches and exports: a writer's privileges, those on jobs' tables, and a schema for each run.
    """


Rights = Mapping[str, tuple[str, ...]]
"""Privileges by table or view, in the order in which they are granted."""

_READ, _ADD, _CHANGE = ("SELECT",), ("SELECT", "INSERT"), ("SELECT", "INSERT", "UPDATE")
_ALL = (*_CHANGE, "DELETE")
_VERSION = "alembic_version"
_VIEWS = {"lag": _READ, "group_status": _READ}

_WRITER: dict[str, tuple[str, ...]] = {
    _VERSION: _READ,
    **dict.fromkeys(("consumer_group", "partition_offset", "group_topic", "dead_letter"), _CHANGE),
    "partition_trouble": _ALL,
    "partition_state": _READ,
    # Logs: rows are only added. SELECT, because SQLAlchemy asks for the new row's id.
    **dict.fromkeys(("admin_action", "lost_range"), _ADD),
    "reload_run": _READ,
    **dict.fromkeys(("worker", "position_sample"), _ALL),
    "replay_request": _CHANGE,
}
_OPERATOR: dict[str, tuple[str, ...]] = {
    _VERSION: _READ,
    **dict.fromkeys(("consumer_group", "partition_offset", "dead_letter"), ("SELECT", "UPDATE")),
    "partition_trouble": ("SELECT", "DELETE"),
    "partition_state": _READ,
    **dict.fromkeys(("admin_action", "lost_range", "replay_request"), _ADD),
    **dict.fromkeys(("group_topic", "worker", "position_sample"), _READ),
    **dict.fromkeys(("reload_run", "reload_position", "reload_staged"), _READ),
    **dict.fromkeys(("export_manifest", "export_run", "reprocess_dead_letter"), _READ),
    **_VIEWS,
}
_STAGER: dict[str, tuple[str, ...]] = {
    **_WRITER,
    **dict.fromkeys(("reload_run", "reload_position"), _ALL),
    "reload_staged": ("SELECT", "INSERT", "DELETE"),
    **dict.fromkeys(("export_manifest", "export_run", "reprocess_dead_letter"), _ADD),
    **_VIEWS,
}
RIGHTS: Mapping[Role, Rights] = MappingProxyType(
    {Role.WRITER: _WRITER, Role.OPERATOR: _OPERATOR, Role.READER: {_VERSION: _READ, **_VIEWS}, Role.STAGER: _STAGER}
)

COLUMNS: Mapping[Role, Rights] = MappingProxyType(
    {
        Role.READER: {
            "partition_offset": ("consumer_group", "topic", "partition", "topic_id"),
            "reload_run": ("id", "state", "changed_at"),
        }
    }
)
"""The columns that a role may read of a table that it may not read as a whole, by table."""

ON_DATABASE: Mapping[Role, tuple[str, ...]] = MappingProxyType(
    {Role.WRITER: ("TEMPORARY",), Role.STAGER: ("CREATE", "TEMPORARY")}
)
"""Privileges on the database: an Upsert uses a temporary table, and each run of a job creates a schema."""

ON_TARGETS: Mapping[Role, tuple[str, ...]] = MappingProxyType({Role.WRITER: _ALL, Role.STAGER: _ALL})
"""Privileges on the tables that pipelines write. An Append needs only INSERT."""


def granted(rights: Rights) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Pairs of privileges and the tables to grant them on, one GRANT each."""
    for privileges, names in groupby(sorted(rights, key=lambda name: (rights[name], name)), rights.__getitem__):
        yield privileges, list(names)

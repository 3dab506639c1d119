"""A Delta table for each topic of an archive: the same files, committed to the table's log.

The table's log is written first, the manifest second, both under the topic's lock. An export that is killed between the
two leaves a table that knows more than the manifest: its transaction id says how far, and the next export takes over
what it has instead of writing it twice.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from time import time
from typing import Any
from uuid import UUID

import pyarrow as pa

from seekpoint.errors import ArchiveDamaged, ConfigError, needs_extra
from seekpoint.jobs.export.files import SCHEMA, range_of
from seekpoint.jobs.export.manifest import Entry, Written
from seekpoint.jobs.export.storage import Storage, below
from seekpoint.kafka.ranges import Range
from seekpoint.records import Partition


class DeltaLog:
    """The Delta table of one topic of an archive: ``<root>/<topic>``. Use it under the topic's lock."""

    def __init__(self, storage: Storage, topic: str) -> None:
        try:
            import deltalake  # noqa: PLC0415 -- an extra
        except ModuleNotFoundError as error:
            raise needs_extra("Delta needs deltalake", "delta", error) from error
        # The options are pyarrow's; deltalake has its own, from the environment.
        uri = below(storage.root, topic)
        self._storage = storage
        self._uri, self._topic = uri if storage.is_local else uri.partition("?")[0], topic
        self._table: Any = deltalake.DeltaTable.create(self._uri, SCHEMA, mode="ignore", name=topic)

    def files(self) -> Mapping[str, Any]:
        """What the table has, by the files' paths below the archive's root."""
        actions = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return {f"{self._topic}/{action['path']}": action for action in actions}

    def end(self, partition: Partition, topic_id: UUID) -> int:
        """The offset up to which the table says that it has the partition; 0 where it has nothing of it."""
        return int(self._table.transaction_version(_application(partition, topic_id)) or 0)

    def add(self, written: Written) -> None:
        """Commit one file to the table, with the partition's end as its transaction id.

        Raises deltalake's CommitFailedError where another process has committed the partition meanwhile.
        """
        from deltalake.transaction import AddAction, CommitProperties, Transaction  # noqa: PLC0415

        at, topic_id = written.range.partition, written.range.topic_id
        path = written.file.removeprefix(f"{self._topic}/")
        stats = json.dumps({"numRecords": written.records})
        action = AddAction(path, written.bytes, {}, round(time() * 1000), data_change=True, stats=stats)
        guard = Transaction(_application(at, topic_id), max(written.range.end, self.end(at, topic_id)))
        # For the export that adds the file to the manifest if this one is killed before it does.
        checksum = {"seekpoint.file": written.file, "seekpoint.sha256": written.sha256}
        properties = CommitProperties(custom_metadata=checksum, app_transactions=[guard])
        self._table.create_write_transaction([action], "append", SCHEMA, commit_properties=properties)

    def ahead(self, range_: Range, chain: Sequence[Entry]) -> Iterator[Written]:
        """What the table has of the range, none of which is in the manifest, with what lies before and between.

        Raises ConfigError where it has something of it that is in no file of an export any more.
        """
        position = range_.start
        for written in sorted(self._of(range_), key=lambda one: one.range.start):
            its = written.range
            if its.start > position:  # no file is written for what has no records
                yield Written(replace(its, start=position, end=its.start), "", 0, 0, None)
            yield written
            position = its.end
        is_last = not chain or chain[-1].end <= range_.start
        if position == range_.start and is_last and self.end(range_.partition, range_.topic_id) > position:
            raise ConfigError(
                f"the Delta table {self._uri} has {range_.partition} after {position}, where the manifest ends, "
                "and not in files of an export: it was rewritten (OPTIMIZE, RESTORE) before the manifest knew them. "
                "Export into another archive"
            )

    def _of(self, range_: Range) -> Iterator[Written]:
        """The files that have something of the range. Raises ArchiveDamaged for one that is missing or cut."""
        for file, action in self.files().items():
            if (found := range_of(file)) is None:
                continue
            its = found[0]
            same = (its.partition, its.topic_id) == (range_.partition, range_.topic_id)
            if same and its.start < range_.end and its.end > range_.start:
                self._require_whole(its, file, action["size_bytes"])
                checksum = self._checksums.get(file)
                yield Written(its, file, action["num_records"], action["size_bytes"], checksum)

    @cached_property
    def _checksums(self) -> Mapping[str, str]:
        """Of the files as they were written; a file whose commit the table's log no longer has is not in it.

        A checksum of what is there now would hide damage.
        """
        found = ((commit.get("seekpoint.file"), commit.get("seekpoint.sha256")) for commit in self._table.history())
        return {file: checksum for file, checksum in found if file and checksum}

    def _require_whole(self, range_: Range, file: str, size: int) -> None:
        found = self._storage.size(file)
        if found == size:
            return
        why = "it is not there" if found is None else f"it has {found} bytes, and {size} were written"
        raise ArchiveDamaged(
            range_.partition,
            range_.start,
            range_.end,
            self._storage.path(file),
            f"{why}: bring it back from a copy and run the export again (the Delta table {self._uri} names the file, "
            "the manifest does not yet), or export into another archive",
        )


def files_of_table(storage: Storage, topic: str) -> Collection[str]:
    """The files that the topic's Delta table names; none where there is no such table."""
    return DeltaLog(storage, topic).files() if storage.has_folder(f"{topic}/_delta_log") else ()


def _application(partition: Partition, topic_id: UUID) -> str:
    return f"seekpoint/{topic_id}/{partition.number}"

"""A Delta table for each topic of an archive: the same files, committed to the table's log.

The table's log is written first, then the manifest, both under the topic's lock. If an export crashes in between, the
table is ahead of the manifest. The table's transaction id says how far, and the next export adds the table's files to
the manifest instead of writing them again.
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
from seekpoint.kafka.ranges import Range
from seekpoint.records import Partition
from seekpoint.storage import Storage, below


class DeltaLog:
    """The Delta table of one topic of an archive, ``<root>/<topic>``. Use it under the topic's lock."""

    def __init__(self, storage: Storage, topic: str) -> None:
        try:
            import deltalake  # noqa: PLC0415 -- an extra
        except ModuleNotFoundError as error:
            raise needs_extra("Delta needs deltalake", "delta", error) from error
        # The URL's options are for pyarrow; deltalake takes its options from the environment.
        uri = below(storage.root, topic)
        self._storage = storage
        self._uri, self._topic = uri if storage.is_local else uri.partition("?")[0], topic
        self._table: Any = deltalake.DeltaTable.create(self._uri, SCHEMA, mode="ignore", name=topic)

    def files(self) -> Mapping[str, Any]:
        """The table's files, by path below the archive's root."""
        actions = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return {f"{self._topic}/{action['path']}": action for action in actions}

    def end(self, partition: Partition, topic_id: UUID) -> int:
        """The partition's end offset according to the table; 0 if the table lacks the partition."""
        return int(self._table.transaction_version(_application(partition, topic_id)) or 0)

    def add(self, written: Written) -> None:
        """Commit one file to the table, with the partition's end as its transaction id.

        Raises deltalake's CommitFailedError if another process has committed the partition meanwhile.
        """
        from deltalake.transaction import AddAction, CommitProperties, Transaction  # noqa: PLC0415

        partition, topic_id = written.range.partition, written.range.topic_id
        path = written.file.removeprefix(f"{self._topic}/")
        stats = json.dumps({"numRecords": written.records})
        action = AddAction(path, written.bytes, {}, round(time() * 1000), data_change=True, stats=stats)
        guard = Transaction(_application(partition, topic_id), max(written.range.end, self.end(partition, topic_id)))
        # If this export crashes before it changes the manifest, the next one finds the file here.
        checksum = {"seekpoint.file": written.file, "seekpoint.sha256": written.sha256}
        properties = CommitProperties(custom_metadata=checksum, app_transactions=[guard])
        self._table.create_write_transaction([action], "append", SCHEMA, commit_properties=properties)

    def ahead(self, range_: Range, chain: Sequence[Entry]) -> Iterator[Written]:
        """The table's files within a range that the manifest lacks, with empty ranges for the gaps.

        Raises ConfigError if the table has records of the range that are no longer in files of an export.
        """
        position = range_.start
        for written in sorted(self._files_of(range_), key=lambda file: file.range.start):
            file_range = written.range
            if file_range.start > position:  # no file is written for a range without records
                yield Written(replace(file_range, start=position, end=file_range.start), "", 0, 0, None)
            yield written
            position = file_range.end
        is_last = not chain or chain[-1].end <= range_.start
        if position == range_.start and is_last and self.end(range_.partition, range_.topic_id) > position:
            raise ConfigError(
                f"the manifest of {range_.partition} ends at {position}, and the Delta table {self._uri} has later "
                "records, but not in files of an export: the table was rewritten (OPTIMIZE, RESTORE) before the "
                "manifest listed its files. Export into another archive"
            )

    def _files_of(self, range_: Range) -> Iterator[Written]:
        """The files that overlap the range. Raises ArchiveDamaged for a file that is missing or has another size."""
        for file, action in self.files().items():
            if (parsed := range_of(file)) is None:
                continue
            file_range = parsed[0]
            same = (file_range.partition, file_range.topic_id) == (range_.partition, range_.topic_id)
            if same and file_range.start < range_.end and file_range.end > range_.start:
                self._require_whole(file_range, file, action["size_bytes"])
                checksum = self._checksums.get(file)
                yield Written(file_range, file, action["num_records"], action["size_bytes"], checksum)

    @cached_property
    def _checksums(self) -> Mapping[str, str]:
        """The checksums of the files as written; omits files whose commit the table's log no longer has.

        They are not computed again, because that would hide damage.
        """
        pairs = ((commit.get("seekpoint.file"), commit.get("seekpoint.sha256")) for commit in self._table.history())
        return {file: checksum for file, checksum in pairs if file and checksum}

    def _require_whole(self, range_: Range, file: str, size: int) -> None:
        stored_size = self._storage.size(file)
        if stored_size == size:
            return
        why = "it is missing" if stored_size is None else f"it has {stored_size} bytes, and {size} were written"
        raise ArchiveDamaged(
            range_.partition,
            range_.start,
            range_.end,
            self._storage.path(file),
            f"{why}: restore it from a copy and run the export again (the Delta table {self._uri} lists the file, "
            "the manifest does not yet), or export into another archive",
        )


def files_of_table(storage: Storage, topic: str) -> Collection[str]:
    """The files of the topic's Delta table; empty if there is no table."""
    return DeltaLog(storage, topic).files() if storage.has_folder(f"{topic}/_delta_log") else ()


def _application(partition: Partition, topic_id: UUID) -> str:
    return f"seekpoint/{topic_id}/{partition.number}"

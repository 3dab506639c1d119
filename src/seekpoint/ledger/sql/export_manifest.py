"""The statements on the manifest: constants, each with a snapshot under ``tests/sql``."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, Text, Uuid, and_, bindparam, exists, insert, literal_column, select

from seekpoint.ledger.tables import export_manifest, export_run

_entry = export_manifest.c
_ARCHIVE = bindparam("its_archive", type_=Text)
_of_partition = and_(
    _entry.archive == _ARCHIVE,
    _entry.topic == bindparam("its_topic", type_=Text),
    _entry.topic_id == bindparam("its_topic_id", type_=Uuid),
    _entry.partition == bindparam("its_partition", type_=Integer),
)
_START, _END = bindparam("start", type_=BigInteger), bindparam("end", type_=BigInteger)
_within = and_(_of_partition, _entry.from_offset < _END, _entry.to_offset > _START)

WRITTEN = ("topic", "partition", "topic_id", "from_offset", "to_offset", "records", "bytes", "file", "sha256")
_entries = select(*(_entry[name] for name in (*WRITTEN, "format", "consumer_group", "run", "actor", "written_at")))

WITHIN = _entries.where(_within).order_by(_entry.from_offset)
CHAIN = _entries.where(_of_partition).order_by(_entry.from_offset)
ALL = _entries.where(_entry.archive == _ARCHIVE).order_by(
    _entry.topic, _entry.topic_id, _entry.partition, _entry.from_offset
)
# Of whatever archive: a root may have several names (a link, a bucket's options), and no two files have one.
KNOWN = select(_entry.file).where(_entry.file != literal_column("''"))
ROOTS = select(_entry.archive).distinct().order_by(_entry.archive)
IS_FILE = select(exists().where(_entry.file == bindparam("its_file", type_=Text)))
INSERT = insert(export_manifest)
# Which files a sweep may look at: those whose names have a run that this very database knows.
NOTE = insert(export_run)
RUNS = select(export_run.c.id)

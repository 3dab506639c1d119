"""The ledger's tables, as SQLAlchemy metadata. A test compares them with the result of the migrations.

Every table is in schema ``seekpoint`` here; when a statement runs, the installed name replaces that
(:func:`in_schema`). Offsets are bigint everywhere, times are the database's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    and_,
    false,
    func,
    literal_column,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from seekpoint.records import State

DEFAULT_SCHEMA = "seekpoint"
LARGEST_BIGINT, LARGEST_INTEGER = 2**63 - 1, 2**31 - 1
"""The largest offset or id, and the largest partition."""

metadata = MetaData(
    schema=DEFAULT_SCHEMA,
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_record_key",
    },
)


def in_schema(schema: str) -> Mapping[str, Any]:
    """Execution options that replace the default schema with ``schema``, for one statement."""
    return {"schema_translate_map": {DEFAULT_SCHEMA: schema}}


def is_of_frames(staging_schema: str) -> bool:
    """Whether a run with this schema rebuilds the tables of a SparkPipeline."""
    return f"_{FRAMES_MARK}" in staging_schema


def _now(name: str) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp())


def _required(**kinds: Any) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name, kind in kinds.items()]


def _optional(**kinds: Any) -> list[Column[Any]]:
    return [Column(name, kind) for name, kind in kinds.items()]


# Statements about the whole group lock this row first; every claim and reset locks it FOR SHARE.
consumer_group = Table(
    "consumer_group",
    metadata,
    Column("name", Text, primary_key=True),
    Column("cluster_id", Text, comment="Kafka cluster the offsets belong to"),
    Column("version", Integer, nullable=False, server_default=text("1"), comment="handler version"),
    Column("tables", ARRAY(Text), nullable=False, server_default=text("'{}'"), comment="tables the group writes"),
    Column("paused", Boolean, nullable=False, server_default=false()),
    *_optional(paused_reason=Text, paused_by=Text),
    _now("created_at"),
    Column("declared", JSONB, comment="what its pipeline declares, by topic, for display"),
    Column(
        "forgotten", JSONB, comment="who forgot the group, when and why, and its positions; NULL: it is not forgotten"
    ),
)

# One row per partition; the hot row of every commit. No further index, and a low fillfactor, so that updates are HOT.
partition_offset = Table(
    "partition_offset",
    metadata,
    Column("consumer_group", Text, ForeignKey(consumer_group.c.name), nullable=False),
    *_required(topic=Text, partition=Integer),
    Column("topic_id", Uuid, nullable=False, comment="the topic's id when the offset was first stored"),
    Column("first_offset", BigInteger, nullable=False, comment="the first position ever applied"),
    Column("next_offset", BigInteger, nullable=False, comment="position to read next; never last processed"),
    Column("leader_epoch", Integer, comment="epoch of the last applied record; NULL: none is known"),
    Column("token", Uuid, nullable=False, comment="fencing token, drawn by every claim and every reset"),
    Column("epoch", BigInteger, nullable=False, comment="counts the tokens, for people and for order"),
    Column("owner", Uuid, comment="process that claimed it, for display; NULL after a release"),
    *_optional(claimed_at=DateTime(timezone=True), committed_at=DateTime(timezone=True)),
    Column("record_time", DateTime(timezone=True), comment="timestamp of the last applied record"),
    PrimaryKeyConstraint("consumer_group", "topic", "partition"),
    CheckConstraint("next_offset >= 0", name="next_offset"),
    # Not `postgresql_with=`: SQLAlchemy 2.0 has that only for indexes. The migration sets these; a test compares.
    info={
        "storage": {
            "fillfactor": "50",
            "autovacuum_vacuum_scale_factor": "0.0",
            "autovacuum_vacuum_threshold": "1000",
        }
    },
)

# A partition has a row here only while something is wrong with it: its owners crashed, a record is tried again, records
# may crash their process, or it is stopped. Transactions lock the partition's row above first, and read this table in a
# later statement, so that they see the commit of the lock's previous holder.
partition_trouble = Table(
    "partition_trouble",
    metadata,
    *_required(consumer_group=Text, topic=Text, partition=Integer),
    Column(
        "unreleased_claims",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="owners in a row that ended without a release",
    ),
    Column("attempt_offset", BigInteger),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("attempt_crashes", Integer, nullable=False, server_default=text("0")),
    Column("attempt_running", Boolean, nullable=False, server_default=false()),
    Column("attempt_error", Text, comment="NULL: the process that tried it never came back"),
    *_optional(retry_at=DateTime(timezone=True), attempts_allowed=Integer),
    Column("attempt_policy", Text, comment="what follows the last attempt"),
    Column("suspect_end", BigInteger, comment="end of the range that may hold a crashing record"),
    Column("suspect_part_end", BigInteger, comment="end of the part that is tried, or saw a crash"),
    Column("suspect_running", Boolean, nullable=False, server_default=false()),
    Column("stop_kind", Text, comment="why the partition is stopped; NULL: it is not"),
    Column("stop_offset", BigInteger, comment="where it stopped"),
    Column("stop_message", Text),
    Column("stop_choices", ARRAY(Text), comment="what an operator can do"),
    Column("stopped_at", DateTime(timezone=True)),
    Column("stop_log_end", BigInteger, comment="where the log ended when it stopped with OffsetLost"),
    PrimaryKeyConstraint("consumer_group", "topic", "partition"),
    ForeignKeyConstraint(
        ["consumer_group", "topic", "partition"],
        [partition_offset.c.consumer_group, partition_offset.c.topic, partition_offset.c.partition],
        ondelete="CASCADE",
    ),
)

# The tables to which a topic's records are written: two pipelines with one group name must not divide a topic.
group_topic = Table(
    "group_topic",
    metadata,
    Column("consumer_group", Text, ForeignKey(consumer_group.c.name), nullable=False),
    Column("topic", Text, nullable=False),
    Column("version", Integer, nullable=False, comment="handler version that declared them"),
    Column("tables", ARRAY(Text), comment="where records of the topic go; NULL: not known"),
    Column("replaced", Integer, nullable=False, server_default=text("0"), comment="counts accepted declarations"),
    _now("changed_at"),
    PrimaryKeyConstraint("consumer_group", "topic"),
)

# Every record that the position moved past without applying it, complete (I1, I4), and what happened to it afterwards.
dead_letter = Table(
    "dead_letter",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("consumer_group", Text, ForeignKey(consumer_group.c.name), nullable=False),
    *_required(topic=Text, topic_id=Uuid, partition=Integer, record_offset=BigInteger),
    *_optional(leader_epoch=Integer, timestamp_ms=BigInteger, key=LargeBinary),
    Column("value", LargeBinary, comment="NULL also where the record was skipped"),
    *_required(header_names=ARRAY(LargeBinary), header_values=ARRAY(LargeBinary), state=Text, cause=Text, error=Text),
    *_optional(traceback=Text, sqlstate=Text),
    Column("attempts", Integer, nullable=False),
    Column("version", Integer, nullable=False, comment="handler version"),
    _now("dead_lettered_at"),
    Column("dead_lettered_by", Uuid, comment="process that dead-lettered it"),
    Column("replays", Integer, nullable=False, server_default=text("0")),
    *_optional(
        replayed_at=DateTime(timezone=True),
        replay_error=Text,
        replay_traceback=Text,
        closed_at=DateTime(timezone=True),
        closed_by=Text,
        closed_reason=Text,
    ),
    Column("error_line", Text, comment="innermost line of the user's own code in the error's traceback"),
    Column("edited_value", LargeBinary, comment="what a replay applies in place of value"),
    *_optional(edited_at=DateTime(timezone=True), edited_by=Text, edited_reason=Text),
    Column("retry_at", DateTime(timezone=True), comment="when a waiting record is due"),
    Column(
        "crashes",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="retries of a waiting record that have begun, and whose end is not known",
    ),
    UniqueConstraint("consumer_group", "topic_id", "partition", "record_offset"),
    CheckConstraint(f"state IN ({', '.join(repr(state.value) for state in State)})", name="state"),
    CheckConstraint("cardinality(header_names) = cardinality(header_values)", name="headers"),
    CheckConstraint("num_nonnulls(edited_value, edited_at, edited_by, edited_reason) IN (0, 4)", name="edit"),
    CheckConstraint("state <> 'waiting' OR retry_at IS NOT NULL", name="retry"),
)
_dead_letter = dead_letter.c
# Not applied, and may still be. Literals, so that prepared statements match the partial indexes, too.
IS_OPEN = _dead_letter.state.in_(
    [literal_column("'dead_lettered'"), literal_column("'blocked'"), literal_column("'waiting'")]
)
# Open dead letters in the order of their records: read by each batch that keeps key order, and by lists.
Index(
    "dead_letter_open_idx",
    _dead_letter.consumer_group,
    _dead_letter.topic,
    _dead_letter.partition,
    _dead_letter.record_offset,
    postgresql_where=IS_OPEN,
)
# Finds each key's first open dead letter, skipping from key to key. Has the topic id, so that dead letters of an
# earlier topic are not read. Has the key's hash, because no index takes a key of over 2,700 bytes: its dead letter
# could not be inserted.
Index(
    "dead_letter_key_idx",
    _dead_letter.consumer_group,
    _dead_letter.topic_id,
    _dead_letter.partition,
    func.sha256(_dead_letter.key),
    _dead_letter.record_offset,
    postgresql_where=and_(IS_OPEN, _dead_letter.key.is_not(None)),
)
# Finds a partition's waiting records that are due first.
Index(
    "dead_letter_waiting_idx",
    _dead_letter.consumer_group,
    _dead_letter.topic,
    _dead_letter.partition,
    _dead_letter.retry_at,
    postgresql_where=_dead_letter.state == literal_column("'waiting'"),
)

# Lost ranges: retention, truncation, a recreated topic, skipped by an operator (I4).
lost_range = Table(
    "lost_range",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("consumer_group", Text, ForeignKey(consumer_group.c.name), nullable=False),
    *_required(topic=Text, topic_id=Uuid, partition=Integer, from_offset=BigInteger),
    Column("to_offset", BigInteger),  # NULL: the end is unknown
    *_required(reason=Text, decision=Text, actor=Text),
    _now("at"),
    Column("operator_reason", Text, comment="why, as the operator has said"),
    Index(None, "consumer_group", "topic", "partition"),
)

# Who did what, why and when: resets from where to where, pauses, replays and other actions (I5).
admin_action = Table(
    "admin_action",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("consumer_group", Text, ForeignKey(consumer_group.c.name), nullable=False),
    Column("action", Text, nullable=False),
    *_optional(topic=Text, partition=Integer, from_offset=BigInteger, to_offset=BigInteger),
    *_required(actor=Text, reason=Text),
    _now("at"),
    Index(None, "consumer_group", "at"),
)
_action = admin_action.c
# Finds the last resets of a partition among all actions: every replay and discard is a row, too.
IS_RESET = _action.action == literal_column("'reset'")
LOWER_FIRST = "lower first offset"  # a reset to before the first offset: the records in between had not been applied
TAKE_BACK = "take back"  # a reset that rebuilt the tables: the records in between no longer have rows
BEGUN_AGAIN = "begin again"  # a start that accepts that the group was forgotten: the positions are new
Index(
    "admin_action_reset_idx",
    _action.consumer_group,
    _action.topic,
    _action.partition,
    _action.id,
    postgresql_where=IS_RESET,
)

# One run of a job. A reload rebuilds the tables of its groups next to the live ones. The driver holds this row's lock
# during each step; a driver that takes over raises the epoch, so that the earlier driver's next step fails.
RELOAD_CLOSED = ("verified", "cut_over", "aborted", "failed")
RELOAD_STATES = ("opened", "staging", "staged", "indexed", "catching_up", "compared", *RELOAD_CLOSED)
BATCHES = ("batch", "reprocess")  # they write as a worker does
STRATEGIES = ("merge", "swap", "verify", *BATCHES)
PUBLISHING = ("merge", "swap")  # they replace live tables with rebuilt ones
FRAMES_MARK = "frames_"  # part of the schema's name, for a run that rebuilds a SparkPipeline's tables
reload_run = Table(
    "reload_run",
    metadata,
    Column("id", Uuid, primary_key=True),
    *_required(groups=ARRAY(Text), tables=ARRAY(Text), strategy=Text),
    Column("pipelines", ARRAY(Text), nullable=False, comment="as module:name, one per group"),
    Column("version_from", ARRAY(Integer), nullable=False, comment="of each group, at the opening"),
    Column("version_to", ARRAY(Integer), nullable=False, comment="of each group's pipeline"),
    Column("state", Text, nullable=False),
    Column("driver_epoch", BigInteger, nullable=False, comment="an older driver's next step fails"),
    Column("driver", Text, nullable=False, comment="host and process, for people"),
    Column("staging_schema", Text, nullable=False, comment="where the rebuilt tables are"),
    Column("swept", Boolean, nullable=False, server_default=false(), comment="nothing is left there"),
    Column("diff_xid", Text, comment="oldest transaction that the prepared difference did not see"),
    *_required(actor=Text, reason=Text),
    Column("error", Text, comment="why it failed or was aborted"),
    Column("archive", Text, comment="of what the logs have no more, as the export names it"),
    _now("opened_at"),
    _now("changed_at"),
    Column("differences", JSONB, comment="rows of each table, as the comparison counted them, for display"),
    CheckConstraint(f"state IN ({', '.join(map(repr, RELOAD_STATES))})", name="state"),
    CheckConstraint(f"strategy IN ({', '.join(map(repr, STRATEGIES))})", name="strategy"),
)

# The position of the rebuild, which moves in the transactions that add rows to the staged tables (I1).
reload_position = Table(
    "reload_position",
    metadata,
    Column("run", Uuid, ForeignKey(reload_run.c.id), nullable=False),
    *_required(consumer_group=Text, topic=Text, partition=Integer, topic_id=Uuid),
    Column("first_offset", BigInteger, nullable=False, comment="where the rebuild begins"),
    Column("end_offset", BigInteger, nullable=False, comment="the group's position when the run was opened"),
    Column("next_offset", BigInteger, nullable=False, comment="position of what is staged"),
    Column("epoch", BigInteger, nullable=False, comment="of the offset's row at the opening"),
    Column("resets", BigInteger, nullable=False, comment="resets by operators, as known at the opening"),
    PrimaryKeyConstraint("run", "consumer_group", "topic", "partition"),
)

# One row for each attempt at a range, written in the transaction that stages the attempt's rows.
reload_staged = Table(
    "reload_staged",
    metadata,
    Column("run", Uuid, ForeignKey(reload_run.c.id), nullable=False),
    Column("table_name", Text, nullable=False, comment="in the run's staging schema"),
    *_required(
        consumer_group=Text,
        topic=Text,
        partition=Integer,
        from_offset=BigInteger,
        to_offset=BigInteger,
        records=BigInteger,
    ),
    Column("row_counts", ARRAY(BigInteger), nullable=False, comment="of each sink's table"),
    Column("dead_letters", BigInteger, nullable=False),
    _now("staged_at"),
    PrimaryKeyConstraint("run", "table_name"),
)

# An exported file counts once its row is committed. Rows of one topic id and partition leave no gaps, so that an
# archive can replace records that the log has lost.
export_manifest = Table(
    "export_manifest",
    metadata,
    Column("archive", Text, nullable=False, comment="where the files are: a folder, or a URL"),
    *_required(
        topic=Text,
        topic_id=Uuid,
        partition=Integer,
        from_offset=BigInteger,
        to_offset=BigInteger,
        records=BigInteger,
        bytes=BigInteger,
    ),
    Column("file", Text, nullable=False, comment="below the archive"),
    Column("format", Text, nullable=False, comment="parquet or delta"),
    Column("consumer_group", Text, nullable=False, comment="whose position bounded it"),
    Column("run", Uuid, nullable=False, comment="of the export that wrote it"),
    Column("actor", Text, nullable=False),
    _now("written_at"),
    Column("sha256", Text, comment="of the file's bytes, in hexadecimal digits"),
    PrimaryKeyConstraint("archive", "topic", "topic_id", "partition", "from_offset"),
    CheckConstraint("to_offset > from_offset", name="range"),
)

# Inserted before an export writes its first file. File names have the id: files with unknown ids belong to another
# database.
export_run = Table(
    "export_run",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("archive", Text, nullable=False, comment="where its files are: a folder, or a URL"),
    Column("consumer_group", Text, nullable=False, comment="whose position bounded it"),
    Column("actor", Text, nullable=False),
    _now("began_at"),
)

# For display, like position_sample: no decision uses it, because a row may be written late.
worker = Table(
    "worker",
    metadata,
    Column("owner", Uuid, primary_key=True, comment="as in partition_offset"),
    *_required(consumer_group=Text, host=Text, pid=Integer),
    Column("client_id", Text, comment="of its Kafka client; NULL: the client's default"),
    Column("version", Integer, nullable=False, comment="handler version"),
    Column("library", Text, nullable=False, comment="version of Seekpoint"),
    _now("started_at"),
    _now("seen_at"),
    Column("state", Text, nullable=False, comment="running, paused, trouble or ended"),
    Column("trouble", Text, comment="what is wrong, why it waits, or the error that ended it"),
)

# Samples of a position and its log: one a minute for a day, one an hour for a month.
position_sample = Table(
    "position_sample",
    metadata,
    *_required(consumer_group=Text, topic=Text, partition=Integer),
    _now("at"),
    Column("topic_id", Uuid, nullable=False, comment="whose log it is"),
    Column("next_offset", BigInteger, nullable=False, comment="the stored position"),
    Column("log_start", BigInteger, nullable=False, comment="first offset that is still in the log"),
    Column("log_end", BigInteger, nullable=False, comment="after the last record that can be read"),
    PrimaryKeyConstraint("consumer_group", "topic", "partition", "at"),
)

# Complete records that a reprocess could not apply.
reprocess_dead_letter = Table(
    "reprocess_dead_letter",
    metadata,
    Column("run", Uuid, ForeignKey(reload_run.c.id), nullable=False),
    *_required(record_offset=BigInteger),
    *_optional(leader_epoch=Integer, timestamp_ms=BigInteger, key=LargeBinary, value=LargeBinary),
    *_required(header_names=ARRAY(LargeBinary), header_values=ARRAY(LargeBinary), state=Text, cause=Text, error=Text),
    *_optional(traceback=Text, sqlstate=Text),
    _now("dead_lettered_at"),
    PrimaryKeyConstraint("run", "record_offset"),
)

# Dead letters that a running worker of the group will replay. It commits that it has started the request before it
# applies a record, so a request whose worker has crashed is not run again.
REQUEST_STATES = ("requested", "started", "done", "failed")
replay_request = Table(
    "replay_request",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("consumer_group", Text, ForeignKey(consumer_group.c.name), nullable=False),
    Column("version", Integer, nullable=False, comment="handler version that is to replay them"),
    Column("dead_letters", ARRAY(BigInteger), nullable=False, comment="ids"),
    *_required(state=Text, actor=Text, reason=Text),
    Column("worker", Uuid, comment="process that has started it"),
    Column("replayed", BigInteger, nullable=False, server_default=text("0"), comment="were applied"),
    Column("failed", BigInteger, nullable=False, server_default=text("0"), comment="failed again"),
    Column("refused", BigInteger, nullable=False, server_default=text("0")),
    Column("error", Text, comment="why the request failed"),
    _now("requested_at"),
    *_optional(started_at=DateTime(timezone=True)),
    Column("seen_at", DateTime(timezone=True), comment="when its worker last said so"),
    *_optional(ended_at=DateTime(timezone=True)),
    Column("remaining", ARRAY(BigInteger), comment="ids that are left, where a worker has handed it back"),
    Column("refusals", ARRAY(Text), comment="why the first ones were refused"),
    CheckConstraint(f"state IN ({', '.join(map(repr, REQUEST_STATES))})", name="state"),
    Index(None, "consumer_group", "id"),
)

# The views, whose SQL is in the migration. Their readers need no privileges on tables.
_views = MetaData(schema=DEFAULT_SCHEMA)
lag = Table(
    "lag",
    _views,
    *_optional(consumer_group=Text, topic=Text, partition=Integer, next_offset=BigInteger),
    *_optional(committed_at=DateTime(timezone=True), record_time=DateTime(timezone=True)),
    *_optional(owner=Uuid, host=Text, pid=Integer),
    *_optional(stop_kind=Text, stop_offset=BigInteger, stopped_at=DateTime(timezone=True), dead_letters=BigInteger),
    *_optional(blocked=BigInteger, waiting=BigInteger, oldest_waiting_seconds=Double, overdue_seconds=Double),
    *_optional(postponed=BigInteger),
    *_optional(sampled_at=DateTime(timezone=True), sample_age=Interval, log_start=BigInteger, log_end=BigInteger),
    *_optional(lag_records=BigInteger, lag_seconds=Double, headroom_records=BigInteger, headroom_seconds=Double),
    *_optional(owned=Boolean),
    *_optional(next_record_at=DateTime(timezone=True), reached_at=DateTime(timezone=True), reached_end=BigInteger),
    *_optional(log_start_since=DateTime(timezone=True), past_log_start=BigInteger),
)
group_status = Table(
    "group_status",
    _views,
    *_optional(consumer_group=Text, version=Integer, paused=Boolean, paused_by=Text, paused_reason=Text),
    *_optional(partitions=BigInteger, owned=BigInteger, stopped=BigInteger, unknown_lag=BigInteger),
    *_optional(lag_records=BigInteger, lag_seconds=Double, headroom_records=BigInteger, headroom_seconds=Double),
    *_optional(sample_age=Interval, dead_letters=BigInteger, blocked=BigInteger, waiting=BigInteger),
    *_optional(oldest_waiting_seconds=Double, committed_at=DateTime(timezone=True), workers=BigInteger),
)
partition_state = Table(
    "partition_state",
    _views,
    *(Column(column.name, column.type) for column in partition_offset.c),
    *(Column(column.name, column.type) for column in partition_trouble.c if not column.primary_key),
)

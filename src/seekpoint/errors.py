"""Every error that Seekpoint raises, for programs that catch them.

::

    SeekpointError
    ├── ConfigError             the declaration or the configuration contradicts itself
    │   └── HandlerMisuse       a handler committed, closed or broke its transaction
    ├── SchemaMismatch          the ledger's tables are missing, older or newer than this library
    ├── Fenced                  the claim or the position is not the expected one: nothing was written
    ├── HandlerOutdated         the group is at a newer handler version
    ├── StandbyRequired         a reload to this handler version is open: the worker waits until it has ended
    ├── DeclarationDiffers      the group writes records of a topic to other tables than this pipeline
    ├── GroupPaused             an operator paused the group
    ├── GroupForgotten          an operator removed the group from the ledger (seekpoint groups forget)
    ├── ClusterChanged          the brokers belong to another cluster than the stored offsets
    ├── KafkaUnavailable        the brokers did not answer in time; ask again later
    ├── CodecUnavailable        a service that a codec needs (a schema registry) does not answer; the worker waits
    ├── StopTimeout             a worker did not end within its grace period (a TimeoutError too)
    ├── NotApplied              the position did not pass an awaited record in time (a TimeoutError too)
    ├── TooManyDeadLetters      the limits on dead letters are reached: the worker stops instead
    ├── FrameFailed             a frame raised, or made rows that cannot be written: nothing of it is written
    ├── RangeLost               a range of the log that a job was to read is no longer in it
    ├── RangeStuck              a range of the log cannot be read to its end
    ├── ArchiveDamaged          a file of an archive is missing, truncated or changed
    ├── ReloadRefused           a reload cannot be opened or published
    │   ├── BatchRefused        a batch cannot be run: nothing of it is written
    ├── CutOverRefused          a cut-over would wait, delete or change more than allowed: the run stays open
    ├── ReloadOver              the run has ended, or another driver has taken it over
    └── PartitionStopped        this partition waits for a decision; the others continue
        ├── OffsetLost          the stored offset is no longer (or not yet) in the log
        ├── TopicRecreated      the topic was deleted and created again
        ├── TopicUnknown        no broker has known the topic for a few seconds
        ├── TableMissing        a topic that a pattern matches has no table that takes its rows
        └── PoisonStop          a record cannot be applied, and the policy is to stop

    Poison                      raised by users' code only: this record can never be applied

Errors of the database and of Kafka pass through unwrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self
from uuid import UUID

from seekpoint import remedies
from seekpoint.records import Cause, Failure, Partition, Record

__all__ = [
    "ArchiveDamaged",
    "BatchRefused",
    "Cause",
    "ClusterChanged",
    "CodecUnavailable",
    "ConfigError",
    "CutOverRefused",
    "DeclarationDiffers",
    "Failure",
    "Fenced",
    "FrameFailed",
    "GroupForgotten",
    "GroupPaused",
    "HandlerMisuse",
    "HandlerOutdated",
    "KafkaUnavailable",
    "NotApplied",
    "OffsetLost",
    "PartitionStopped",
    "Poison",
    "PoisonStop",
    "RangeLost",
    "RangeStuck",
    "ReloadOver",
    "ReloadRefused",
    "SchemaMismatch",
    "SeekpointError",
    "StandbyRequired",
    "StopTimeout",
    "TooManyDeadLetters",
    "TopicRecreated",
    "TopicUnknown",
]


class SeekpointError(Exception):
    """Base class of every error that Seekpoint itself raises.

    ``code`` names the class's entry on the page *Troubleshooting*, which ``seekpoint explain CODE`` prints. The first
    line of ``str()`` ends with the code; ``text`` is the text without it.
    """

    code: ClassVar[str] = "SP1000"

    @property
    def text(self) -> str:
        """The message without the code."""
        return super().__str__()

    def __str__(self) -> str:
        first, newline, rest = self.text.partition("\n")
        return f"{first} [{self.code}]{newline}{rest}"


def _listed(choices: Sequence[str]) -> str:
    return "\nChoices:" + "".join(f"\n  - {choice}" for choice in choices) if choices else ""


class ConfigError(SeekpointError):
    """The declaration, the configuration or the environment cannot work; the message names the remedy."""

    code = "SP1001"


def needs_extra(purpose: str, extra: str, error: BaseException | None = None) -> ConfigError:
    """The error for an optional dependency that is missing.

    Its message names a path, because Seekpoint is not on the package index, where another project may have its name.
    """
    why = "" if error is None else f" ({error})"
    return ConfigError(f"{purpose}: {install(extra)}{why}")


@contextmanager
def required(purpose: str, extra: str) -> Iterator[None]:
    """Wrap an import of an optional dependency: raises :func:`needs_extra` if it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise needs_extra(purpose, extra, error) from error


def install(extra: str) -> str:
    """The sentence that says how to install an extra."""
    return (
        f"install Seekpoint's extra {extra!r} from your checkout or wheel: pip install '/path/to/seekpoint[{extra}]' "
        "(the package is not on the index)"
    )


class HandlerMisuse(ConfigError):  # noqa: N818 -- named after what happened, as the public API promises
    """A handler ended, closed or broke its transaction, or left work unfinished. Uncommitted rows are rolled back."""

    code = "SP1002"


class SchemaMismatch(SeekpointError):  # noqa: N818
    """The ledger's schema is missing, older or newer than this library; the message names the command."""

    code = "SP1003"


class Fenced(SeekpointError):  # noqa: N818
    """The ledger refused the write: the claim or the position is not the expected one. Nothing was written.

    ``reason`` is the sentence in the database's error.
    """

    code = "SP1101"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HandlerOutdated(SeekpointError):  # noqa: N818
    """The group is at a newer handler version than this process, which exits as outdated."""

    code = "SP1102"


class StandbyRequired(SeekpointError):  # noqa: N818
    """A reload of the group to this handler version is open: the worker claims nothing until the reload has ended.

    ``run`` is the reload's id, ``state`` its state, ``version`` the waiting handler version. A claim at this version
    would mix rows of the old and the new handler, which the reload avoids. ``on_spark``: the run rebuilds the tables of
    a SparkPipeline, and another command resumes it.
    """

    code = "SP1103"

    def __init__(self, group: str, version: int, *, run: UUID, state: str, driver: str, on_spark: bool = False) -> None:
        command = "spark reload" if on_spark else "reload run"
        super().__init__(
            f"handler version {version} of group {group!r} waits as a standby for reload {run}, which is {state} "
            f"(driver: {driver}), and takes over when it has ended. If its driver has ended: `seekpoint {command} "
            f"MODULE:NAME --resume {run}`, or `seekpoint reload abort {run} --reason ...`"
        )
        self.group, self.version, self.run, self.state, self.driver = group, version, run, state, driver


class DeclarationDiffers(SeekpointError):  # noqa: N818
    """The group writes records of a topic to other tables than this process, at the same handler version.

    Two pipelines with one group name would divide the topic between their tables. ``stored`` are the tables of the
    group, ``declared`` those of this process, with their Postgres schemas.
    """

    code = "SP1104"

    def __init__(self, group: str, version: int, topic: str, *, stored: Sequence[str], declared: Sequence[str]) -> None:
        super().__init__(
            f"group {group!r} at handler version {version} writes records of topic {topic!r} to {', '.join(stored)}, "
            f"but this pipeline writes them to {', '.join(declared)}: a group name belongs to one pipeline"
            + _listed(
                (
                    "if this is another pipeline: give it another group name",
                    "if it is the same pipeline, changed: raise its version=",
                    (
                        "or start it with Worker(accept_declaration=True) or `seekpoint run --accept-declaration`; "
                        "workers that run now exit as outdated"
                    ),
                )
            )
        )
        self.group, self.version, self.topic = group, version, topic
        self.stored, self.declared = tuple(stored), tuple(declared)


class GroupPaused(SeekpointError):  # noqa: N818
    """An operator paused the group; ``actor`` and ``reason`` say who and why."""

    code = "SP1105"

    def __init__(self, group: str, reason: str | None, actor: str | None) -> None:
        super().__init__(
            f"group {group!r} is paused by {actor or 'unknown'}: {reason or 'no reason given'}; "
            f"resume it: {remedies.resume(group)}"
        )
        self.group, self.reason, self.actor = group, reason, actor


class GroupForgotten(SeekpointError):  # noqa: N818
    """An operator removed the group from the ledger: its workers apply nothing until that is undone or accepted.

    ``actor`` and ``reason`` say who removed it and why; ``forgotten_at`` is the time for
    ``Worker(accept_forgotten=...)``.
    """

    code = "SP1106"

    def __init__(self, group: str, *, actor: str, reason: str, forgotten_at: str) -> None:
        super().__init__(
            f"group {group!r} was forgotten by {actor} at {forgotten_at}: {reason}"
            + _listed(
                (
                    f"undo it: {remedies.undo_forget(group)}; it continues at its offsets",
                    (
                        "begin again at StartAt, as a new group: seekpoint run MODULE:NAME --accept-forgotten "
                        f"{forgotten_at}, or Worker(accept_forgotten={forgotten_at!r})"
                    ),
                    "give the pipeline another group name",
                )
            )
        )
        self.group, self.actor, self.reason, self.forgotten_at = group, actor, reason, forgotten_at

    @classmethod
    def of(cls, group: str, forgotten: Mapping[str, Any]) -> Self:
        """The error for a forgotten group, from the ledger's entry about it."""
        return cls(group, actor=forgotten["by"], reason=forgotten["reason"], forgotten_at=forgotten["at"])


class ClusterChanged(SeekpointError):  # noqa: N818
    """The group's offsets belong to another cluster id than the brokers'; ``choices`` lists the decisions."""

    code = "SP1107"

    def __init__(self, message: str, choices: Sequence[str] = ()) -> None:
        super().__init__(f"{message}{_listed(choices)}")
        self.choices = tuple(choices)


class KafkaUnavailable(SeekpointError):  # noqa: N818
    """The brokers did not answer a request in time; the same request may succeed later.

    ``remedy``, the end of the message, says what to do; None without a remedy.
    """

    code = "SP1301"

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message if remedy is None else f"{message}; {remedy}")
        self.remedy = remedy


class CodecUnavailable(SeekpointError):  # noqa: N818
    """A service that a codec needs (a schema registry) does not answer: no record is blamed, and the worker waits.

    ``ask`` sends the request again: it returns after any answer, and raises CodecUnavailable without one. Without
    ``ask``, the worker counts as recovered when its loop continues.
    """

    code = "SP1302"

    def __init__(self, message: str, ask: Callable[[], object] | None = None) -> None:
        super().__init__(message)
        self.ask = ask


class StopTimeout(SeekpointError, TimeoutError):  # noqa: N818
    """A worker did not end within ``grace`` seconds after it was asked to stop; its connection was closed.

    Nothing of the open batch is committed. The message names the call that has not returned, and its line.
    """

    code = "SP1303"

    def __init__(self, message: str, grace: float) -> None:
        super().__init__(message)
        self.grace = grace


class NotApplied(SeekpointError, TimeoutError):  # noqa: N818
    """The partition did not pass ``offset`` in time; it is at ``position``; None if no worker has claimed it.

    The record is not lost: it may still be applied. The message says why the partition waits, if that is known.
    """

    code = "SP1304"

    def __init__(self, partition: Partition, offset: int, position: int | None, message: str) -> None:
        super().__init__(f"{partition}: offset {offset}: {message}")
        self.partition, self.offset, self.position = partition, offset, position


class PartitionStopped(SeekpointError):  # noqa: N818
    """One partition waits for a decision at ``offset``: ``message`` says why, ``choices`` lists the decisions."""

    code = "SP1200"

    def __init__(self, partition: Partition, offset: int, message: str, choices: Sequence[str] = ()) -> None:
        super().__init__(f"{partition} stopped at offset {offset}: {message}{_listed(choices)}")
        self.partition, self.offset, self.message, self.choices = partition, offset, message, tuple(choices)
        self.token: UUID | None = None  # token of the claim at the stop; a reset draws a new token, which ends the stop


class OffsetLost(PartitionStopped):
    """The stored position is out of range, or in a part of the log that was truncated and written again.

    ``log_end`` is where the log ended; None if that is unknown because new records have been written after the
    truncation.
    """

    code = "SP1201"

    def __init__(
        self,
        partition: Partition,
        offset: int,
        message: str,
        choices: Sequence[str] = (),
        *,
        log_end: int | None = None,
    ) -> None:
        super().__init__(partition, offset, message, choices)
        self.log_end = log_end


class TopicRecreated(PartitionStopped):
    """The topic was deleted and created again: the stored position belongs to another topic id."""

    code = "SP1202"

    @classmethod
    def of(cls, group: str, partition: Partition, offset: int, *, stored: UUID, topic_id: UUID) -> Self:
        """The error for a position of the group that belongs to topic id ``stored``; it lists the choices."""
        beginning = remedies.accept_topic(group, partition.topic, "--from-beginning")
        elsewhere = remedies.accept_topic(group, partition.topic, "--at OFFSET")
        return cls(
            partition,
            offset,
            f"topic {partition.topic!r} was deleted and created again: the stored offset belongs to topic id {stored}, "
            f"the brokers report {topic_id}",
            choices=(
                f"restart: {beginning} reads the new topic from its beginning",
                f"continue: {elsewhere} reads the new topic from there",
                "stop: do nothing; the partition is not read until you decide",
            ),
        )


class TopicUnknown(PartitionStopped):
    """No broker has known the topic for a few seconds; the stop ends when a broker reports its id again."""

    code = "SP1203"


class TableMissing(PartitionStopped):
    """A topic that the pipeline's pattern matches has no table for its rows; ends as soon as there is one."""

    code = "SP1206"

    @classmethod
    def of(cls, partition: Partition, offset: int, reason: str) -> Self:
        """The error for a partition of the topic; ``reason`` says what is missing."""
        return cls(
            partition,
            offset,
            f"topic {partition.topic!r} matches the pipeline's pattern, but has no table that takes its rows: {reason}",
            choices=(
                "create or change the table: reading then begins automatically",
                "use another table: deploy the pipeline with another name or function for the table",
                "exclude the topic: deploy the pipeline with a pattern that does not match it",
                "stop: do nothing; the other topics are read",
            ),
        )


class PoisonStop(PartitionStopped):
    """A record cannot be applied, and the failure policy is to stop before it; ``failure`` says why."""

    code = "SP1204"

    def __init__(
        self, partition: Partition, offset: int, message: str, choices: Sequence[str] = (), *, failure: Failure
    ) -> None:
        super().__init__(partition, offset, message, choices)
        self.failure = failure


class TooManyDeadLetters(SeekpointError):  # noqa: N818
    """More records failed than ``DeadLetterLimits`` allow: nothing of the batch was written, and no record is lost."""

    code = "SP1205"


class FrameFailed(SeekpointError):  # noqa: N818
    """A frame (``SparkPipeline``) raised, or made rows that cannot be written: nothing of its micro-batch is written.

    The message names the frame and, if the micro-batch had begun, its ranges.
    """

    code = "SP1405"


class RangeLost(SeekpointError):  # noqa: N818
    """A range of the log cannot be read at ``offset``: removed by retention, a truncation or a deletion."""

    code = "SP1406"

    def __init__(self, partition: Partition, offset: int, message: str) -> None:
        super().__init__(f"{partition} cannot be read at offset {offset}: {message}")
        self.partition, self.offset = partition, offset


class RangeStuck(SeekpointError):  # noqa: N818
    """The range of the log from ``offset`` to ``end`` cannot be read to its end now; the message says why."""

    code = "SP1407"

    def __init__(self, partition: Partition, offset: int, end: int, message: str) -> None:
        super().__init__(f"{partition} cannot be read from offset {offset} to {end}: {message}")
        self.partition, self.offset, self.end = partition, offset, end


class ArchiveDamaged(SeekpointError):  # noqa: N818
    """The file that has the records ``[start, end)`` of a partition is missing, truncated or changed."""

    code = "SP1408"

    def __init__(self, partition: Partition, start: int, end: int, file: str, message: str) -> None:
        super().__init__(f"{file}, the file of {partition} [{start}, {end}): {message}")
        self.partition, self.start, self.end, self.file = partition, start, end, file


class ReloadRefused(SeekpointError):  # noqa: N818
    """A reload cannot be opened or published now; ``reasons`` lists each reason, with its remedy."""

    code = "SP1401"

    _what = "refused"  # a reload or verification

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(f"{self._what}:" + "".join(f"\n  - {reason}" for reason in reasons))
        self.reasons = tuple(reasons)


class BatchRefused(ReloadRefused):
    """A batch cannot be run or applied now: nothing of it is written; ``reasons`` lists why, with remedies."""

    code = "SP1402"

    _what = "the batch cannot be run"


class CutOverRefused(SeekpointError):  # noqa: N818
    """A cut-over would make workers wait longer, or delete or change more, than its limits allow.

    No live table was changed, and the run stays open: resume it with other limits. ``reasons`` lists each reason, with
    its remedy; ``predicted`` is the predicted wait for a merge, ``waits`` has the attempts' waits, in seconds.
    """

    code = "SP1403"

    def __init__(self, reasons: Sequence[str], *, predicted: float | None = None, waits: Sequence[float] = ()) -> None:
        super().__init__("the cut-over is refused; the run stays open:" + "".join(f"\n  - {r}" for r in reasons))
        self.reasons, self.predicted, self.waits = tuple(reasons), predicted, tuple(waits)


class ReloadOver(SeekpointError):  # noqa: N818
    """The run has ended, or another driver has taken it over; the message says which. Nothing was written."""

    code = "SP1404"


class Poison(Exception):  # noqa: N818 -- a control exception of users' code, like StopIteration
    """Raise this in a handler or in ``row=`` for a record that can never be applied.

    If the error names the records, no bisection is needed: ``raise Poison("negative amount", record)``.
    """

    def __init__(self, reason: str, *records: Record[Any, Any]) -> None:
        super().__init__(reason)
        self.reason, self.records = reason, records

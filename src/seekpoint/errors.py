"""Every error that Seekpoint raises.

::

    SeekpointError
    ├── ConfigError             the declaration or the configuration contradicts itself
    │   └── HandlerMisuse       a handler committed, closed or broke the transaction it was lent
    ├── SchemaMismatch          the ledger's tables are missing, older or newer than this library
    ├── Fenced                  the claim or the position is not the expected one: nothing was written
    ├── HandlerOutdated         the group is at a newer handler version
    ├── StandbyRequired         a reload to this handler version is open: the worker waits until it has ended
    ├── DeclarationDiffers      the group writes records of a topic to other tables than this pipeline
    ├── GroupPaused             an operator paused the group
    ├── GroupForgotten          an operator had the ledger forget the group
    ├── ClusterChanged          the brokers belong to another cluster than the stored offsets
    ├── KafkaUnavailable        the brokers did not answer in time; ask again later
    ├── CodecUnavailable        a service that a codec needs does not answer, as a schema registry; the worker waits
    ├── StopTimeout             a worker had not ended within its grace period (a TimeoutError too)
    ├── NotApplied              a record that was waited for was not passed in time (a TimeoutError too)
    ├── TooManyDeadLetters      the limits on dead letters are reached: the worker stops instead
    ├── RangeLost               a range of the log that a job was to read is no longer in it
    ├── RangeStuck              a range of the log cannot be read to its end
    ├── ArchiveDamaged          a file of an archive is missing, truncated or changed
    ├── ReloadRefused           a reload cannot be opened or published
    │   ├── BatchRefused        a batch cannot be run: nothing of it is written
    ├── CutOverRefused          a cut-over would wait, delete or change more than was allowed: the run stays open
    ├── ReloadOver              the run has ended, or another driver has taken it over
    └── PartitionStopped        this partition waits for a decision; the others continue
        ├── OffsetLost          the stored offset is no longer (or not yet) in the log
        ├── TopicRecreated      the topic was deleted and created again
        ├── TopicUnknown        the brokers have not known the topic for some seconds
        └── PoisonStop          a record cannot be applied, and the policy is to stop

    Poison                      raised by users' code only: this record can never be applied

Errors of the database and of Kafka pass through unwrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self
from uuid import UUID

from seekpoint import remedies
from seekpoint.records import Failure, Partition, Record


class SeekpointError(Exception):
    """Base class of every error that Seekpoint itself raises."""


def _listed(choices: Sequence[str]) -> str:
    return "\nChoices:" + "".join(f"\n  - {choice}" for choice in choices) if choices else ""


class ConfigError(SeekpointError):
    """The declaration, the configuration or the environment cannot work; the message names the remedy."""


def needs_extra(what: str, extra: str, error: BaseException | None = None) -> ConfigError:
    """The error for an optional dependency that is missing.

    Seekpoint is not on the package index, where the name may be another project's: messages name a path.
    """
    why = "" if error is None else f" ({error})"
    return ConfigError(f"{what}: {install(extra)}{why}")


@contextmanager
def required(what: str, extra: str) -> Iterator[None]:
    """Wrap an import of an optional dependency: raises :func:`needs_extra` where it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise needs_extra(what, extra, error) from error


def install(extra: str) -> str:
    """How to install an extra, in words."""
    return (
        f"install Seekpoint's extra {extra!r} from your checkout or wheel: pip install '/path/to/seekpoint[{extra}]' "
        "(the package is not on the index)"
    )


class HandlerMisuse(ConfigError):  # noqa: N818 -- named after what happened, as the public API promises
    """A handler ended, closed or broke the transaction it was lent, or returned work undone; nothing of it was kept."""


class SchemaMismatch(SeekpointError):  # noqa: N818
    """The ledger's schema is missing, older or newer than this library; the message names the command."""


class Fenced(SeekpointError):  # noqa: N818
    """The ledger refused the write: the claim or the position is no longer ours. Nothing was written.

    ``reason`` is the sentence the database answered.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HandlerOutdated(SeekpointError):  # noqa: N818
    """The group is at a newer handler version than this process runs; it exits as outdated."""


class StandbyRequired(SeekpointError):  # noqa: N818
    """A reload of the group to this handler version is open: nothing is claimed before that run has ended.

    ``run`` is its id, ``state`` the run's state, ``version`` the handler version that waits. A claim at this version
    would mix rows of the new handler with those of the old one, which the reload is there to avoid.
    """

    def __init__(self, group: str, version: int, *, run: UUID, state: str, driver: str) -> None:
        super().__init__(
            f"handler version {version} of group {group!r} waits as a standby for reload {run}, which is {state} "
            f"(driver: {driver}), and takes over when it has ended. If its driver has ended: `seekpoint reload run "
            f"MODULE:NAME --resume {run}`, or `seekpoint reload abort {run} --reason ...`"
        )
        self.group, self.version, self.run, self.state, self.driver = group, version, run, state, driver


class DeclarationDiffers(SeekpointError):  # noqa: N818
    """The group writes records of a topic to other tables than this process, at the same handler version.

    Two pipelines under one group name would divide the topic between their tables. ``stored`` are the tables of the
    group, ``declared`` those of this process, with their Postgres schemas.
    """

    def __init__(self, group: str, version: int, topic: str, *, stored: Sequence[str], declared: Sequence[str]) -> None:
        super().__init__(
            f"group {group!r} at handler version {version} writes records of topic {topic!r} to {', '.join(stored)}, "
            f"this pipeline writes them to {', '.join(declared)}: one group name is for one pipeline"
            + _listed(
                (
                    "another pipeline: give it a group name of its own",
                    "the same pipeline, changed: raise its version=",
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
    """The group was paused by an operator; ``reason`` and ``actor`` say why and by whom."""

    def __init__(self, group: str, reason: str | None, actor: str | None) -> None:
        super().__init__(
            f"group {group!r} is paused by {actor or 'unknown'}: {reason or 'no reason given'}; "
            f"resume it: {remedies.resume(group)}"
        )
        self.group, self.reason, self.actor = group, reason, actor


class GroupForgotten(SeekpointError):  # noqa: N818
    """An operator had the ledger forget the group: nothing is applied under its name until that is undone or accepted.

    ``actor`` and ``reason`` say by whom and why; ``at`` is when, as a start that accepts it names it.
    """

    def __init__(self, group: str, *, actor: str, reason: str, at: str) -> None:
        super().__init__(
            f"group {group!r} was forgotten by {actor} at {at}: {reason}"
            + _listed(
                (
                    f"undo it: {remedies.undo_forget(group)}; it continues at its offsets",
                    (
                        "begin again at StartAt, as a new group: seekpoint run MODULE:NAME --accept-forgotten "
                        f"{at}, or Worker(accept_forgotten={at!r})"
                    ),
                    "give the pipeline another group name",
                )
            )
        )
        self.group, self.actor, self.reason, self.at = group, actor, reason, at

    @classmethod
    def of(cls, group: str, forgotten: Mapping[str, Any]) -> Self:
        """The error for what is stored of a forgotten group."""
        return cls(group, actor=forgotten["by"], reason=forgotten["reason"], at=forgotten["at"])


class ClusterChanged(SeekpointError):  # noqa: N818
    """The brokers' cluster id is not the one the group's offsets belong to; ``choices`` lists the decisions."""

    def __init__(self, message: str, choices: Sequence[str] = ()) -> None:
        super().__init__(f"{message}{_listed(choices)}")
        self.choices = tuple(choices)


class KafkaUnavailable(SeekpointError):  # noqa: N818
    """The brokers did not answer a question in time; the same question may be answered later."""


class CodecUnavailable(SeekpointError):  # noqa: N818
    """A service that a codec needs, as a schema registry, does not answer: no record is blamed, and the worker waits.

    ``ask`` sends the request again: it returns once there is any answer, and raises CodecUnavailable while there is
    none. Without one, it is over as soon as the loop continues.
    """

    def __init__(self, message: str, ask: Callable[[], object] | None = None) -> None:
        super().__init__(message)
        self.ask = ask


class StopTimeout(SeekpointError, TimeoutError):  # noqa: N818
    """A worker had not ended ``grace`` seconds after it was asked to stop; its connection was closed.

    Nothing of the open batch is committed. The message names the call that has not returned, and its line.
    """

    def __init__(self, message: str, grace: float) -> None:
        super().__init__(message)
        self.grace = grace


class NotApplied(SeekpointError, TimeoutError):  # noqa: N818
    """``offset`` of a partition was not passed in the time given; the partition is at ``position``, None if unclaimed.

    The record is not lost: it may still be applied. The message says what the partition waits
    for, as far as the ledger knows.
    """

    def __init__(self, partition: Partition, offset: int, position: int | None, message: str) -> None:
        super().__init__(f"{partition}: offset {offset}: {message}")
        self.partition, self.offset, self.position = partition, offset, position


class PartitionStopped(SeekpointError):  # noqa: N818
    """One partition waits for a decision at ``offset``: ``message`` says why, ``choices`` lists the decisions."""

    def __init__(self, partition: Partition, offset: int, message: str, choices: Sequence[str] = ()) -> None:
        super().__init__(f"{partition} stopped at offset {offset}: {message}{_listed(choices)}")
        self.partition, self.offset, self.message, self.choices = partition, offset, message, tuple(choices)
        self.token: UUID | None = None  # of the claim under which it stopped: a reset draws another, and ends the stop


class OffsetLost(PartitionStopped):
    """The stored position is out of range, or in a part of the log that was truncated and written again.

    ``log_end`` is where the log ended; None where it was written again since, so that this is not known.
    """

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
    """The topic was deleted and created again: its id is not the one that the stored position belongs to."""

    @classmethod
    def of(cls, group: str, partition: Partition, offset: int, *, stored: UUID, topic_id: UUID) -> Self:
        """The error for a position of the group that belongs to topic id ``stored``, with the choices."""
        beginning = remedies.restart_topic(group, partition, topic_id)
        elsewhere = remedies.accept_topic(group, partition.topic, "--at OFFSET")
        return cls(
            partition,
            offset,
            f"topic {partition.topic!r} was deleted and created again: the stored offset belongs to topic id {stored}, "
            f"the brokers answer {topic_id}",
            choices=(
                f"restart: {beginning} reads the new topic from its beginning",
                f"continue: {elsewhere} reads the new topic from there",
                "stop: leave it; nothing is read or written until it is decided",
            ),
        )


class TopicUnknown(PartitionStopped):
    """The brokers have answered for some seconds that there is no such topic; ends when they answer its id again."""


class PoisonStop(PartitionStopped):
    """A record cannot be applied, and the failure policy is to stop before it; ``failure`` says why."""

    def __init__(
        self, partition: Partition, offset: int, message: str, choices: Sequence[str] = (), *, failure: Failure
    ) -> None:
        super().__init__(partition, offset, message, choices)
        self.failure = failure


class TooManyDeadLetters(SeekpointError):  # noqa: N818
    """More records failed than ``DeadLetterLimits`` allow: nothing of the last batch was written, no record is lost."""


class RangeLost(SeekpointError):  # noqa: N818
    """A range of the log cannot be read at ``offset``: removed by retention, a truncation or a deletion."""

    def __init__(self, partition: Partition, offset: int, message: str) -> None:
        super().__init__(f"{partition} cannot be read at offset {offset}: {message}")
        self.partition, self.offset = partition, offset


class RangeStuck(SeekpointError):  # noqa: N818
    """Nothing arrives of the range from ``offset`` to ``end``, and nothing says that it has no more records."""

    def __init__(self, partition: Partition, offset: int, end: int, message: str) -> None:
        super().__init__(f"{partition} does not come from offset {offset} to {end}: {message}")
        self.partition, self.offset, self.end = partition, offset, end


class ArchiveDamaged(SeekpointError):  # noqa: N818
    """The file that has the records ``[start, end)`` of a partition is missing, truncated or changed."""

    def __init__(self, partition: Partition, start: int, end: int, file: str, message: str) -> None:
        super().__init__(f"{file}, which has {partition} [{start}, {end}): {message}")
        self.partition, self.start, self.end, self.file = partition, start, end, file


class ReloadRefused(SeekpointError):  # noqa: N818
    """A reload cannot be opened or published now; ``reasons`` has every one, with its remedy."""

    _what = "refused"  # a reload or verification

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(f"{self._what}:" + "".join(f"\n  - {reason}" for reason in reasons))
        self.reasons = tuple(reasons)


class BatchRefused(ReloadRefused):
    """A batch cannot be run or applied now: nothing of it is written; ``reasons`` as above."""

    _what = "the batch cannot be run"


class CutOverRefused(SeekpointError):  # noqa: N818
    """A cut-over would make workers wait, delete rows or change other tables more than was allowed.

    No live table was changed, and the run stays open: resume it with other limits. ``reasons`` has every one, with its
    remedy; ``predicted`` is the wait that was predicted for a merge, ``waits`` those of each try, in seconds.
    """

    def __init__(self, reasons: Sequence[str], *, predicted: float | None = None, waits: Sequence[float] = ()) -> None:
        super().__init__("the cut-over is refused; the run stays open:" + "".join(f"\n  - {r}" for r in reasons))
        self.reasons, self.predicted, self.waits = tuple(reasons), predicted, tuple(waits)


class ReloadOver(SeekpointError):  # noqa: N818
    """The run has ended, or another driver has taken it over; the message says which. Nothing was written."""


class Poison(Exception):  # noqa: N818 -- a control exception of users' code, like StopIteration
    """Raise this in a handler or in ``row=`` for a record that can never be applied.

    With the records named, the batch need not be bisected: ``raise Poison("negative amount", record)``.
    """

    def __init__(self, reason: str, *records: Record[Any, Any]) -> None:
        super().__init__(reason)
        self.reason, self.records = reason, records

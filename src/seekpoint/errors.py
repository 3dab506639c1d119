"""What can go wrong, and what to do about it.

::

    SeekpointError
    ├── ConfigError             the declaration or the configuration contradicts itself
    │   ├── HandlerMisuse       a handler committed, closed or broke the transaction it was lent
    │   └── WroteLiveTable      a handler that a reload ran wrote a live table instead of its copy
    ├── SchemaMismatch          the ledger's tables are missing, older or newer than this library
    ├── Fenced                  somebody else moved the position: nothing was written
    ├── HandlerOutdated         a newer version of the handler owns the group
    ├── StandbyRequired         a reload builds the tables for this version: it takes over when the run has ended
    ├── DeclarationDiffers      the group writes records of a topic to other tables than this pipeline
    ├── GroupPaused             an operator paused the group
    ├── ClusterChanged          the brokers belong to another cluster than the stored offsets
    ├── KafkaUnavailable        the brokers did not answer in time; ask again later
    ├── CodecUnavailable        what a codec needs does not answer, as a schema registry; the worker waits for it
    ├── StopTimeout             a worker had not ended when its grace was over (a TimeoutError too)
    ├── NotApplied              a record was waited for, and not passed in time (a TimeoutError too)
    ├── TooManyDeadLetters      the limits on dead letters are reached: the worker stops instead
    ├── RangeLost               a range of the log that a job was to read is no longer in it
    ├── RangeStuck              a range of the log does not come to its end
    ├── ArchiveDamaged          a file of an archive is missing, cut or another one
    ├── ReloadRefused           a reload cannot be opened as things stand
    │   └── BatchRefused        a batch cannot be run as things stand: nothing of it is written
    ├── CutOverRefused          a cut-over would wait, delete or reach more than was allowed: the run stays open
    ├── ReloadOver              the run has ended, or another driver has taken it over
    └── PartitionStopped        this partition waits for a decision; the others go on
        ├── OffsetLost          the stored offset is no longer (or not yet) in the log
        ├── TopicRecreated      the topic was deleted and created again
        ├── TopicUnknown        the brokers have not known the topic for some seconds
        ├── PoisonStop          a record cannot be applied, and the policy is to stop
        └── RetryLater          a record failed and is tried again; the partition waits in front of it

    Poison                      raised by users' code only: this record cannot be applied

Errors of the database and of Kafka pass through unwrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from seekpoint.records import Failure, Partition, Record


class SeekpointError(Exception):
    """The root of every error that Seekpoint itself raises."""


def _listed(choices: Sequence[str]) -> str:
    return "\nChoices:" + "".join(f"\n  - {choice}" for choice in choices) if choices else ""


class ConfigError(SeekpointError):
    """The declaration, the configuration or the environment cannot work; the message names the remedy."""


def needs_extra(what: str, extra: str, error: BaseException | None = None) -> ConfigError:
    """What to raise where an optional dependency is missing.

    The package is not on the index, where the name may be another's: nothing names it without a path.
    """
    why = "" if error is None else f" ({error})"
    return ConfigError(f"{what}: {install(extra)}{why}")


@contextmanager
def required(what: str, extra: str) -> Iterator[None]:
    """Around an import of an optional dependency. Raises :func:`needs_extra` where it is missing."""
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


class WroteLiveTable(ConfigError):  # noqa: N818 -- named after what happened, as the public API promises
    """A handler that rebuilds tables touched a live one; nothing of it was written, and the run has ended.

    ``table`` is the live table, ``group`` whose handler it was; the message has the remedy.
    """

    def __init__(self, group: str, table: str, message: str) -> None:
        super().__init__(message)
        self.group, self.table = group, table


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
    """The group is at a newer handler version than this process runs: it stands down."""


class StandbyRequired(SeekpointError):  # noqa: N818
    """A reload of the group to this handler version is open: nothing is claimed before that run has ended.

    ``run`` is its id, ``state`` where it stands; ``version`` is the one that waits. Whoever raised the version
    now would write rows of the new code among those of the old one: what the reload is there to avoid.
    """

    def __init__(self, group: str, version: int, *, run: UUID, state: str, driver: str) -> None:
        super().__init__(
            f"handler version {version} of group {group!r} waits as a standby for reload {run}, which is {state} "
            f"(driver: "
            f"{driver}), and takes over when it has ended. If nobody drives it any more: `seekpoint reload run "
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
            f"resume it with Ledger.resume()"
        )
        self.group, self.reason, self.actor = group, reason, actor


class ClusterChanged(SeekpointError):  # noqa: N818
    """The brokers' cluster id is not the one the group's offsets belong to; ``choices`` are what can be decided."""

    def __init__(self, message: str, choices: Sequence[str] = ()) -> None:
        super().__init__(f"{message}{_listed(choices)}")
        self.choices = tuple(choices)


class KafkaUnavailable(SeekpointError):  # noqa: N818
    """The brokers did not answer a question in time; the same question may be answered later."""


class CodecUnavailable(SeekpointError):  # noqa: N818
    """What a codec needs for decoding does not answer: no record is to blame, and the worker waits.

    ``ask`` asks the same again: it returns once there is an answer, whatever that is, and raises CodecUnavailable as
    long as there is none. Without one, it is over as soon as the loop continues.
    """

    def __init__(self, message: str, ask: Callable[[], object] | None = None) -> None:
        super().__init__(message)
        self.ask = ask


class StopTimeout(SeekpointError, TimeoutError):  # noqa: N818
    """A worker had not ended ``grace`` seconds after it was asked to stop; its connection was closed.

    Nothing of the batch in hand is committed. The message names what has not returned, and where it is.
    """

    def __init__(self, message: str, grace: float) -> None:
        super().__init__(message)
        self.grace = grace


class NotApplied(SeekpointError, TimeoutError):  # noqa: N818
    """``offset`` of a partition was not passed in the time given; the partition is at ``position``, None if unclaimed.

    The record is not lost for that: it may be applied in the next moment. The message says what the partition waits
    for, as far as the ledger knows.
    """

    def __init__(self, partition: Partition, offset: int, position: int | None, message: str) -> None:
        super().__init__(f"{partition}: offset {offset}: {message}")
        self.partition, self.offset, self.position = partition, offset, position


class PartitionStopped(SeekpointError):  # noqa: N818
    """One partition waits for a decision at ``offset``: ``message`` says why, ``choices`` what can be decided."""

    def __init__(self, partition: Partition, offset: int, message: str, choices: Sequence[str] = ()) -> None:
        super().__init__(f"{partition} stopped at offset {offset}: {message}{_listed(choices)}")
        self.partition, self.offset, self.message, self.choices = partition, offset, message, tuple(choices)
        self.token: UUID | None = None  # the claim it was stopped under: a move draws another, and ends the stop


class OffsetLost(PartitionStopped):
    """The stored offset is below the log's start, beyond its end, or in a truncated part of it."""


class TopicRecreated(PartitionStopped):
    """The topic's id is not the one the stored offset belongs to."""


class TopicUnknown(PartitionStopped):
    """The brokers have answered for some seconds that there is no such topic; over as soon as they answer its id."""


class PoisonStop(PartitionStopped):
    """A record cannot be applied, and the pipeline's policy is to stop in front of it; ``failure`` says why."""

    def __init__(
        self, partition: Partition, offset: int, message: str, choices: Sequence[str] = (), *, failure: Failure
    ) -> None:
        super().__init__(partition, offset, message, choices)
        self.failure = failure


class RetryLater(PartitionStopped):
    """A record failed, was tried ``failure.attempts`` times, and will be tried again ``wait`` seconds from now."""

    def __init__(self, partition: Partition, offset: int, message: str, *, failure: Failure, wait: float) -> None:
        super().__init__(partition, offset, message)
        self.failure, self.wait = failure, wait


class TooManyDeadLetters(SeekpointError):  # noqa: N818
    """More records failed than the pipeline's limits allow: nothing of the last batch was written, and none is lost."""


class RangeLost(SeekpointError):  # noqa: N818
    """A range of the log cannot be read at ``offset``: retention, a truncation or a deletion took it."""

    def __init__(self, partition: Partition, offset: int, message: str) -> None:
        super().__init__(f"{partition} cannot be read at offset {offset}: {message}")
        self.partition, self.offset = partition, offset


class RangeStuck(SeekpointError):  # noqa: N818
    """Nothing comes of the range from ``offset`` to ``end``, and nothing says that it has no more records."""

    def __init__(self, partition: Partition, offset: int, end: int, message: str) -> None:
        super().__init__(f"{partition} does not come from offset {offset} to {end}: {message}")
        self.partition, self.offset, self.end = partition, offset, end


class ArchiveDamaged(SeekpointError):  # noqa: N818
    """The file that has the records ``[start, end)`` of a partition is missing, cut, or not the one written."""

    def __init__(self, partition: Partition, start: int, end: int, file: str, message: str) -> None:
        super().__init__(f"{file}, which has {partition} [{start}, {end}): {message}")
        self.partition, self.start, self.end, self.file = partition, start, end, file


class ReloadRefused(SeekpointError):  # noqa: N818
    """A reload cannot be opened, or not be published, as things stand; ``reasons`` has every one, with its remedy."""

    _what = "refused, as things stand"  # by a reload, verify, adopt, give-up

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(f"{self._what}:" + "".join(f"\n  - {reason}" for reason in reasons))
        self.reasons = tuple(reasons)


class BatchRefused(ReloadRefused):
    """A batch cannot be run, or not be applied, as things stand: nothing of it is written; ``reasons`` as above."""

    _what = "the batch cannot be run"


class CutOverRefused(SeekpointError):  # noqa: N818
    """A cut-over would make workers wait, delete rows or reach other tables beyond what was allowed.

    Nothing live was touched, and the run stays open: take it again with other bounds. ``reasons`` has every one, with
    its remedy; ``predicted`` is the wait that was predicted for a merge, ``waits`` those of each try, in seconds.
    """

    def __init__(self, reasons: Sequence[str], *, predicted: float | None = None, waits: Sequence[float] = ()) -> None:
        super().__init__("the cut-over is refused; the run stays open:" + "".join(f"\n  - {r}" for r in reasons))
        self.reasons, self.predicted, self.waits = tuple(reasons), predicted, tuple(waits)


class ReloadOver(SeekpointError):  # noqa: N818
    """The run has ended, or another driver has taken it over; the message says which. Nothing was written."""


class Poison(Exception):  # noqa: N818 -- a control exception of users' code, like StopIteration
    """Raise this in a handler or in ``row=`` to say: this record can never be applied.

    Name the records and no search for them is needed: ``raise Poison("negative amount", record)``.
    """

    def __init__(self, reason: str, *records: Record[Any, Any]) -> None:
        super().__init__(reason)
        self.reason, self.records = reason, records

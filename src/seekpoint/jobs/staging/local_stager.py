"""Staging on this machine without Spark: in this process, one range after the other, or in several processes."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from sqlalchemy import Engine

from seekpoint.errors import ConfigError
from seekpoint.jobs.run import Run
from seekpoint.jobs.staging.stage import Staged, Task, stage_range
from seekpoint.jobs.staging.task_errors import ENDS_STAGING, error_as_text, error_of
from seekpoint.jobs.tables.targets import PipelineSource
from seekpoint.postgres.engine import postgres_engine
from seekpoint.records import one_line
from seekpoint.worker.import_by_name import load_pipeline


class LocalStager:
    """Stages each range here, in turn, or in so many ``processes`` of this machine; ``sources`` are the run's.

    Processes import the pipelines by their names (``module:name``) and connect by the engine's URL, which they get
    through a pipe: what an engine has beside it (``creator=``, ``connect_args=``, events) is not theirs.
    """

    def __init__(
        self,
        engine: Engine,
        schema: str,
        kafka: Mapping[str, Any],
        sources: Sequence[PipelineSource],
        *,
        processes: int = 0,
    ) -> None:
        if processes < 0:
            raise ConfigError(f"processes must be 0 (stage in this one) or more, got {processes}")
        self._engine, self._schema, self._kafka = engine, schema, kafka
        self._sources, self._processes = {source.group: source for source in sources}, processes

    def stage(self, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
        """Stage each; yields each when it is committed: here in the order given, by processes as they are done.

        A process that is killed is replaced, and its range is staged again; ChildProcessError where they die again and
        again. A caller that stops iterating ends them: what they have in hand is rolled back.
        """
        if self._processes:
            yield from _in_processes(self._plan(run, tasks), tasks, self._processes)
            return
        for task in tasks:
            pipeline = self._sources[task.group].pipeline
            yield stage_range(self._engine, self._schema, self._kafka, run.id, pipeline=pipeline, range_=task.range)

    def _plan(self, run: Run, tasks: Sequence[Task]) -> bytes:
        """What each process gets first, through its pipe: no argument and no environment shows the database's URL."""
        names = {group: source.name for group, source in self._sources.items()}
        if nameless := sorted({task.group for task in tasks if not names[task.group]}):
            raise ConfigError(
                f"processes cannot import the pipeline of group {nameless[0]!r}, which was given as an object: name it "
                "as 'module:name'"
            )
        url = self._engine.url.render_as_string(hide_password=False)
        try:
            return pickle.dumps((url, self._schema, self._kafka, run.id, names))
        except Exception as error:
            raise ConfigError(
                f"kafka= cannot be sent to the processes that stage ({one_line(error)}): callbacks must be functions "
                "of a module; or stage in this process, processes=0"
            ) from error


CRASHES = 3  # of processes, in a row and for each: no range was staged between
PATIENCE = 5.0  # seconds for a process to end by itself after SIGTERM

_SPAWN = multiprocessing.get_context("spawn")  # a fork would share connections, and Kafka's threads would be missing


def _in_processes(plan: bytes, tasks: Sequence[Task], most: int) -> Iterator[Staged]:
    """Stage each, in the order in which they are done; what is in hand when the iteration ends is rolled back.

    A process that is killed is replaced, and its range is staged again. Raises what the processes raise, and
    ChildProcessError where they die again and again.
    """
    left, deaths = deque(tasks), 0
    members = [_WorkerProcess(plan) for _ in range(min(most, len(tasks)))]
    try:
        while left or any(member.task for member in members):
            for member in members:
                if member.task is None and left:
                    member.give(left.popleft())
            busy: dict[Any, _WorkerProcess] = {member.pipe: member for member in members if member.task is not None}
            for member in map(busy.__getitem__, wait(list(busy))):
                task, staged = member.task, member.answer()
                if staged is not None:
                    deaths = 0
                    yield staged
                    continue
                deaths += 1
                if deaths >= CRASHES * most:
                    raise ChildProcessError(_why(member, task, deaths))
                if task is not None:
                    left.appendleft(task)
                members[members.index(member)] = _WorkerProcess(plan)
    finally:
        for member in members:
            member.end()


class _WorkerProcess:
    """One process, and the task that it has in hand."""

    def __init__(self, plan: bytes) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self.task: Task | None = None
        self.process = _SPAWN.Process(target=_serve, args=(theirs,), name="seekpoint-stage", daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe ends when the process does
        self._tell(plan)

    def _tell(self, what: object) -> None:
        with suppress(OSError):  # of a dead one: its answer is the end of the pipe
            self.pipe.send(what)

    def give(self, task: Task) -> None:
        self.task = task
        self._tell(task)

    def answer(self) -> Staged | None:
        """What it has staged; None where it died. Raises what it raised."""
        self.task = None
        try:
            kind, said = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(PATIENCE)
            self.pipe.close()
            return None
        if kind == "ends":
            raise error_of(said)
        if kind == "fails":
            raise pickle.loads(said)  # noqa: S301 -- of a process of our own
        staged: Staged = said
        return staged

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _why(member: _WorkerProcess, task: Task | None, deaths: int) -> str:
    code = member.process.exitcode
    how = "by itself" if code is None or code >= 0 else f"by {signal.Signals(-code).name}"
    return (
        f"{deaths} processes ended one after the other without staging anything, the last one {how} (exit code {code}) "
        f"at {task.range if task else 'no range'}. Killed ones: give them memory, or use fewer processes= or a smaller "
        "range_records=. Ended ones: see what they wrote to stderr; a script that starts processes needs "
        "`if __name__ == '__main__':` around what it does. Then take the run again"
    )


def _serve(pipe: Connection) -> None:
    """The process: ranges in, answers out, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's; the parent process ends this one
    url, schema, kafka, run, names = pickle.loads(pipe.recv())  # noqa: S301 -- of the parent process
    engine = postgres_engine(url)

    def answer(task: Task) -> tuple[str, object]:
        try:
            pipeline = load_pipeline(names[task.group])
            return "staged", stage_range(engine, schema, kafka, run, pipeline=pipeline, range_=task.range)
        except ENDS_STAGING as error:
            return "ends", error_as_text(error)
        except Exception as error:  # noqa: BLE001 -- raised where the answer is taken
            return "fails", _carried(error)

    while True:
        try:
            pipe.send(answer(pipe.recv()))
        except (EOFError, OSError):  # the parent process is gone
            return


def _carried(error: Exception) -> bytes:
    """The error as it is, or what it says, where it cannot travel."""
    try:
        carried = pickle.dumps(error)
        pickle.loads(carried)  # noqa: S301 -- what was just made
    except Exception:  # noqa: BLE001 -- whatever its own code does
        return pickle.dumps(RuntimeError(one_line(error)))
    return carried

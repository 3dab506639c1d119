"""Every query of the dashboard gives a series on a real Prometheus that scrapes a worker under load and an exporter."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from seekpoint import Limits
from seekpoint.metrics import LedgerGauges, Tally
from seekpoint.metrics.prometheus import exposition, serving
from support.docs_pages import ROOT
from support.waiting import until
from support.worker_group import WorkerGroup

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "seekpoint.json").read_text(encoding="utf-8"))
QUERIES = {
    f"{panel['title']} {target['refId']}": str(target["expr"])
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}
OFTEN = Limits(idle_check=0.1, lag_check=0.1, sample_positions=1)


_ADDRESS = re.compile(r"address=(127\.0\.0\.1:\d+)")


class Server:
    """A Prometheus on a port of its own."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **asked: str) -> Any:
        """The data of an answer; None while there is none."""
        try:
            with urllib.request.urlopen(f"{self._url}{path}?{urllib.parse.urlencode(asked)}", timeout=10) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def values(self, query: str) -> list[str]:
        """The values of the series."""
        answer = self.get("/api/v1/query", query=query)
        return [series["value"][1] for series in answer["result"]] if answer else []

    def has_series(self, query: str) -> bool:
        """Whether there is a value that is a number."""
        return any(value != "NaN" for value in self.values(query))


@pytest.fixture
def server(prometheus: Path, worker_group: WorkerGroup, tmp_path: Path) -> Iterator[Server]:
    """A Prometheus that scrapes a worker under load, and an exporter, each second."""
    name = worker_group.topic(2)
    run = worker_group.worker(name, limits=OFTEN)
    exporter = LedgerGauges(
        worker_group.engine, schema=worker_group.schema, kafka={"bootstrap.servers": worker_group.broker}
    )
    with (
        worker_group.stream(name, 2, rate=200),
        serving("127.0.0.1", 0, Tally(run.worker)) as first,
        serving("127.0.0.1", 0, exporter) as other,
    ):
        targets = [{"targets": [f"127.0.0.1:{port}"]} for port in (first, other)]
        config = {
            "global": {"scrape_interval": "1s"},
            "rule_files": [str(ROOT / "deploy" / "prometheus" / "rules.yml")],
            "scrape_configs": [{"job_name": "seekpoint", "static_configs": targets}],
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
        with _running(prometheus, tmp_path) as url:
            yield Server(url)


@contextmanager
def _running(program: Path, folder: Path) -> Iterator[str]:
    """The process and its URL, for the length of a block; on a port that was free a moment before."""
    log = folder / "prometheus.log"
    words = [str(program), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen([*words, f"--web.listen-address=127.0.0.1:{_free_port()}"], stderr=errors) as process,
    ):
        try:
            until(lambda: _ADDRESS.search(log.read_text(encoding="utf-8")), "a server that listens", 60)
            match = _ADDRESS.search(log.read_text(encoding="utf-8"))
            assert match is not None
            yield f"http://{match[1]}"
        finally:
            process.terminate()
            process.wait(30)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def asked_for(interval: str) -> dict[str, str]:
    """The queries, of all groups."""
    return {n: q.replace("$group", ".*").replace("$__rate_interval", interval) for n, q in QUERIES.items()}


def test_every_query_gives_a_series(server: Server, worker_group: WorkerGroup) -> None:
    """$__rate_interval as Grafana makes it: four scrapes, and here a few more."""
    asked = asked_for("8s")

    def silent() -> list[str]:
        return [name for name, query in asked.items() if not server.has_series(query)]

    with suppress(AssertionError):
        until(lambda: not silent(), "a series for each query", 60)
    assert silent() == []
    assert not server.has_series("seekpoint_unknown"), "the server answers this, too"
    firing = server.get("/api/v1/query", query='ALERTS{alertstate="firing"}')
    assert firing["result"] == [], "a healthy group"
    stopped = asked["Stopped partitions A"]
    assert server.values(stopped) == ["0"]
    worker_group.produce(next(iter(worker_group.positions())).topic, [b"\xff"], partition=1)  # no text
    until(lambda: server.values("count(seekpoint_partition_stopped)") == ["2"], "a stop that both have", 60)
    assert server.values(stopped) == ["1"]


AT = 'group="shop",topic="orders",partition="0"'
TWICE = {  # of the worker and of the exporter
    f"seekpoint_partition_stopped{{{AT},cause='PoisonStop'}}": "1x10",
    f"seekpoint_next_offset{{{AT}}}": "0+60x10",
    f"seekpoint_lag_records{{{AT}}}": "40x10",
}
LEDGERS = {  # of two exporters
    f"seekpoint_partition_owned{{{AT}}}": "0x10",
    f"seekpoint_dead_letters_open{{{AT}}}": "3x10",
    f"seekpoint_retention_headroom_records{{{AT}}}": "30x10",
    'seekpoint_paused{group="shop"}': "1x10",
    'seekpoint_workers{group="shop"}': "2x10",
}
VALUES = {
    "Stopped partitions A": ("{}", 1),
    "Partitions without a worker A": ("{}", 1),
    "Open dead letters A": ("{}", 3),
    "Paused groups A": ("{}", 1),
    "Least headroom A": ("{}", 30),
    "Lag, records A": ('{group="shop"}', 40),
    "Greatest lag by partition A": (f"{{{AT}}}", 40),
    "Positions A": ('{group="shop",topic="orders"}', 1),
    "Workers A": ('{group="shop"}', 2),
    "Dead letters A": ('{group="shop",topic="orders"}', 3),
}


def test_what_two_sources_have_is_counted_once(promtool: Path, tmp_path: Path) -> None:
    series = [
        {"series": name.replace("{", f'{{instance="{instance}",', 1), "values": values}
        for name, values in {**TWICE, **LEDGERS}.items()
        for instance in ("one", "other")
    ]
    asked = asked_for("5m")
    tests = [
        {"expr": asked[name], "eval_time": "10m", "exp_samples": [{"labels": labels, "value": value}]}
        for name, (labels, value) in VALUES.items()
    ]
    content = {"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}]}
    (tmp_path / "test.yml").write_text(json.dumps(content), encoding="utf-8")
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_have_a_unit_a_description_and_a_place_of_their_own() -> None:
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert all(p["description"] and p["fieldConfig"]["defaults"]["unit"] for p in DASHBOARD["panels"])
    assert all("$group" in query or "ledger_up" in query for query in QUERIES.values())


def test_promtool_finds_nothing_wrong_with_the_metrics(promtool: Path, worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(3)
    run = worker_group.worker(name, limits=OFTEN)
    run.reached(name, 3)
    text = exposition(Tally(run.worker), LedgerGauges(worker_group.engine, schema=worker_group.schema))
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")

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
from support.kafka_postgres import Scene
from support.waiting import until

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

    def has_series(self, query: str) -> bool:
        """Whether there is a value that is a number."""
        found = self.get("/api/v1/query", query=query)
        return bool(found) and any(one["value"][1] != "NaN" for one in found["result"])


@pytest.fixture
def server(prometheus: Path, scene: Scene, tmp_path: Path) -> Iterator[Server]:
    """A Prometheus that scrapes a worker under load, and an exporter, each second."""
    name = scene.topic(2)
    run = scene.worker(name, limits=OFTEN)
    exporter = LedgerGauges(scene.engine, schema=scene.schema, kafka={"bootstrap.servers": scene.broker})
    with (
        scene.stream(name, 2, rate=200),
        serving("127.0.0.1", 0, Tally(run.worker)) as one,
        serving("127.0.0.1", 0, exporter) as other,
    ):
        targets = [{"targets": [f"127.0.0.1:{at}"]} for at in (one, other)]
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
            found = _ADDRESS.search(log.read_text(encoding="utf-8"))
            assert found is not None
            yield f"http://{found[1]}"
        finally:
            process.terminate()
            process.wait(30)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_every_query_gives_a_series(server: Server) -> None:
    """$group is all of them; $__rate_interval as Grafana makes it: four scrapes, and here a few more."""
    asked = {n: q.replace("$group", ".*").replace("$__rate_interval", "8s") for n, q in QUERIES.items()}

    def silent() -> list[str]:
        return [name for name, query in asked.items() if not server.has_series(query)]

    with suppress(AssertionError):
        until(lambda: not silent(), "a series for each query", 60)
    assert silent() == []
    assert not server.has_series("seekpoint_unknown"), "the server answers this, too"
    firing = server.get("/api/v1/query", query='ALERTS{alertstate="firing"}')
    assert firing["result"] == [], "a healthy group"


def test_panels_have_a_unit_a_description_and_a_place_of_their_own() -> None:
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert all(p["description"] and p["fieldConfig"]["defaults"]["unit"] for p in DASHBOARD["panels"])
    assert all("$group" in query or "ledger_up" in query for query in QUERIES.values())


def test_promtool_finds_nothing_wrong_with_the_metrics(promtool: Path, scene: Scene) -> None:
    name, _ = scene.log(3)
    run = scene.worker(name, limits=OFTEN)
    run.reached(name, 3)
    text = exposition(Tally(run.worker), LedgerGauges(scene.engine, schema=scene.schema))
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")

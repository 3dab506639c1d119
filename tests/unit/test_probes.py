"""What ``--listen`` answers where metrics cannot be had; the rest is in tests/kafka/test_process.py."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from seekpoint.cli.probes import State, listening
from seekpoint.metrics import Samples
from support.probe import ask, free_port

WELL = State(True, True, False, {})


class Broken:
    def add_to(self, samples: Samples) -> None:
        raise RuntimeError("no values")


def test_a_scrape_that_fails_is_logged_and_probes_still_answer(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with caplog.at_level(logging.ERROR), listening(f"127.0.0.1:{port}", lambda: WELL, Broken()):
        assert ask(port, "/metrics") == (500, b"the log says why\n")
        assert ask(port, "/live")[0] == 200
    assert [record.getMessage() for record in caplog.records] == ["a scrape failed; the worker is not affected"]


def test_without_the_extra_there_is_no_such_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.split(".")[0] == "prometheus_client"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "seekpoint.metrics.prometheus", raising=False)
    port = free_port()
    with listening(f"127.0.0.1:{port}", lambda: WELL, Broken()):
        status, body = ask(port, "/metrics")
        assert (status, json.loads(body)) == (404, {"paths": ["/live", "/ready", "/stale"]})
        assert ask(port, "/ready")[0] == 200

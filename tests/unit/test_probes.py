"""What ``--listen`` answers where metrics cannot be had; the rest is in tests/kafka/test_process.py."""

from __future__ import annotations

import json
import logging
import socket
import sys

import pytest

from seekpoint.cli import probes
from seekpoint.cli.probes import State, listening
from seekpoint.metrics import Samples
from support.probe import ask, free_port
from support.waiting import until

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
    for name in [module for module in sys.modules if module.split(".")[0] == "prometheus_client"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "seekpoint.metrics.prometheus", raising=False)
    port = free_port()
    with listening(f"127.0.0.1:{port}", lambda: WELL, Broken()):
        status, body = ask(port, "/metrics")
        assert (status, json.loads(body)) == (404, {"paths": ["/live", "/ready", "/stale"]})
        assert ask(port, "/ready")[0] == 200


def test_other_hosts_do_not_read_what_servers_have_said() -> None:
    details = {"workers": [{"trouble": "connection to 10.0.0.7 refused", "standby": None, "lag": 3}]}
    answers = []
    for host in ("127.0.0.1", "localhost", "0.0.0.0"):
        port = free_port()
        with listening(f"{host}:{port}", lambda: State(True, False, False, details), Broken()):
            answers.append(json.loads(ask(port, "/ready")[1])["workers"][0])
    assert answers[0] == answers[1] == details["workers"][0]
    assert answers[2] == {"trouble": "the log says why", "standby": None, "lag": 3}


def test_connections_are_bounded_in_number_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "MOST", 2)
    monkeypatch.setattr(probes, "LONGEST", 1.0)
    port = free_port()
    with listening(f"127.0.0.1:{port}", lambda: WELL, Broken()):
        slow = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(2)]
        for client in slow:
            client.sendall(b"GET /live HT")
        with socket.create_connection(("127.0.0.1", port), timeout=30) as third:
            assert third.recv(1) == b"", "closed at once"
        assert [client.recv(1) for client in slow] == [b"", b""], "closed before the request's own timeout"
        for client in slow:
            client.close()
        until(lambda: ask(port, "/live")[0] == 200, "an answer")

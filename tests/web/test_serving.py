"""``seekpoint ui`` and its server, over a socket."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from seekpoint.admin import Admin
from seekpoint.errors import ConfigError
from seekpoint.web.serving import serving
from support.command import seekpoint
from support.ledger_worker import LedgerWorker

DATABASE = ["--database-url", "postgresql://ada:secret@127.0.0.1:1/shop"]


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "192.0.2.1:0", "console.example:0", "[::]:0"])
def test_actions_for_other_machines_are_refused(listen: str) -> None:
    stderr = seekpoint("ui", "--listen", listen, "--allow-actions", *DATABASE, exits=2).stderr
    assert "anyone who reaches it could act" in stderr
    assert "secret" not in stderr


def test_actions_behind_a_proxy_are_refused() -> None:
    """All who reach the proxy would act as the user of this machine."""
    stderr = seekpoint("ui", "--host", "console.example", "--allow-actions", *DATABASE, exits=2).stderr
    assert "mount seekpoint.web.create_app with access=" in stderr


def test_a_wrong_address_is_refused() -> None:
    assert "--listen takes host:port" in seekpoint("ui", "--listen", "8484", *DATABASE, exits=2).stderr


def test_it_serves_until_the_block_ends(admin: Admin, worker: LedgerWorker) -> None:
    with serving(admin, "127.0.0.1", 0) as address:
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert b">g</a>" in answer.read()
        request = urllib.request.Request(address, headers={"host": "attacker.example"})
        with pytest.raises(urllib.error.HTTPError, match="421") as refused:
            urllib.request.urlopen(request, timeout=10)
        refused.value.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=10)


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_address_of_ipv6_is_in_brackets(admin: Admin, worker: LedgerWorker) -> None:
    with serving(admin, "::1", 0) as address:
        assert address.startswith("http://[::1]:")
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert b">g</a>" in answer.read()


def test_an_address_that_is_not_free_is_named(admin: Admin) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"{port} is not free"), serving(admin, "127.0.0.1", port):
            pass

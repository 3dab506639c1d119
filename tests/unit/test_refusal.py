"""What a worker waits for at its start, by the sentence of a connection that was not made."""

from __future__ import annotations

import psycopg
from sqlalchemy.exc import OperationalError

from seekpoint.errors import SchemaMismatch
from seekpoint.worker.start import is_transient_at_start
from support.every_row import for_each

FATAL = 'connection failed: connection to server at "10.0.0.1", port 5432 failed: FATAL:  '


TRANSIENT = {
    'connection failed: connection to server at "10.0.0.1", port 5432 failed: Connection refused': True,
    "failed to resolve host 'db': [Errno -2] Name or service not known": True,
    "connection timeout expired": True,
    FATAL + "the database system is starting up": True,
    FATAL + "sorry, too many clients already": True,
    FATAL + "server login has been failing, try again later (server_login_retry)": True,
    FATAL + "ein Satz, den niemand hier kennt": True,
    FATAL + 'password authentication failed for user "shop"': False,
    FATAL + 'no pg_hba.conf entry for host "10.0.0.2", user "shop", database "shop", no encryption': False,
    FATAL + 'database "shop" does not exist': False,
    FATAL + 'role "shop" is not permitted to log in': False,
    "connection is bad: fe_sendauth: no password supplied": False,
    'connection is bad: invalid sslmode value: "on"': False,
    'connection is bad: invalid "ssl_min_protocol_version" value: "9"': False,
    'connection is bad: invalid integer value "x" for connection option "keepalives"': False,
    'connection is bad: invalid port number: "x"': False,
    'connection is bad: invalid connection option "hots"': False,
    "connection is bad: invalid SSL protocol version range": False,
    'connection is bad: sslmode value "require" invalid when SSL support is not compiled in': False,
    FATAL + 'invalid value for parameter "work_mem": "much"': False,
    FATAL + "invalid command-line argument for server process: x": False,
    "connection failed: received invalid response to SSL negotiation: H": True,
    "connection failed: received invalid response to GSSAPI negotiation: H": True,
    "connection failed: received invalid protocol negotiation message: message too short": True,
    "connection failed: received invalid authentication request": True,
    "connection failed: invalid connection state, probably indicative of memory corruption": True,
    'connection failed: root certificate file "/none.crt" does not exist': False,
}


@for_each(TRANSIENT)
def test_a_server_that_is_away_is_waited_for_and_one_that_refuses_is_not(sentence: str) -> None:
    error = psycopg.OperationalError(sentence)
    assert is_transient_at_start(error) is TRANSIENT[sentence]
    assert is_transient_at_start(OperationalError("", {}, error)) is TRANSIENT[sentence]


def test_what_no_database_raised_is_not_waited_for() -> None:
    assert not is_transient_at_start(SchemaMismatch("no ledger tables"))
    assert not is_transient_at_start(ValueError("why"))
    assert not is_transient_at_start(psycopg.errors.InsufficientPrivilege("why"))

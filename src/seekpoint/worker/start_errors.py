"""Whether a server that cannot be used at the start may be waited for, or the configuration has to be corrected."""

from __future__ import annotations

import re

from seekpoint.postgres.sqlstates import is_transient

# A connection that was not made has no SQLSTATE, only the server's sentence. What is not in this list is waited for,
# and each try is logged with the sentence: also where the server speaks another language than English.
_REFUSED = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",  # a role, a database, a certificate's file
    "is not permitted to log in",
    "is not allowed",
    "permission denied",
    "no such database",  # PgBouncer
    "no such user",
    "certificate verify failed",
    "does not support ssl",
    "server certificate for",
    "invalid port number",
    "invalid connection option",
    "invalid percent-encoded token",
    "invalid uri",
    "invalid ssl protocol version range",
    "invalid require_auth method",
    "invalid when ssl support is not compiled in",
    "invalid when gssapi support is not compiled in",
    "invalid command-line argument",  # from the server: what the URL's options= holds
)
# A value: of an option of the client (`invalid sslmode value`, `invalid "ssl_min_protocol_version" value`), or of a
# setting of the server (`invalid value for parameter "work_mem"`). Not each "invalid": a load balancer that has no
# server may answer what the client calls an invalid response.
_BAD_VALUE = re.compile(r'\binvalid (?:"?\w+"? value\b|value for parameter)')


def is_transient_at_start(error: BaseException) -> bool:
    """Whether the database may answer later; False where it has refused us, or where the error is none of a database.

    A wrong password is not waited for: the server counts the tries.
    """
    said = str(getattr(error, "orig", None) or error).lower()
    return is_transient(error) and not any(sentence in said for sentence in _REFUSED) and not _BAD_VALUE.search(said)

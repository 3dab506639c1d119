"""The statements that a replay needs beside those of the ledger and the dead letters: constants, too."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Text, bindparam, cast, func, literal, select
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import UserDefinedType

from seekpoint.ledger.tables import dead_letter


class _Xid8(UserDefinedType[str]):
    """A transaction's id; SQLAlchemy has no type for it."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


def _set_local(name: str) -> ColumnElement[str]:
    return func.set_config(literal(name, Text), bindparam(name, type_=Text), True).label(name)


_CURRENT = func.pg_current_xact_id().cast(Text)
# Ids are unique among all groups: people need to type nothing else.
GROUP_OF_DEAD_LETTER = select(dead_letter.c.consumer_group).where(dead_letter.c.id == bindparam("id", type_=BigInteger))
# What the handler's session was set to, before our own statements changed it for themselves.
REMEMBER_SESSION = select(
    func.current_setting(literal("TimeZone", Text)).label("TimeZone"),
    func.current_setting(literal("lock_timeout", Text)).label("lock_timeout"),
)
_SETTINGS = ("TimeZone", "lock_timeout", "idle_in_transaction_session_timeout")
# Handler and sinks run as in a worker's transaction. Answers the transaction's id.
AS_WORKER = select(_CURRENT.label("transaction"), *map(_set_local, _SETTINGS))
AS_WORKER_17 = select(_CURRENT.label("transaction"), *map(_set_local, (*_SETTINGS, "transaction_timeout")))
CURRENT_TRANSACTION = select(_CURRENT)
# NULL for one that ended too long ago.
TRANSACTION_STATUS = select(func.pg_xact_status(cast(cast(bindparam("transaction", type_=Text), Text), _Xid8)))

"""What a handler's statements did, as far as the driver knows: whether they wrote rows, which settings they name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from psycopg.pq.abc import PGresult

LONG = 10_000  # characters of a statement

_BEFORE = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)  # blanks and comments in front of a statement
_COUNTED = frozenset({b"INSERT", b"UPDATE", b"DELETE", b"MERGE", b"COPY"})
_WRITES_NOTHING = frozenset({b"SELECT", b"FETCH", b"MOVE", b"SHOW", b"SET", b"RESET", b"LOCK", b"LISTEN", b"UNLISTEN",
                             b"DECLARE", b"CLOSE", b"PREPARE", b"DEALLOCATE", b"EXPLAIN", b""})  # fmt: skip

# Words that may be followed by a parenthesis, and call nothing that writes.
_HARMLESS = re.compile(
    "all|and|any|array|array_agg|as|avg|between|by|case|cast|char|coalesce|count|date_trunc|decimal|distinct|else|except"
    "|exists|extract|filter|from|greatest|group|having|in|intersect|interval|is|join|json_agg|jsonb_agg"
    "|jsonb_build_object|lateral|least|length|like|limit|lower|max|min|not|now|nullif|numeric|offset|on|or|over|row"
    "|row_number|select|some|string_agg|sum|then|time|timestamp|timestamptz|union|upper|using|values|varchar|when|where"
    "|with|within",
    re.IGNORECASE,
)
_STRING = re.compile(r"'(?:[^']|'')*'")
_CALL = re.compile(r'(?<![\w$])([\w$]+|"[^"]+")\s*\(')
_ASKS = re.compile(r"(?:SELECT|WITH|VALUES|TABLE)\b", re.IGNORECASE)
_WRITES_WITHIN = re.compile(r"\b(?:INSERT|UPDATE|DELETE|MERGE|INTO)\b", re.IGNORECASE)
_LOCKS_ROWS = re.compile(r"\bFOR\s+(?:NO\s+KEY\s+)?UPDATE\b", re.IGNORECASE)
_SAVEPOINT = re.compile(
    r"(?P<command>SAVEPOINT|RELEASE(?:\s+SAVEPOINT)?|ROLLBACK(?:\s+(?:WORK|TRANSACTION))?\s+TO(?:\s+SAVEPOINT)?)"
    r"\s+(?P<name>\S+?)\s*;?\s*$",
    re.IGNORECASE,
)
_NOTIFIES = re.compile(r"(?:^|;)\s*NOTIFY\b", re.IGNORECASE)
_PREPARES = re.compile(r"(?:^|;)\s*PREPARE\s+TRANSACTION\b", re.IGNORECASE)

# An application's own settings have a dot in their names, and the server does not list them. A statement begins at the
# text's begin, after another one, and in the body of DO; EXECUTE has it in a string.
_SETS = re.compile(
    r"""(?:^|[;'$>]|\b(?:BEGIN|THEN|ELSE|LOOP)\b)\s*(?:SET|RESET)\s+(?:SESSION\s+)?
    (?:(?P<name>(?:[\w$]+|"[^"]+")(?:\s*\.\s*(?:[\w$]+|"[^"]+"))*)(?P<more>\s*\.?'\s*\|\|)?|['%])""",
    re.IGNORECASE | re.VERBOSE,
)
_RESETS_ALL = re.compile(r"(?:^|;)\s*(?:RESET\s+ALL|DISCARD)\b", re.IGNORECASE)
_CONFIG = re.compile(r'\bset_config"?\s*\(', re.IGNORECASE)
_NAMED = re.compile(r"\s*'([\w.$]+)'\s*(?:::\s*text\s*)?")
_LOCALLY = re.compile(r"\s*(?:true|'t'|'true')\s*(?:::\s*bool(?:ean)?\s*)?", re.IGNORECASE)
_ARGUMENTS = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|[(),]""")
_COMMENT = re.compile(r"""('(?:[^']|'')*'|"[^"]*")|--[^\n]*|/\*.*?\*/""", re.DOTALL)  # or what only looks like one
_SESSION_LOCK = re.compile(r"advisory_lock", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Text:
    """What the text of a statement shows.

    ``may_write``: rows that its row count does not show (a function that it calls, a WITH that writes). ``settings`` of
    the application's own that it sets for the session; ``sets_any`` where their names are not in the text.
    ``savepoint`` is a savepoint's command and name.
    """

    may_write: bool
    settings: frozenset[str]
    sets_any: bool
    takes_session_lock: bool
    prepares_transaction: bool
    notifies: bool
    savepoint: tuple[str, str] | None


def read(text: str) -> Text:
    """Parse a statement's text. Long ones contain values and do not recur, so they are not cached."""
    return _read(text) if len(text) <= LONG else _read.__wrapped__(text)


@lru_cache(maxsize=1024)
def _read(text: str) -> Text:
    begin = _BEFORE.match(text)
    plain = text[begin.end() :] if begin else text
    settings, sets_any = _settings(plain)
    savepoint, unquoted = _SAVEPOINT.match(plain), _STRING.sub("''", plain)
    return Text(
        _may_write(unquoted),
        settings,
        sets_any or bool(_RESETS_ALL.search(plain)),
        bool(_SESSION_LOCK.search(plain)),
        bool(_PREPARES.search(unquoted)),
        bool(_NOTIFIES.search(unquoted)),
        (savepoint["command"].split()[0].upper(), savepoint["name"].strip('"')) if savepoint else None,
    )


def _settings(plain: str) -> tuple[frozenset[str], bool]:
    """An application's own settings that the text sets for the session; and whether it sets some that it does not name.

    A setting counts as the session's unless the text says that it ends with the transaction.
    """
    if "set" not in plain.lower():
        return frozenset(), False
    bare = _COMMENT.sub(lambda found: found[1] or " ", plain)
    names: set[str] = set()
    for text in {plain, bare}:
        for found in _SETS.finditer(text):
            name = found["name"]
            names.add("" if name is None or found["more"] else re.sub(r'[\s"]', "", name).lower())
        for call in _CONFIG.finditer(text):
            first, last = _ends(text, call.end())
            if not _LOCALLY.fullmatch(last):
                named = _NAMED.fullmatch(first)
                names.add(named[1].lower() if named else "")
    return frozenset(name for name in names if "." in name), "" in names


def _ends(text: str, start: int) -> tuple[str, str]:
    """The first and the last argument of a call, from after its parenthesis; ``""`` for what cannot be parsed."""
    depth, cuts = 1, [start]
    for token in _ARGUMENTS.finditer(text, start):
        match token[0]:
            case "(":
                depth += 1
            case ")":
                depth -= 1
            case "," if depth == 1:
                cuts.append(token.end())
        if depth == 0:
            first = text[start : cuts[1] - 1] if len(cuts) > 1 else ""
            is_plain = not {"\\", "$"} & set(text[start : token.start()])  # else a string may end elsewhere
            return first, text[cuts[-1] : token.start()] if is_plain else ""
    return "", ""


def _may_write(plain: str) -> bool:
    if not _ASKS.match(plain):
        return len(_WRITES_WITHIN.findall(plain)) > 1 and re.search(r"\bWITH\b", plain, re.IGNORECASE) is not None
    calls = any(not _HARMLESS.fullmatch(word.strip('"')) for word in _CALL.findall(plain))
    return calls or _WRITES_WITHIN.search(_LOCKS_ROWS.sub("", plain)) is not None


@dataclass(slots=True)
class _Level:
    """What was done since a savepoint; since the beginning where it has no name."""

    name: str = ""
    wrote: bool = False
    is_unknown: bool = False


class Sent:
    """The statements of one transaction that a handler has sent.

    ``settings``, ``sets_any``, ``takes_session_lock`` and ``notifies`` are of all of them together, see :class:`Text`.
    """

    def __init__(self) -> None:
        self._levels = [_Level()]
        self.settings: set[str] = set()
        self.sets_any = self.takes_session_lock = self.notifies = False

    @property
    def wrote_nothing(self) -> bool:
        """Whether no row was written, as far as the driver can know; False where it cannot."""
        return not any(level.wrote or level.is_unknown for level in self._levels)

    @property
    def _is_settled(self) -> bool:
        """Whether a row was written outside of all savepoints: then later answers change nothing."""
        return self._levels[0].wrote or self._levels[0].is_unknown

    def unknown(self) -> None:
        """Something was sent whose outcome the driver does not see."""
        self._levels[-1].is_unknown = True

    def statement(self, text: Text) -> None:
        """A statement is about to be sent."""
        self.settings |= text.settings
        self.sets_any |= text.sets_any
        self.takes_session_lock |= text.takes_session_lock
        self.notifies |= text.notifies
        if text.may_write:
            self.unknown()

    def answered(self, text: Text, results: Iterable[PGresult]) -> None:
        """The answers to a statement have come."""
        if self._is_settled:
            return
        for result in results:
            command = (result.command_status or b"").split(b" ")[0]
            if command in _COUNTED:
                self.counted(result.command_tuples or 0)
            elif text.savepoint is not None:
                self.savepoint(*text.savepoint)
            elif command not in _WRITES_NOTHING:
                self.unknown()

    def counted(self, rows: int) -> None:
        """So many rows were written."""
        if rows > 0:
            self._levels[-1].wrote = True

    def savepoint(self, command: str, name: str) -> None:
        """``SAVEPOINT``, ``RELEASE`` or ``ROLLBACK`` (to) a savepoint of this name."""
        if command == "SAVEPOINT":
            self._levels.append(_Level(name))
            return
        at = next((n for n in range(len(self._levels) - 1, 0, -1) if self._levels[n].name == name), None)
        if at is None:
            self.unknown()
            return
        gone = self._levels[at:]
        del self._levels[at:]
        if command == "ROLLBACK":
            self._levels.append(_Level(name))
            return
        below = self._levels[-1]
        below.wrote |= any(level.wrote for level in gone)
        below.is_unknown |= any(level.is_unknown for level in gone)

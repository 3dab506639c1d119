"""Random types with random JSON for them: ordinary, odd and broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import msgspec

TEXT = [
    *("a", "b c", "é", "\u2028", "\u3000", "\xa0", "\x85", "😀", "日本語", "\ud800", "null", "NULL", "\\N", "\\.", "'"),
    *("\\", '"', "/", "}", "{", ",", ":", "\t", "\n", "\r", "\b", "\f", "\v", "\x00", "\x01", "\x1f", "\x7f"),
    *("plain text", "x" * 20, "word", "0", "-1"),
]
FRAGMENTS = [
    *(rb"\u00e9", rb"\ud83d\ude00", rb"\ud83d", rb"\u0000", rb"\/", rb"\x", b"\xff", b"\xc3", b"9999999", b"null"),
    *(b",", b'"', b"}", b"{", b"[", b"]", b"\t", b"0", b"-", b".5", b"e3", b"E+2", b"Z", b"+00:00", b"=", b":", b" "),
]
ZONES = ["", "Z", "Z", "z", "+00:00", "-00:00", "+05:30", "-05:30", "+23:59", "-12:00", "+0530", "+24:00"]
FRACTIONS = ["", "", ".5", ".000", ".000001", ".120", ".123456", ".1234565", ".999999999"]
FLOATS = [
    *("0.0", "-0.0", "0", "1", "1e16", "1e15", "123456789012345678", "9999999999999998", "1e-5", "0.0001", "5e-324"),
    *("1.7976931348623157e308", "2.2250738585072014e-308", "1e400", "0.1", "1E5", "-1.5e+3", "9007199254740993"),
    *("1495113486164150.2", "672040823421309.2"),  # just between two texts
]
SCALARS: dict[str, type] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "decimal": Decimal,
    "datetime": datetime,
    "date": date,
    "time": time,
    "uuid": UUID,
    "bytes": bytes,
}
DEFAULTS: tuple[tuple[str, object], ...] = (
    ("int", 7),
    ("float", 1e17),
    ("str", "a\tb\\"),
    ("bool", True),
    ("decimal", Decimal("1.50")),
    ("datetime", datetime(2020, 1, 2)),
    ("date", date(2020, 1, 2)),
    ("float", 0),
)


@dataclass(frozen=True)
class Field:
    """``kind`` is a scalar, or ``any``, ``object``, ``array`` of a column of jsonb."""

    name: str
    kind: str
    is_list: bool


class Odd:
    """What it makes depends on the seed alone."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def struct(self) -> tuple[type[msgspec.Struct], list[Field], tuple[str, ...]]:
        """A type, its fields, and which of them are columns."""
        fields: list[Field] = []
        declared: list[Any] = []
        for n in range(self.random.randrange(1, 6)):
            kind = self.random.choice([*SCALARS, *SCALARS, "any", "object", "array"])
            field = Field(f"f{n}", kind, kind in SCALARS and self.random.random() < 0.2)
            type_: Any = SCALARS.get(kind) or {"any": Any, "object": dict[str, Any], "array": list}[kind]
            if field.is_list:
                type_ = list[type_ | None] if self.random.random() < 0.5 else list[type_]
            defaults = [value for of, value in DEFAULTS if of == kind and not field.is_list]
            if self.random.random() < 0.4 and kind != "any":
                type_ = type_ | None
                defaults.append(None)
            if defaults and self.random.random() < 0.3:
                declared.append((field.name, type_, self.random.choice(defaults)))
            else:
                declared.append((field.name, type_))
            fields.append(field)
        rename: Any = self.random.choice([None, "upper", {"f0": "é"}, {"f0": "fé1"}])
        made = msgspec.defstruct("Made", declared, rename=rename, kw_only=True)
        names = [field.name for field in fields]
        return made, fields, tuple(self.random.sample(names, self.random.randrange(1, len(names) + 1)))

    def value(self, struct: type[msgspec.Struct], fields: list[Field]) -> bytes:
        """JSON for the type; some of it is not."""
        names = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
        pairs = [(names[field.name], self._field(field)) for field in fields if self.random.random() < 0.98]
        if self.random.random() < 0.2:
            self.random.shuffle(pairs)
        if self.random.random() < 0.1:
            pairs.append((self.random.choice(["extra", names[fields[0].name], ""]), self._anything()))
        made = self._object(pairs)
        return self._mutated(made) if self.random.random() < 0.25 else made

    def decodable(self, struct: type[msgspec.Struct], fields: list[Field]) -> bytes:
        """As ``value``, of those that decode."""
        while True:
            value = self.value(struct, fields)
            try:
                msgspec.json.decode(value, type=struct)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            return value

    def _field(self, field: Field) -> bytes:
        if self.random.random() < 0.03:
            return b"null"
        if self.random.random() < 0.05:
            return self._anything()
        if not field.is_list:
            return self._of(field.kind)
        items = [b"null" if self.random.random() < 0.1 else self._of(field.kind) for _ in range(self._few())]
        return b"[" + b",".join(items) + b"]"

    def _few(self) -> int:
        return self.random.randrange(4)

    def _of(self, kind: str) -> bytes:
        makers: dict[str, Callable[[], bytes]] = {
            "bool": lambda: self.random.choice([b"true", b"false"]),
            "int": lambda: self._integer().encode(),
            "float": lambda: self._float().encode(),
            "decimal": self._decimal,
            "any": self._anything,
            "object": lambda: self._object([(self._string(), self._anything(2)) for _ in range(self._few())]),
            "array": lambda: b"[" + b", ".join(self._anything(2) for _ in range(self._few())) + b"]",
        }
        return makers[kind]() if kind in makers else self._json(self._text(kind))

    def _decimal(self) -> bytes:
        cents = f"{self.random.randrange(10**6)}.{self.random.randrange(10**4):04}"
        found = self.random.choice([self._integer(), self._float(), cents])
        return found.encode() if self.random.random() < 0.5 else self._json(found)

    def _text(self, kind: str) -> str:
        makers: dict[str, Callable[[], str]] = {
            "str": self._string,
            "uuid": lambda: self._case(str(UUID(int=self.random.getrandbits(128)))),
            "bytes": self._base64,
            "date": self._date,
            "time": self._time,
            "datetime": lambda: self._date() + self.random.choice("TTTTTt _") + self._time(),
        }
        return makers[kind]()

    def _case(self, text: str) -> str:
        return self.random.choice([text, text.upper(), text.replace("-", ""), text.replace("-", "", 1)])

    def _base64(self) -> str:
        alphabet = "ABCXYZabcxyz0189+/" + ("-_ =" if self.random.random() < 0.1 else "")
        made = "".join(self.random.choices(alphabet, k=self.random.choice([0, 2, 3, 4, 4, 6, 7, 8, 5])))
        return made + "=" * (-len(made) % 4)

    def _date(self) -> str:
        year = self.random.choice([0, 1, 1900, 1999, 2000, 2024, 2026, 9999, self.random.randrange(10000)])
        day = self.random.choice([*range(1, 29), 29, 30, 31])
        return f"{year:04}-{self.random.randrange(0, 13) or 2:02}-{day:02}"

    def _time(self) -> str:
        hour, minute, second = (self.random.choice([0, 9, most, self.random.randrange(most)]) for most in (23, 59, 59))
        return f"{hour:02}:{minute:02}:{second:02}{self.random.choice(FRACTIONS)}{self.random.choice(ZONES)}"

    def _integer(self) -> str:
        edges = (0, 1, -1, 7, 10**17, 10**18 - 1, 10**18, 2**63 - 1, -(2**63), 2**64, 10**30)
        found = str(self.random.choice([*edges, self.random.randrange(-(10**6), 10**9)]))
        return self.random.choice([found, found, found, found, f"{found}.0", "-0", f"0{found}"])

    def _float(self) -> str:
        random = self.random
        made = (repr(random.uniform(-1e3, 1e3)), repr(random.random() * 10 ** random.randrange(-30, 30)))
        digits = f"{random.randrange(10**18)}e{random.randrange(-40, 40)}"
        cents = f"{random.randrange(10**6)}.{random.randrange(100):02}"
        return random.choice([*made, *made, digits, cents, cents, random.choice(FLOATS)])

    def _string(self) -> str:
        return "".join(self.random.choice(TEXT) for _ in range(self.random.randrange(6)))

    def _anything(self, depth: int = 1) -> bytes:
        kind = self.random.choice(["null", "bool", "int", "float", "str", "str", "object", "array"])
        if kind == "null" or (depth > 2 and kind in {"object", "array"}):
            return b"null"
        if kind in {"object", "array"}:
            items = [self._anything(depth + 1) for _ in range(self._few())]
            pairs = [(self._string(), item) for item in items]
            return self._object(pairs) if kind == "object" else b"[" + b",".join(items) + b"]"
        return self._of(kind)

    def _json(self, text: str) -> bytes:
        style = self.random.randrange(3)
        if style == 0:
            return json.dumps(text).encode()
        made = json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return made.replace(b"/", b"\\/") if style == 1 and self.random.random() < 0.1 else made

    def _object(self, pairs: list[tuple[str, bytes]]) -> bytes:
        space = self.random.choice([b"", b"", b" ", b"\n\t"])
        members = [self._json(name) + space + b":" + space + value for name, value in pairs]
        return b"{" + space + (b"," + space).join(members) + space + b"}"

    def _mutated(self, given: bytes) -> bytes:
        made = bytearray(given)
        for _ in range(self.random.randrange(1, 4)):
            at = self.random.randrange(len(made) + 1)
            match self.random.randrange(5):
                case 0:
                    del made[at : at + 1]
                case 1:
                    made[at : at + 1] = bytes([self.random.randrange(256)])
                case 2:
                    made[at:at] = self.random.choice(FRAGMENTS)
                case 3:
                    del made[at:]
                case _:
                    made += self.random.choice([b" ", b"\n", b"x", b"{}", b"\0", b'"'])
        return bytes(made)

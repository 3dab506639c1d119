"""How many payments a second ``Json`` decodes into each kind of type; no servers.

python benchmarks/value_types.py

All kinds alternate in one process. The best of ROUNDS counts, because other load only makes a round slower.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from decimal import Decimal
from time import process_time
from typing import Any

import attrs
import msgspec
import pydantic
from typing_extensions import TypedDict

from peers.kinds import Payment, payments
from seekpoint import Json
from stage import say

RECORDS, ROUNDS = 100_000, 5


class Exact(msgspec.Struct, frozen=True, gc=False):
    """A payment whose amount is a number with all its digits."""

    id: int
    account: int
    amount: Decimal
    kind: str
    at: str
    note: str


class PaymentDict(TypedDict):
    """A payment."""

    id: int
    account: int
    amount: str
    kind: str
    at: str
    note: str


FIELDS = [(field.name, field.type) for field in msgspec.structs.fields(Payment)]
EXACT = [(field.name, field.type) for field in msgspec.structs.fields(Exact)]
KINDS: dict[str, Any] = {
    "Struct": Payment,
    "dataclass": dataclasses.make_dataclass("Dataclass", FIELDS),
    "attrs class": attrs.make_class("Attrs", {name: attrs.field(type=kind) for name, kind in FIELDS}),
    "TypedDict": PaymentDict,
    "Pydantic model": pydantic.create_model("Model", **dict(FIELDS)),
    "no type": Any,
    "Struct with a Decimal": Exact,
    "Pydantic model with a Decimal": pydantic.create_model("ExactModel", **dict(EXACT)),
}


def seconds_of(codec: Json[Any], values: Sequence[bytes]) -> float:
    """Processor seconds to decode all values once."""
    began = process_time()
    for _ in map(codec.plain, values):
        pass
    return process_time() - began


def main() -> None:
    """Print a line for each kind."""
    values = [msgspec.json.encode(payment) for payment in payments(RECORDS)]
    numbers = [msgspec.json.encode(msgspec.Raw(_amount_as_number(value))) for value in values]
    runs = {name: (Json(kind), numbers if "Decimal" in name else values) for name, kind in KINDS.items()}
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for name, (codec, inputs) in runs.items():
            best[name] = min(best[name], seconds_of(codec, inputs))
    for name, seconds in best.items():
        say("value types", name, records=RECORDS, records_per_second=round(RECORDS / seconds))


def _amount_as_number(value: bytes) -> bytes:
    fields = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    fields["amount"] = msgspec.Raw(bytes(fields["amount"]).strip(b'"'))
    return msgspec.json.encode(fields)


if __name__ == "__main__":
    main()

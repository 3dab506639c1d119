"""Whether the compiled part is used is decided once, at import; and which types it writes, with it or without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, inspect

from seekpoint.sinks.native import VERSION
from seekpoint.sinks.native.kinds import fields_of, kind_of

ROOT = Path(__file__).parents[2]
MAKE = shutil.which("make")


def output(variable: str, before: str) -> tuple[str, str]:
    """What a fresh interpreter prints, ``STATE`` among it, and its errors; ``before`` is run first."""
    script = f"import sys, types\n{before}\nfrom seekpoint.sinks.native import PLAN, STATE\nprint(PLAN, STATE)"
    environment = {**os.environ, "SEEKPOINT_NATIVE": variable}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout, done.stderr


def state(variable: str, before: str) -> str:
    """``STATE``, or the last line of the error."""
    return "".join(output(variable, before)[::-1]).splitlines()[-1]


ABSENT = "sys.modules['seekpoint_native'] = None"


def present(version: str) -> str:
    return f"sys.modules['seekpoint_native'] = types.SimpleNamespace(__version__={version!r}, Plan='the compiled Plan')"


@pytest.mark.parametrize(
    ("variable", "before", "expected"),
    [
        ("", ABSENT, "None not installed"),
        ("", present(VERSION), f"the compiled Plan seekpoint-native {VERSION}"),
        ("", present("9.9"), f"None off (seekpoint-native is 9.9, not {VERSION})"),
        ("0", present(VERSION), "None off (SEEKPOINT_NATIVE=0)"),
        ("1", present(VERSION), f"the compiled Plan seekpoint-native {VERSION}"),
        ("1", present("9.9"), f"ImportError: SEEKPOINT_NATIVE=1, and seekpoint-native is 9.9, not {VERSION}"),
        ("yes", ABSENT, "ImportError: SEEKPOINT_NATIVE must be 0 (not used) or 1 (required), got 'yes'"),
    ],
)
def test_whether_it_is_used(variable: str, before: str, expected: str) -> None:
    assert state(variable, before) == expected


def test_another_version_is_not_used_and_a_warning_says_so() -> None:
    """Python's logging writes a warning to stderr where no handler is configured."""
    assert output("", present("9.9"))[1] == f"seekpoint-native 9.9 is not used: this version needs {VERSION}\n"
    assert output("", present(VERSION))[1] == output("", ABSENT)[1] == ""


def test_the_extra_and_the_sources_have_the_version_that_is_used() -> None:
    assert f'native = ["seekpoint-native=={VERSION}"]' in (ROOT / "pyproject.toml").read_text()
    for name in ("Cargo.toml", "Cargo.lock"):
        assert f'name = "seekpoint-native"\nversion = "{VERSION}"\n' in (ROOT / "native" / name).read_text()


@pytest.mark.skipif(MAKE is None, reason="make is not installed")
@pytest.mark.parametrize("target", ["native", "native-test", "native-mutants", "fuzz-native"])
def test_without_cargo_make_says_what_to_install(target: str, tmp_path: Path) -> None:
    assert MAKE is not None
    (tmp_path / "sh").symlink_to("/bin/sh")
    done = subprocess.run(
        [MAKE, target], cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert done.stdout == "cargo is needed, of Rust 1.87 or newer: https://rustup.rs\n"


def test_where_it_is_required_its_absence_is_an_error() -> None:
    assert state("1", ABSENT).startswith("ImportError: SEEKPOINT_NATIVE=1, and seekpoint-native cannot be imported: ")


@pytest.mark.parametrize(
    ("type_", "name", "nullable"),
    [
        (int, "int", False),
        (str | None, "str", True),
        (list[int], "int[]", False),
        (list[int | None] | None, "int?[]", True),
    ],
)
def test_types_that_it_writes(type_: Any, name: str, nullable: bool) -> None:
    kind = kind_of(inspect.type_info(type_), is_json=False)
    assert kind is not None
    assert (kind.name, kind.nullable) == (name, nullable)


class Nested(msgspec.Struct):
    id: int


@pytest.mark.parametrize(
    "type_",
    [
        int | str,
        Annotated[int, Meta(gt=0)],
        Annotated[int, Meta(description="an id")],
        list[Annotated[str, Meta(max_length=3)]],
        Annotated[list[int], Meta(min_length=1)],
        list[list[int]],
        set[int],
        dict[str, int],
        Nested,
        bytearray,
        Any,
    ],
)
def test_types_that_are_pythons(type_: Any) -> None:
    assert kind_of(inspect.type_info(type_), is_json=False) is None


@pytest.mark.parametrize("type_", [str, int, dict[str, int], dict[int, Any], list[str], Nested])
def test_types_that_are_pythons_in_a_column_of_json(type_: Any) -> None:
    assert kind_of(inspect.type_info(type_), is_json=True) is None


class Checked(msgspec.Struct):
    id: int

    def __post_init__(self) -> None:
        raise ValueError


@pytest.mark.parametrize(
    "struct",
    [
        Checked,
        msgspec.defstruct("Computed", [], bases=(Nested,), namespace={"id": property(lambda _: 7)}),
        msgspec.defstruct("Tagged", [("id", int)], tag="a"),
        msgspec.defstruct("Array", [("id", int)], array_like=True),
        msgspec.defstruct("Strict", [("id", int)], forbid_unknown_fields=True),
    ],
)
def test_types_whose_options_have_a_say_are_pythons(struct: type[msgspec.Struct]) -> None:
    assert fields_of(struct) is None

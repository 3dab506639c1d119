"""README, tutorial and Spark's first hour work as typed, in an empty folder, beside `seekpoint dev`.

A Python block that begins with ``# name.py`` is saved under that name. The commands of console blocks are typed into
one bash, in their order; `seekpoint dev` runs as in a terminal of its own. Lines below a command are what it prints:
they must come in that order, ``…`` is any text, and lines between them are not shown on the page. A command that only
looks is typed again until it prints them, as a reader would do while a worker is busy.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import pytest

import page
from report import pairs
from support.docs_pages import TYPED, blocks, named
from support.every_row import for_each
from support.waiting import until

SECONDS = 60.0  # for what takes a few
ON_SPARK = 300.0  # where Java is started first
SERVERS = "seekpoint dev"
DEMO = "seekpoint dev --demo"  # has servers of its own, and a test of its own in tests/kafka/test_cli.py
PREPARED = {
    "make setup",
    ". .venv/bin/activate",
    "pip install '/path/to/seekpoint[cli,dev,spark]'",
}  # the interpreter that runs the tests has it
LOOKS = re.compile(r'seekpoint (status |dev sql "SELECT )')


def test_the_first_screen_of_the_readme_has_the_promise_and_the_first_program() -> None:
    """The promise, the whole program, and the two commands that run it; the boundary is said before other things."""
    text = named("README.md")
    program, *shown = blocks(text)
    assert (program.language, program.line) == ("python", 6)
    assert program.line + program.text.count("\n") < 25
    assert "exactly once" in text[: text.index("```")]
    assert "\n$ seekpoint db upgrade\n$ seekpoint run shop:orders &\n" in "".join(
        f"\n{command.text}" for command in shown
    )
    assert re.findall(r"^\$ make (\w+)", text, re.MULTILINE) == ["setup", "demo", "test"]
    assert "boundary is *this database*" in text[: text.index("\n## Compared")]


QUESTIONS = {
    "hand-written loop": "loop",
    "its offsets in Postgres": "bare",
    "Kafka Connect": "connect insert",
    "Flink": "flink xa",
}


@for_each(QUESTIONS)
def test_the_rates_of_the_readme_are_those_of_the_report(peer: str) -> None:
    (row,) = re.findall(rf"^\| [^|]*{peer}.*\| ([\d.]+) times \|$", named("README.md"), re.MULTILINE)
    rows = json.loads(page.COPY.read_text(encoding="utf-8"))["rows"]
    assert float(row) == round(statistics.median(pairs(rows, ("append", None), (QUESTIONS[peer], None))), 1)


def test_the_rates_below_the_table_of_the_readme_are_those_of_the_report() -> None:
    match = re.search(
        r"\(([\d.]+) times at\s1,000 records, ([\d.]+) at 10\).*?the worker is ([\d.]+) and ([\d.]+) times",
        named("README.md"),
        re.DOTALL,
    )
    assert match is not None
    rows = json.loads(page.COPY.read_text(encoding="utf-8"))["rows"]
    asked = [
        ("append, 1,000", "loop, 1,000"),
        ("append, 10", "loop, 10"),
        *(("append, in a service", case) for case in ("loop", "bare")),
    ]
    medians = [statistics.median(pairs(rows, (subject, None), (other, None))) for subject, other in asked]
    assert [float(rate) for rate in match.groups()] == [round(rate, 1) for rate in medians]


class Command(NamedTuple):
    """A line to type, and the lines that it prints."""

    line: str
    prints: list[str]


def commands(text: str) -> list[Command]:
    commands: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append(Command(line[2:], []))
        elif line.strip():
            commands[-1].prints.append(line.rstrip())
    return commands


def printed(text: str, lines: list[str]) -> bool:
    """Whether the lines are in what was said, in their order; the widths of spaces do not count."""
    wanted = [".*".join(map(re.escape, " ".join(line.split()).split("…"))) for line in lines]
    remaining = iter(" ".join(line.split()) for line in text.splitlines())
    return all(any(re.fullmatch(pattern, line) for line in remaining) for pattern in wanted)


class Terminal:
    """A bash with job control, typed into line by line; what it and its jobs print is kept in a file."""

    def __init__(self, folder: Path, env: dict[str, str], seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._output = folder.parent / "output"
        commands, self._keyboard = os.pipe()
        loop = f'set -m; while IFS= read -r line <&{commands}; do eval "$line"; echo "~ $? ~"; done'
        with self._output.open("wb") as output:
            self._bash = subprocess.Popen(
                ["bash", "--noprofile", "--norc", "-c", loop],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[commands],
            )
        os.close(commands)

    def type(self, command: Command) -> None:
        """Type the command; returns when it has ended (or runs in the background) and has printed its lines."""
        deadline, pause = monotonic() + self._seconds, threading.Event()
        while not self._does(command, deadline):
            assert LOOKS.match(command.line), f"$ {command.line}\nhas not printed {command.prints}:\n{self.written}"
            assert monotonic() < deadline, f"$ {command.line}\nnever prints {command.prints}:\n{self.written}"
            pause.wait(0.2)

    def _does(self, command: Command, deadline: float) -> bool:
        start, pause = len(self.written), threading.Event()
        os.write(self._keyboard, f"{command.line}\n".encode())
        while True:
            output, in_background = self.written[start:], command.line.endswith("&")
            ended = re.search(r"^~ (\d+) ~$", output, re.MULTILINE)
            if ended is not None:
                assert ended[1] == "0", f"$ {command.line}\nends with {ended[1]}:\n{self.written}"
                if not in_background:
                    return printed(output, command.prints)
            if in_background and ended is not None and printed(output, command.prints):
                return True
            assert monotonic() < deadline, f"$ {command.line}\nhas not ended:\n{self.written}"
            pause.wait(0.05)

    @property
    def written(self) -> str:
        return self._output.read_text(encoding="utf-8")

    def close(self) -> None:
        """End the jobs that are left, and the bash."""
        os.write(self._keyboard, b"kill -9 $(jobs -p) 2> /dev/null; exit\n")
        os.close(self._keyboard)
        self._bash.wait(SECONDS)
        print(self.written)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A shell of this interpreter's environment where no server is named, and other pairs are not found."""
    (tmp_path / "temporary").mkdir()
    named = {name: value for name, value in os.environ.items() if not name.startswith("SEEKPOINT_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    cache = {name: os.environ[name] for name in ("SEEKPOINT_CACHE",) if name in os.environ}
    return named | cache | {"PATH": path, "TMPDIR": str(tmp_path / "temporary")}


@pytest.fixture
def servers(tmp_path: Path, env: dict[str, str]) -> Iterator[None]:
    """`seekpoint dev`, as typed in a terminal of its own."""
    output = tmp_path / "servers"
    with output.open("wb") as out:
        process = subprocess.Popen(SERVERS.split(), env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def announced() -> bool:
        assert process.poll() is None, output.read_text(encoding="utf-8")
        return "Ctrl-C" in output.read_text(encoding="utf-8")

    try:
        until(announced, f"the servers of {SERVERS}", 2 * SECONDS)
        yield
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0, output.read_text(encoding="utf-8")
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("page", TYPED)
def test_a_page_works_as_typed(page: str, tmp_path: Path, env: dict[str, str]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    terminal = Terminal(folder, env, ON_SPARK if page.startswith("docs/spark/") else SECONDS)
    try:
        for block in blocks(named(page)):
            name = re.match(r"# (\w+\.py)\n", block.text)
            if block.language == "python" and name is not None:
                (folder / name[1]).write_text(block.text, encoding="utf-8")
            elif block.language == "console":
                for command in commands(block.text):
                    if command.line not in {*PREPARED, SERVERS, DEMO} and not re.match(
                        r"make (demo|test)", command.line
                    ):
                        terminal.type(command)
    finally:
        terminal.close()

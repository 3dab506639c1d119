"""The commands on the pages exist, with their options; and the reference has every command and every option."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

from cli_reference import BLOCK, PAGE, SPARK_COMMAND, SPARK_PAGE, PageError, leaves, with_options
from seekpoint.cli import exit_codes
from seekpoint.cli.app import every_command
from seekpoint.cli.parent_link import GRACE, LEAVE
from seekpoint.cli.supervisor import SILENT
from support.docs_pages import PAGES, ROOT, blocks, name_of, named, read, section
from support.every_row import for_each

ROOT_COMMAND = every_command()
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def commands_on(page: Path) -> list[tuple[int, list[str]]]:
    """Line and words of each command in the page's console blocks; environment assignments left out."""
    commands = []
    for block in blocks(read(page), "console"):
        for number, line in enumerate(block.text.splitlines(), block.line + 1):
            if line.startswith("$ "):
                words = shlex.split(line[2:], comments=True)
                while words and re.match(r"^[A-Z_]+=", words[0]):
                    words.pop(0)
                commands.append((number, words))
    return commands


LEAVES = leaves(ROOT_COMMAND)


def options_of(command: object) -> set[str]:
    return {opt for parameter in command.params for opt in (*parameter.opts, *parameter.secondary_opts)}  # type: ignore[attr-defined]


def check(words: list[str]) -> str | None:
    """What is wrong with a `seekpoint …` command line; None if nothing is."""
    command, left = ROOT_COMMAND, list(words)
    while True:
        known, below = options_of(command), getattr(command, "commands", {})
        while left and left[0].startswith("-") and left[0] in {*known, "--help"}:
            left.pop(0)
        if not below or not left:
            break
        if left[0] not in below:
            return f"there is no command {' '.join(words)!r}"
        command = below[left.pop(0)]
    options = [word.partition("=")[0] for word in left if word.startswith("-")]
    unknown = sorted(set(options) - options_of(command) - {"--help"})
    return f"{' '.join(words)!r} has no option {', '.join(unknown)}" if unknown else None


SHOWN = [page for page in PAGES if commands_on(page)]


@for_each(SHOWN, name_of)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    wrong = []
    for line, words in commands_on(page):
        if words[:1] == ["seekpoint"]:
            end = next((n for n, word in enumerate(words) if word in {">", "|", "&"}), len(words))
            problem = check(words[1:end])
        elif words[:1] == ["make"]:
            unknown = {word for word in words[1:] if "=" not in word} - TARGETS
            problem = f"the Makefile has no target {', '.join(unknown)}" if unknown else None
        else:
            problem = None
        if problem:
            wrong.append(f"{name_of(page)}:{line}: {problem}")
    assert not wrong, "\n".join(wrong)


def test_a_wrong_command_or_option_would_be_found() -> None:
    assert check(["rum", "shop:orders"])
    assert check(["db", "upgrad"])
    assert check(["status", "g", "--jason"])
    assert check(["--traceback", "status", "g", "--json"]) is None


@for_each(LEAVES, " ".join)
def test_the_text_of_a_command_names_its_own_options(words: tuple[str, ...]) -> None:
    reference = named("docs/reference/cli.md")
    text = BLOCK.sub("", section(reference, f"`seekpoint {' '.join(words)}`"))
    shared = set(re.findall(r"--[a-z-]+", section(reference, "Options of every command")))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= {*options_of(LEAVES[words]), *shared}


def test_the_reference_has_the_options_as_the_code_has_them() -> None:
    written = read(PAGE)
    assert with_options(written, ROOT_COMMAND) == written, "run docs/site/cli_reference.py"
    of_spark = read(SPARK_PAGE)
    assert with_options(of_spark, ROOT_COMMAND, SPARK_COMMAND) == of_spark, "run docs/site/cli_reference.py"


def test_an_option_or_a_command_that_the_reference_misses_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    written = read(PAGE)
    monkeypatch.setattr(LEAVES["status",].params[1], "help", "Another text.")
    assert "Another text." not in written
    assert "Another text." in with_options(written, ROOT_COMMAND)
    with pytest.raises(PageError, match="these commands have no section: verify"):
        with_options(
            written.replace(f"## `seekpoint verify`{section(written, '`seekpoint verify`')}", ""), ROOT_COMMAND
        )
    with pytest.raises(PageError, match="there is no command 'verity'"):
        with_options(written.replace("## `seekpoint verify`", "## `seekpoint verity`"), ROOT_COMMAND)


def test_the_options_of_every_command_are_in_the_reference() -> None:
    text = section(named("docs/reference/cli.md"), "Options of every command")
    assert {option for option in options_of(ROOT_COMMAND) if option.startswith("--")} <= set(
        re.findall(r"--[a-z-]+", text)
    )


def test_the_exit_codes_are_those_of_the_code() -> None:
    text = section(named("docs/reference/cli.md"), "Exit codes")
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]
    assert codes == [0, exit_codes.FAILED, exit_codes.USAGE, exit_codes.AWAY, exit_codes.ABORTED]


def test_contributing_names_nine_commands() -> None:
    (block, *_) = blocks(named("CONTRIBUTING.md"), "console")
    assert len(block.text.splitlines()) == 9


# -- the files in deploy/ ------------------------------------------------------------------------------

DEPLOY = ROOT / "docs" / "guides" / "deploy.md"
FILES = {
    "text": ROOT / "deploy" / "docker" / "Dockerfile",
    "yaml": ROOT / "deploy" / "kubernetes" / "deployment.yaml",
    "ini": ROOT / "deploy" / "systemd" / "shop-orders.service",
}


def commands_in(text: str) -> list[list[str]]:
    """The words after ``seekpoint``: of YAML's ``args: [...]``, of JSON's ``CMD [...]``, of ``Exec…=`` lines."""
    listed = re.findall(r"(?:args:|CMD) \[(.*)\]", text)
    typed = re.findall(r"^Exec\w+=\S*/seekpoint (.*)$", text, re.MULTILINE)
    return [shlex.split(command.replace(",", " ")) for command in listed] + [shlex.split(command) for command in typed]


@for_each(FILES)
def test_a_file_is_the_one_on_the_page(kind: str) -> None:
    first = blocks(read(DEPLOY), kind)[0]
    assert FILES[kind].read_text(encoding="utf-8").strip() == first.text.strip()


@for_each(FILES)
def test_the_commands_of_a_file_exist(kind: str) -> None:
    commands = commands_in(FILES[kind].read_text(encoding="utf-8"))
    assert commands
    assert [problem for words in commands if (problem := check(words))] == []


def parameters(words: list[str]) -> dict[str, Any]:
    """The command line as the command takes it."""
    command: Any = ROOT_COMMAND
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    return dict(command.make_context(command.name, list(words), resilient_parsing=True).params)


def test_kubernetes_asks_the_port_that_the_command_listens_on() -> None:
    yaml: Any = pytest.importorskip("yaml", reason="installed with the site's tools: make check")
    deployment = yaml.safe_load(FILES["yaml"].read_text(encoding="utf-8"))
    pod = deployment["spec"]["template"]
    spec = pod["spec"]
    (worker,) = spec["containers"]
    arguments, probe = parameters(worker["args"]), worker["livenessProbe"]["httpGet"]
    host, _, port = arguments["listen"].rpartition(":")
    assert (host, arguments["log_format"]) == ("0.0.0.0", "json"), "probes do not reach loopback"
    assert {int(port)} == {probe["port"], *(port["containerPort"] for port in worker["ports"])}
    assert probe["path"] == "/live", "on /ready and /stale no process is restarted"
    assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert spec["terminationGracePeriodSeconds"] > GRACE + LEAVE
    mounts = {mount["name"]: mount["mountPath"] for mount in worker["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in spec["volumes"]}
    assert spec["securityContext"]["runAsNonRoot"]
    limited = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert all(container["securityContext"] == limited for container in (worker, *spec["initContainers"]))
    environment = {variable["name"]: variable["value"] for variable in worker["env"]}
    assert environment["SEEKPOINT_KAFKA_CONFIG"].startswith(mounts["kafka"])


def test_systemd_signals_the_parent_and_restarts_what_a_restart_may_help() -> None:
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(FILES["ini"], encoding="utf-8")
    service = unit["Service"]
    arguments = parameters(shlex.split(service["ExecStart"])[1:])
    assert arguments["workers"] > 1
    assert service["KillMode"] == "mixed"
    assert (service["Type"], int(service["RestartPreventExitStatus"])) == ("notify", exit_codes.USAGE)
    assert int(service["TimeoutStopSec"]) > GRACE + LEAVE
    assert int(service["WatchdogSec"]) >= SILENT


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """Of a copy whose commands are there: those of the page are not."""
    text = re.sub(r"/srv/shop\S*/seekpoint", shutil.which("true") or "", FILES["ini"].read_text(encoding="utf-8"))
    copy = tmp_path / FILES["ini"].name
    copy.write_text(text, encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60, check=False)
    assert [line for line in done.stderr.splitlines() if copy.name in line] == []
    copy.write_text(text.replace("WatchdogSec", "WatchdogSeconds"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60, check=False)
    assert "WatchdogSeconds" in done.stderr, "it would say so"


def test_docker_starts_the_command_without_a_shell() -> None:
    lines = dict(line.split(" ", 1) for line in FILES["text"].read_text(encoding="utf-8").splitlines())
    assert json.loads(lines["ENTRYPOINT"]) == ["seekpoint"]
    assert parameters(json.loads(lines["CMD"]))["targets"]
    assert int(lines["USER"].split(":")[0]) > 0, "a number: runAsNonRoot knows no names"
    assert {"typer", "rich", "prometheus-client"} <= set(lines["RUN"].split())

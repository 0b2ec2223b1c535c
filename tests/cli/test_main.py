"""`trainyard` itself: the list of commands, their help, and errors in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli import CommandError
from cli.__main__ import COMMANDS, DEV, GROUPS, load, main
from cli.target import selected
from infra.stackfiles import ROOT

#: Packages that take up to a second to import.
SLOW = ("pulumi", "pulumi_kubernetes", "kubernetes", "boto3", "botocore", "google", "pydantic")


@pytest.mark.parametrize(("typed", "groups"), [([], GROUPS), (["dev"], DEV)], ids=["trainyard", "dev"])
def test_the_list_has_every_command_in_its_group(
    typed: list[str], groups: dict[str, dict[str, tuple[str, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line.split()[1] for line in lines if line.startswith("╭")]
    assert titles == ["Options", *groups]
    for name in [name for group in groups.values() for name in group]:
        (line,) = [line for line in lines if line.startswith(f"│ {name} ")]
        assert len(line.split()) > 4, "and what it does"


def test_the_commands_are_listed_and_a_configuration_is_read_without_any_sdk() -> None:
    """Each SDK takes half a second to import."""
    tell = "print(*sys.modules, file=sys.stderr)"
    script = f"import sys; from cli.__main__ import main; main(['--help']); {tell}; import infra.parse; {tell}"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    for needed, told in zip((set[str](), {"pydantic"}), done.stderr.splitlines(), strict=True):
        assert not {name.partition(".")[0] for name in told.split()} & {*SLOW} - needed


#: Those of the commands about a stack that read its file.
FILES = ("doctor", "cost", "prove", "up", "dev snapshot", "dev policy", "dev docker-login")
#: Command -> the rest of its line, for all that are about a stack.
OF_A_STACK = {
    **dict.fromkeys(FILES, ()),
    **dict.fromkeys(("follow", "status", "logs", "stop", "resume", "board", "fetch", "runs", "compare"), ()),
    **dict.fromkeys(("sample", "chat", "export", "push"), ()),
    **dict.fromkeys(("upload", "rm", "ls", "du", "run"), ("here",)),
    "down": ("--yes",),
    "evaluate": ("--tasks", "x"),
}


@pytest.fixture
def pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A `pulumi` that has selected a stack ("": none), and knows no other."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("cli.target.selected", selected)
    monkeypatch.setattr("cli.target.is_local", lambda stack: False)

    def write(name: str) -> None:
        named = f"echo {name}" if name else "echo error: no stack selected >&2; exit 1"
        other = "echo error: no stack named x found >&2; exit 1"
        (tmp_path / "pulumi").write_text(f'#!/bin/sh\n[ "$2" = --show-name ] && {{ {named}; exit; }}\n{other}\n')
        (tmp_path / "pulumi").chmod(0o755)

    return write


def asked_of(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *more: str) -> list[str]:
    """The stacks that a command asks for, whose file or state is not there."""
    asked: list[str] = []

    def note(stack: str, *_: str) -> str:
        asked.append(stack)
        raise CommandError("asked")

    (tmp_path / "here").mkdir(exist_ok=True)
    (tmp_path / "here" / "file").touch()
    monkeypatch.chdir(tmp_path)
    if command in FILES:
        monkeypatch.setattr("cli.target.known", note)
    else:
        module = COMMANDS[command][0].partition(":")[0]
        for name in ("is_local",) if command == "down" else ("target_of", "targets_of", "chosen", "volume_of"):
            monkeypatch.setattr(f"{module}.{name}", note, raising=False)
    assert main([*command.split(), *OF_A_STACK[command], *more]) == 1
    return asked


def test_all_commands_about_a_stack_are_tried() -> None:
    for name in {*COMMANDS} - {*OF_A_STACK, "local", "dev", "dev kind"}:  # which takes a proof's name, too
        assert "--stack" not in [option for each in load(name).params for option in each.opts], name


@pytest.mark.parametrize("command", OF_A_STACK)
def test_a_stack_is_named_in_one_way(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asked_of(command, monkeypatch, tmp_path, "--stack", "gone") == ["gone"]


@pytest.mark.parametrize("command", ["cost", "status"])
def test_without_a_name_it_is_the_stack_that_pulumi_has_selected(
    command: str, pulumi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pulumi("acme/chosen")
    assert asked_of(command, monkeypatch, tmp_path) == ["chosen"]


@pytest.mark.parametrize(("command", "there"), [("cost", True), ("status", True), ("status", False)])
def test_with_none_selected_it_is_the_local_one_else_a_line_lists_the_stacks(
    command: str,
    there: bool,
    pulumi: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pulumi("")
    if there:
        monkeypatch.setattr("cli.target.is_local", lambda stack: stack == "local")
        assert asked_of(command, monkeypatch, tmp_path) == ["local"]
    else:
        assert main([command, *OF_A_STACK[command]]) == 2
        said = "error: no stack is selected; give --stack NAME; there are: aws-g4dn, "
        assert capsys.readouterr().err.startswith(said)


def test_the_version_names_the_commit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"trainyard \S+, Python 3\.\d+\.\d+\S*, Pulumi SDK \S+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["foltow"], "No such command 'foltow'. Did you mean 'follow'?"),
        (["status", "--nothing"], "No such option: --nothing"),
        (["local", "nothing"], "No such command 'nothing'."),
        (["board", "--port", "99999"], "Invalid value for '--port': Input should be less than or equal to 65535"),
    ],
)
def test_a_wrong_command_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"error: {said}")
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_the_script_runs_the_checkout_that_it_lies_in_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    script = tmp_path / ".venv" / "bin" / "trainyard"
    script.write_text((ROOT / "cli" / "trainyard").read_text())
    script.chmod(0o755)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "__main__.py").write_text("import sys\ndef main():\n    print(sys.argv[1:])\n    return 7\n")
    link = tmp_path / "linked"
    link.symlink_to(script)
    for name in (script, link):
        done = subprocess.run([name, "a b", "--c"], cwd="/", capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (7, "['a b', '--c']\n")


def test_a_command_without_its_packages_says_how_to_install_them() -> None:
    script = (
        "import sys; sys.modules['kubernetes'] = None; from cli.__main__ import main; sys.exit(main(['logs', '-h']))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    said = "error: logs needs the package kubernetes; make .venv/dev.stamp installs it\n"
    assert (done.returncode, done.stderr) == (1, said)

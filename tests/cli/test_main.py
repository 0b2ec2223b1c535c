"""`trainyard` itself: the list of commands, their help, and errors in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli import CommandError
from cli.__main__ import COMMANDS, GROUPS, main
from infra.stackfiles import ROOT

#: Packages that take up to a second to import.
SLOW = ("pulumi", "kubernetes", "boto3", "botocore", "google", "pydantic")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"trainyard {name}" in capsys.readouterr().out


def test_the_list_has_every_command_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line.split()[1] for line in lines if line.startswith("╭")]
    assert titles == ["Options", *GROUPS]
    for name in COMMANDS:
        (line,) = [line for line in lines if line.startswith(f"│ {name} ")]
        assert len(line.split()) > 4, "and what it does"


def test_a_configuration_is_read_without_any_sdk() -> None:
    """Each SDK takes half a second to import."""
    script = "import sys, infra.parse; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {name.partition(".")[0] for name in done.stdout.split()} & {*SLOW, "pulumi_kubernetes"} - {"pydantic"}


def test_the_list_needs_no_slow_package() -> None:
    script = "import sys; from cli.__main__ import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {name.partition(".")[0] for name in done.stderr.split()} & set(SLOW)


@pytest.mark.parametrize("arguments", [["cost", "local"], ["cost", "--stack", "local"], ["cost", "--stack=local"]])
def test_a_stack_is_an_argument_or_an_option(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("Stack local uses an existing cluster")


@pytest.mark.parametrize(
    "command",
    ["doctor", "cost", "prove", "snapshot", "policy", "graph", "docker-login"],
)
@pytest.mark.parametrize("spelling", [["nowhere"], ["--stack", "nowhere"]], ids=" ".join)
def test_every_command_that_reads_a_stacks_file_takes_both_spellings(
    command: str, spelling: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), *spelling]) == 2
    assert "no stack 'nowhere'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["follow", "status", "logs", "board", "fetch", "upload here", "evaluate --tasks x"])
@pytest.mark.parametrize("spelling", [["gone"], ["--stack", "gone"]], ids=" ".join)
def test_every_command_that_asks_a_cluster_takes_both_spellings(
    command: str, spelling: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def target_of(stack: str) -> None:
        asked.append(stack)
        raise CommandError("asked")

    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"cli.{command.split()[0]}.target_of", target_of)
    assert main([*command.split(), *spelling]) == 1
    assert asked == ["gone"]


def test_the_version_names_the_commit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"trainyard \S+, Python 3\.\d+\.\d+\S*, Pulumi SDK \S+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["foltow"], "No such command 'foltow'. Did you mean 'follow'?"),
        (["cost"], "Missing argument 'STACK'; there are: aws-g4dn, "),
        (["cost", "local", "--stack", "local"], "STACK: given twice, local and --stack local; give one"),
        (["cost", "nowhere"], "no stack 'nowhere'; there are: aws-g4dn, "),
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


@pytest.mark.parametrize("arguments", [["local"], ["-h"]])
def test_a_group_without_a_command_lists_its_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert "COMMAND [ARGS]..." in capsys.readouterr().out


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


@pytest.mark.parametrize("command", ["doctor", "cost", "snapshot", "policy", "prove"])
def test_a_file_that_pulumi_stack_init_wrote_is_told_in_a_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("infra.stackfiles.ROOT", tmp_path)
    (tmp_path / "Pulumi.mine.yaml").write_text("encryptionsalt: v1:x\n")
    assert main([command, "mine"]) in (1, 2)
    shown = capsys.readouterr()
    assert "Pulumi.mine.yaml: has no config; copy a stack file: cp Pulumi.local.yaml" in shown.out + shown.err


@pytest.mark.parametrize("command", ["graph", "snapshot", "policy"])
def test_a_stack_file_with_a_mistake_is_told_by_its_key(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("infra.stackfiles.ROOT", tmp_path)
    (tmp_path / "Pulumi.mine.yaml").write_text("config: {trainyard:workers: {count: 0}}\n")
    assert main([command, "mine"]) == 2
    assert "workers.count: " in capsys.readouterr().err


def test_a_command_without_its_packages_says_how_to_install_them() -> None:
    script = "import sys; sys.modules['boto3'] = None; from cli.__main__ import main; sys.exit(main(['prove', '-h']))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    said = "error: prove needs the package boto3; make .venv/dev.stamp installs it\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("command", ["follow gcp-c3", "prove gcp-c3"])
def test_a_missing_pulumi_is_told_in_a_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(command.split()) == 1
    assert capsys.readouterr().err.startswith("error: pulumi is not on PATH; install it, or `make up`")

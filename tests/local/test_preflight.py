"""Each reason why a machine cannot be the node is one line that says what is wrong and what to do instead."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from cli.__main__ import main
from local import paths, preflight, toolchain
from local.preflight import Facts

GOOD = Facts(
    system="Linux",
    uid=0,
    capabilities_missing=(),
    cgroups_missing=(),
    overlay=True,
    folder="/root/Müllers Züge/trainyard 2.0",
    disk_free=80.0,
    cache_free=None,
    new_image=True,
    memory=24.0,
    unbuilt=("kubernetes",),
    go=True,
    packages_missing=("buildah",),
    apt=True,
    address_taken=None,
    other_checkout=None,
)


def test_a_good_machine_has_no_problem() -> None:
    assert preflight.node_problems(GOOD) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"system": "Darwin"}, "needs Linux, this is Darwin"),
        ({"uid": 1000}, "needs root (user id 0, not 1000); run it with sudo"),
        ({"capabilities_missing": ("CAP_SYS_ADMIN",)}, "root lacks CAP_SYS_ADMIN"),
        ({"cgroups_missing": ("cpuset", "memory")}, "lacks the controllers cpuset, memory"),
        ({"overlay": False}, "no overlay file system"),
        ({"folder": "/srv/a:b, c:d"}, "has : ,; move it to a path of letters"),
        ({"disk_free": 11.0}, "13 GB are needed (4 to build the toolchain, 9 for the trainer's image); free some"),
        ({"disk_free": 4.0, "unbuilt": (), "new_image": False}, "5 GB are needed (5 for new layers and runs)"),
        ({"disk_free": 20.0, "cache_free": 3.0}, "3 GB of disk are free at"),
        ({"memory": 2.0}, "2.0 GB of memory, 6 GB are needed"),
        ({"apt": False}, "no apt-get to install them: buildah"),
        ({"address_taken": "198.18.0.1 on eth1"}, "(198.18.0.1 on eth1)"),
        ({"other_checkout": "/srv/another"}, "cd /srv/another && .venv/bin/trainyard local down"),
    ],
)
def test_each_refusal_names_the_cause_and_the_way_out(change: dict[str, Any], said: str) -> None:
    problems = preflight.node_problems(replace(GOOD, **change))
    assert len(problems) == 1
    assert said in problems[0]
    assert "\n" not in problems[0]
    assert "trainyard local use kind-kind" in problems[0]


def test_no_go_and_no_way_to_get_one() -> None:
    (problem,) = preflight.node_problems(replace(GOOD, go=False))
    assert "no Go 1.21 or newer to build kubernetes" in problem
    assert "Pulumi" not in problem, "Pulumi brings no Kubernetes"
    (problem,) = preflight.node_problems(replace(GOOD, go=False, unbuilt=toolchain.PULUMI_TOOLS))
    assert problem.endswith("install Go, or Pulumi itself")
    # With everything built, Go is not needed.
    assert preflight.node_problems(replace(GOOD, go=False, unbuilt=())) == []


def test_a_first_run_says_what_it_takes_and_a_later_one_nothing() -> None:
    everything = ("etcd", "kubernetes", "coredns", "pulumi", "pulumi-language-python", "pulumi-kubernetes")
    said = preflight.announcement(replace(GOOD, unbuilt=everything))
    assert said is not None
    assert "about 10 minutes on 2 idle cores, more on slower or busy ones (what is left is shown), and 16 GB" in said
    assert "(80 are free)" in said
    assert "make clean" in said
    image_alone = preflight.announcement(replace(GOOD, unbuilt=()))
    assert image_alone is not None
    assert "about 4 minutes on 2 idle cores" in image_alone
    assert "and 9 GB" in image_alone
    assert preflight.announcement(replace(GOOD, unbuilt=(), new_image=False)) is None


def records() -> list[str]:
    """The records of started daemons."""
    return [path.read_text() for path in sorted(paths.PROCESSES.glob("*.json"))]


def test_a_refused_up_exits_2_with_the_line_and_changes_nothing() -> None:
    """The command itself, with facts of a machine that is not Linux and has no GNU programs."""
    script = (
        "import os, sys, platform\n"
        "os.environ['PATH'] = ''\n"
        "platform.system = lambda: 'Darwin'\n"
        "from cli.__main__ import main\n"
        "sys.exit(main(['local', 'up']))\n"
    )
    before = records()
    result = subprocess.run([sys.executable, "-c", script], cwd=paths.ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.splitlines() == [line for line in result.stderr.splitlines() if line.startswith("local: ")]
    assert "needs Linux" in result.stderr
    assert records() == before


def test_an_unknown_tool_is_refused_with_the_ones_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["local", "toolchain", "kubernets"]) == 2
    assert "unknown tool 'kubernets'; allowed: etcd, kubernetes" in capsys.readouterr().err

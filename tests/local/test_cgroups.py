"""The control group above all pods, in trees as Linux documents them (admin-guide/cgroup-v2.rst, cgroup-v1/)."""

from __future__ import annotations

from pathlib import Path

import pytest

from local import cgroups


@pytest.mark.parametrize("hugetlb", [True, False])
def test_with_version_2_the_root_and_our_group_hand_on_what_the_kubelet_asks_for(tmp_path: Path, hugetlb: bool) -> None:
    """A root of version 2 has no cpuset.cpus and no cpuset.mems: these are files of its children."""
    (tmp_path / "cgroup.controllers").write_text(f"cpuset cpu io memory {'hugetlb ' * hugetlb}pids rdma misc\n")
    assert not cgroups.missing(tmp_path)
    cgroups.ensure(tmp_path)
    for group in (tmp_path, tmp_path / "trainyard"):
        wanted = (group / "cgroup.subtree_control").read_text().split()
        assert sorted(wanted) == sorted(["+cpu", "+cpuset", "+memory", "+pids", *["+hugetlb"] * hugetlb])


def test_with_version_1_processes_may_enter(tmp_path: Path) -> None:
    for name in ("cpu", "cpuacct", "cpuset", "memory"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text("")
    (tmp_path / "cpuset/cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset/trainyard").mkdir()
    (tmp_path / "cpuset/trainyard/cpuset.cpus").write_text("\n")
    assert not cgroups.missing(tmp_path)
    cgroups.ensure(tmp_path)
    assert (tmp_path / "memory/trainyard").is_dir()
    assert (tmp_path / "cpuset/trainyard/cpuset.cpus").read_text() == "0-1\n"

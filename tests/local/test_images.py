"""The images that the node builds itself: readable by pods, and made without a trace on the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from local import images, paths


@pytest.mark.usefixtures("strict_umask")
def test_pods_can_read_etcds_image_whatever_the_users_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "ensure", lambda name, inputs, fill, entry: str(fill(tmp_path)))
    etcd = Path(images.etcd()) / "usr/local/bin/etcd"
    assert [path.stat().st_mode & 0o777 for path in (etcd, *etcd.parents[:3])] == [0o755] * 4


@pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces need root")
def test_debian_is_installed_in_a_mount_namespace_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mmdebstrap 1.5.7 of Debian 13 runs `mount --make-rprivate /`."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/mmdebstrap"
    program.write_text(
        '#!/bin/sh\nfor word; do case $word in *.tar) readlink /proc/self/ns/mnt > "$word";; esac; done\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(paths, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(images, "BASE_TAR", tmp_path / "images/base.tar")
    images.make_base_tar()
    made = images.BASE_TAR.read_text().strip()
    assert made.startswith("mnt:")
    assert made != os.readlink("/proc/self/ns/mnt")

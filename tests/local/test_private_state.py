"""Other accounts of a machine read neither the state of a checkout nor what its pods' processes hold."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra import image, private, stackfiles
from infra.private import private_folder
from local import environment, paths, up
from tests.infra.test_image import RECIPE, checked_out
from trainer.contract import TRAINER_ID

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="other accounts need root")
OWNER, OTHER = 4321, 4322


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout of OWNER in a folder that everybody may enter, as /home/NAME often is."""
    above = Path(tempfile.mkdtemp())
    above.chmod(0o755)
    root = above / "checkout"
    root.mkdir()
    checked_out(root, 0o022)
    os.chown(root, OWNER, OWNER)
    monkeypatch.setattr(paths, "ROOT", root)
    for name in [name for name in vars(paths) if isinstance(vars(paths)[name], Path)]:
        if getattr(paths, name).is_relative_to(stackfiles.ROOT / ".local"):
            monkeypatch.setattr(paths, name, root / getattr(paths, name).relative_to(stackfiles.ROOT))
    monkeypatch.setattr(private_folder, "__defaults__", (root / ".local",))
    yield root
    shutil.rmtree(above)


def lock(root: Path) -> None:
    with up.exclusive():
        pass


MAKERS: dict[str, Callable[[Path], object]] = {
    "up": lock,
    "local run": lambda root: environment.prepare(),
    "pulumi up": lambda root: image.stage(RECIPE, "v1", root),
    "storage": lambda root: (private_folder(paths.STATE), up.own_storage()),
}


@pytest.mark.parametrize(("maker", "before"), [*((maker, None) for maker in MAKERS), ("up", 0o777)])
def test_the_state_is_its_owners_alone_whatever_makes_it_first(checkout: Path, maker: str, before: int | None) -> None:
    if before is not None:
        (checkout / ".local").mkdir()
        (checkout / ".local").chmod(before)
    MAKERS[maker](checkout)
    (checkout / ".local" / "mine").write_text("a")
    os.chown(checkout / ".local" / "mine", OWNER, OWNER)
    for account, readable in ((OWNER, True), (OTHER, False), (TRAINER_ID, False)):
        read = subprocess.run(
            ["cat", checkout / ".local" / "mine"], user=account, group=account, extra_groups=[], capture_output=True
        )
        assert (read.returncode == 0) is readable, (account, read)


def test_the_volume_belongs_to_the_trainings_user_also_when_it_was_anothers(checkout: Path) -> None:
    run = checkout / ".local/storage/runs/a"
    run.mkdir(parents=True)
    (run / "link").symlink_to("/etc/hostname")
    for path in (run, run.parent, run.parents[1]):
        os.chown(path, 1000, 1000)
    before = os.stat("/etc/hostname").st_uid
    up.own_storage()
    assert {path.lstat().st_uid for path in (run, run.parent, run.parents[1], run / "link")} == {TRAINER_ID}
    assert os.stat("/etc/hostname").st_uid == before


def test_a_folder_that_another_account_made_is_refused_in_one_line(checkout: Path) -> None:
    (checkout / ".local").mkdir(mode=0o755)
    os.chown(checkout / ".local", OTHER, OTHER)
    os.seteuid(OWNER)
    try:
        with pytest.raises(PermissionError, match=rf"open to other accounts .*sudo chown {OWNER} it.*checkout/.local"):
            private.private_folder(checkout / ".local")
    finally:
        os.seteuid(0)


def test_no_account_has_the_trainings_user_id() -> None:
    assert TRAINER_ID not in {account.pw_uid for account in pwd.getpwall()}
    assert 65_000 <= TRAINER_ID < 65_534, "ids that no tool gives to an account"

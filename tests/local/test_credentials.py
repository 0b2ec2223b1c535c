"""The registry's account: made once, for its owner alone, and hashed as the registry reads it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from local import credentials, network, paths


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "CERTIFICATES", tmp_path / "certificates")
    return tmp_path / "certificates"


def test_only_its_owner_reads_it_and_it_stays(folder: Path) -> None:
    made = [credentials.file(), credentials.htpasswd()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in [folder, *made]] == [0o700, 0o600, 0o600]
    before = [path.read_text() for path in made]
    assert before[1].startswith("trainyard:$2y$04$")
    assert [credentials.file().read_text(), credentials.htpasswd().read_text()] == before


@pytest.mark.parametrize("damage", ["{", '{"auths": {"elsewhere": {"auth": "eDp5"}}}'])
def test_a_damaged_or_foreign_account_is_made_anew_with_its_hash(damage: str) -> None:
    first = credentials.authorization(), credentials.htpasswd().read_text()
    credentials.file().write_text(damage)
    second = credentials.authorization(), credentials.htpasswd().read_text()
    assert all(one != other for one, other in zip(first, second, strict=True))
    assert list(json.loads(credentials.file().read_text())["auths"]) == [network.REGISTRY]

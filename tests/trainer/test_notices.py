"""The image says what is in it and under which licence."""

from __future__ import annotations

import re
import sysconfig
from importlib.metadata import distribution, distributions
from pathlib import Path

from trainer.notices import licence, notices, texts

ROOT = Path(__file__).parents[2]


def test_every_locked_package_that_is_installed_is_named_with_its_licence() -> None:
    locked = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (ROOT / "requirements" / "trainer.txt").read_text(), re.MULTILINE)
    lines = [line.partition(":") for line in notices().splitlines() if line[:1] not in ("", " ")]
    named = {plain(package): told.strip() for package, _, told in lines}
    installed = {plain(f"{each.name} {each.version}") for each in distributions()}
    present = installed & {plain(f"{name} {version}") for name, version in locked}
    assert {"torch", "transformers", "numpy", "safetensors"} <= {package.split()[0] for package in present}
    assert not [package for package in present if not named.get(package)]


def plain(package: str) -> str:
    return re.sub(r"[-_]+", "-", package).lower()


def test_the_files_that_are_named_are_there() -> None:
    folder = Path(sysconfig.get_paths()["purelib"])
    for name in ("torch", "numpy", "pyyaml"):
        found = texts(distribution(name))
        assert found
        assert all((folder / file).is_file() for file in found)


def test_a_licence_is_told_shortly() -> None:
    assert "Apache" in licence(distribution("transformers"))
    assert all("\n" not in licence(distribution(name)) for name in ("torch", "numpy", "tqdm"))
    assert re.search("BSD|0BSD", licence(distribution("numpy")))

"""A volume on which others write: nothing is read or written outside of a transfer's own folders, on either side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cli.transfer import TransferError, get
from tests.cli.test_upload import send
from tests.cli.volume import MB, OF_THE_NEWEST, Seen, Wire, noise, plant, told, tree

RUN = "/data/runs/small"
FOLDERS = [(name, planted) for name in ("data", "corpus", "corpus/a") for planted in ("folder", "file")]
FILES = [(name, planted) for name in ("corpus/a/b.txt", ".incomplete-*") for planted in ("file", "fifo", "hard link")]


@pytest.mark.parametrize(("name", "planted"), [*FOLDERS, *FILES, (".incomplete-*", "folder")])
def test_an_upload_writes_nowhere_but_into_its_folder(
    name: str, planted: str, tmp_path: Path, volume_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others write on the volume: any name there may be a link, a FIFO or another file's second name."""
    source, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    noise(source / "a" / "b.txt", 6 * MB)
    (elsewhere / "a").mkdir(parents=True)
    for victim in ("b.txt", "a/b.txt", "lock", "corpus"):
        (elsewhere / victim).write_bytes(b"mine")
    before = tree(elsewhere)
    wire, target = Wire(tmp_path / "wire"), volume_folder / "data" / "corpus"
    target.mkdir(parents=True)
    if name.startswith("."):
        with pytest.MonkeyPatch.context() as patch:  # learn the name: an upload that ends in the middle leaves it
            patch.setattr("cli.transfer.PATIENCE_SECONDS", 0)
            with pytest.raises(TransferError):
                send(Wire(tmp_path / "broken", break_after=5 * MB), source, target)
        (place,) = target.glob(name)
        (kept,) = [path for path in place.rglob("b.txt*") if path.is_file()]
        for path in (kept,) if planted != "folder" else (place,):
            plant(path, elsewhere if planted == "folder" else elsewhere / "b.txt", planted)
    else:
        path = volume_folder / (name if name == "data" else f"data/{name}")
        plant(path, elsewhere if planted == "folder" else elsewhere / "a" / "b.txt", planted)
    refused = told(lambda: send(wire, source, target))
    assert not refused or "is a link or a file, no folder; remove it" in refused
    assert refused or tree(target) == tree(source)
    assert tree(elsewhere) == before


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(8 << 40)


ODD = {
    "link to a file": (lambda p, v: p.symlink_to(v / "secret"), "link"),
    "link to a folder": (lambda p, v: p.symlink_to(v), "link"),
    "link to nothing": (lambda p, v: p.symlink_to("/nowhere"), "link"),
    "FIFO": (lambda p, v: os.mkfifo(p), "FIFO"),
    "socket": (lambda p, v: os.mknod(p, 0o140644), "socket"),
    "sparse file": (lambda p, v: sparse(p), r"8,796\.1 GB of holes"),
}


@pytest.mark.parametrize("name", ["odd", "tensorboard/odd", "checkpoints/step-00000200/model/odd", "report"])
@pytest.mark.parametrize("kind", ODD)
def test_links_and_odd_files_are_left_out_and_told(
    kind: str, name: str, tmp_path: Path, run: Path, command: Any
) -> None:
    """One of them stopped the fetch, blocked it for ever, or had terabytes of nothing read and sent."""
    elsewhere = tmp_path / "elsewhere"
    noise(elsewhere / "secret", 10)
    ODD[kind][0](run / name, elsewhere)
    code, said, _ = command("--to", str(tmp_path / "here"))
    assert code == 0
    assert f"left out: '{name}' (" in said
    assert tree(tmp_path / "here").keys() == {
        *OF_THE_NEWEST,
        *("metrics.jsonl", "DONE", "tensorboard/events", ".fetched.json", "report/index.html"),
    }


@pytest.mark.parametrize("kind", ["link", "fifo", "gone"])
def test_what_is_swapped_after_the_listing_is_told_and_not_followed(kind: str, tmp_path: Path, run: Path) -> None:
    secret = noise(tmp_path / "secret", 10)
    (run / "DONE").unlink() if kind == "gone" else plant(run / "DONE", secret, kind)
    refused = told(lambda: get(Wire(tmp_path / "w").volume, str(run), {"DONE": 2}, tmp_path / "here", Seen()))
    assert "DONE" in refused
    assert "run the same command again" in refused
    assert "DONE" not in tree(tmp_path / "here")


HOSTILE = """
import json, os, sys
if sys.argv[1] == "list":
    print(json.dumps({"path": NAME, "size": 1, "allocated": 512}))
    print(json.dumps({"complete": True}))
else:
    os.chdir(sys.argv[2])
    names = sys.argv.index("rsync", 4)
    os.execvp("python3", ["python3", "-c", EVIL, *sys.argv[names:]])
"""


@pytest.mark.parametrize("name", ["/root/.bashrc", "../../escaped", "model/../../escaped", ".fetched.json", "a/.b", ""])
def test_a_name_that_leads_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    """Anybody who may change pods can answer in the program's place."""
    lie = tmp_path / "program.py"
    lie.write_text(HOSTILE.replace("NAME", repr(name)))
    with pytest.raises(TransferError, match="leads out of the folder"):
        Wire(tmp_path / "wire", program=lie).volume.find(RUN)
    lie.write_text(HOSTILE.replace("NAME", "'a..b/c'"))
    assert Wire(tmp_path / "wire", program=lie).volume.find(RUN).files == {"a..b/c": 1}


@pytest.mark.parametrize("options", ["-l", "-lD", "-rl", "-rlD --no-relative", "-L", "-K -l", "-H -l"])
def test_an_rsync_that_sends_other_things_than_were_asked_for_writes_nothing_else(
    options: str, tmp_path: Path, run: Path
) -> None:
    """The other end runs rsync with options of its own: it offers links, and files that nobody named."""
    (run / "model").symlink_to(tmp_path / "victim")
    (tmp_path / "victim").mkdir()
    lie = tmp_path / "program.py"
    lie.write_text(
        "import os, sys\nos.chdir(sys.argv[2])\n"
        f"os.execvp('rsync', [*sys.argv[4:], *{options.split()!r}] if '-s' not in sys.argv[4:] else "
        f"[*sys.argv[4:6], *{options.split()!r}, *sys.argv[6:]])\n"
    )
    wanted = {"DONE": 2, "model/secret": 4}
    told(lambda: get(Wire(tmp_path / "wire", program=lie).volume, str(run), wanted, tmp_path / "here", Seen()))
    assert tree(tmp_path / "victim") == {}
    assert not any(path.is_symlink() for path in (tmp_path / "here").rglob("*"))
    assert {name for name in tree(tmp_path / "here") if not name.startswith(".")} <= {"DONE"}

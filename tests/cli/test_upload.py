"""Uploads to the volume: what is sent, how an interrupted one goes on, and what a person is told."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from cli import CommandError, __main__, rsync, upload
from cli.target import Target
from tests.cli.volume import MB, Seen, Wire, noise, tree


def send(wire: Wire, source: Path, folder: Path) -> Seen:
    seen = Seen()
    rsync.send(wire.pod, *upload.local_files(source), str(folder), seen)
    assert seen.done == seen.size
    return seen


def test_a_folder_arrives_as_it_is_and_is_not_sent_twice(tmp_path: Path, volume_folder: Path, wire: Wire) -> None:
    source = tmp_path / "corpus"
    noise(source / "large.bin", 2 * MB + 17)
    for number, name in enumerate(("small with spaces & ü.txt", "-dash", "#no; comment", "new\nline", "$(a)'\"*[x]?")):
        noise(source / "a:b" / name, 1000 + number)
    noise(source / "empty", 0).chmod(0o400)
    noise(source / ".hidden", 10)
    assert send(wire, source, volume_folder / "corpus").files == 7
    (source / ".hidden").unlink()
    assert tree(volume_folder) == {f"corpus/{name}": content for name, content in tree(source).items()}
    assert (volume_folder / "corpus" / "empty").stat().st_mode & 0o777 == 0o644
    before = wire.sent
    assert send(wire, source, volume_folder / "corpus").files == 0
    for path in source.rglob("*"):
        os.utime(path)  # another time, the same content
    send(wire, source, volume_folder / "corpus")
    assert wire.sent - before < 50_000


@pytest.mark.parametrize("name", ["host:corpus", "-corpus", "ü\n'"])
def test_a_folder_of_any_name_is_a_folder_of_this_machine(
    name: str, tmp_path: Path, volume_folder: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise(tmp_path / name / "a.txt", 10)
    noise(tmp_path / name / "file", 10)
    monkeypatch.chdir(tmp_path)
    for source, folder in ((Path(name), volume_folder / name), (Path(name, "file"), volume_folder)):
        send(wire, source, folder)
    assert tree(volume_folder).keys() == {f"{name}/a.txt", f"{name}/file", "file"}


def test_a_lost_connection_is_made_again_and_the_old_file_is_there_until_all_of_the_new_is(
    tmp_path: Path, volume_folder: Path, wire: Wire
) -> None:
    source = noise(tmp_path / "text.bin", 24 * MB)
    old = noise(volume_folder / "text.bin", 1000).read_bytes()
    seen: set[int] = set()
    end = threading.Event()

    def look() -> None:
        while not end.wait(0.002):
            seen.add((volume_folder / "text.bin").stat().st_size)

    looking = threading.Thread(target=look)
    looking.start()
    broken = Wire(tmp_path / "breaks", break_after=7 * MB)
    send(broken, source, volume_folder)
    end.set()
    looking.join()
    assert broken.connections >= 5, "one asks, four send"
    assert broken.sent < 25 * MB, "nothing twice"
    assert seen <= {len(old), 24 * MB}
    assert tree(volume_folder) == {"text.bin": source.read_bytes()}


def test_a_server_that_stays_away_is_told_with_what_to_do(
    tmp_path: Path, volume_folder: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.rsync.PATIENCE_SECONDS", 0.2)
    (wire.notes / "down").touch()
    with pytest.raises(CommandError, match=r"connection to the volume is lost .* refused; .* continues where it stop"):
        send(wire, noise(tmp_path / "a", 10), volume_folder)
    assert wire.connections >= 2


def test_an_rsync_that_is_ended_in_the_pod_is_a_lost_connection(
    tmp_path: Path, volume_folder: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves with the code of one that Ctrl-C has ended."""
    monkeypatch.setattr("cli.rsync.PATIENCE_SECONDS", 0.1)
    (ends := tmp_path / "rsync").write_text("#!/bin/sh\nexit 20\n")
    ends.chmod(0o755)
    monkeypatch.setattr(rsync, "find_rsync", lambda: str(ends))
    with pytest.raises(CommandError, match=r"connection to the volume is lost .*\(rsync ended with 20\); run the same"):
        rsync.send(wire.pod, *upload.local_files(noise(tmp_path / "a", 10)), str(volume_folder), Seen())


def test_a_full_volume_is_one_line_and_nothing_half_is_seen(tmp_path: Path, volume_folder: Path) -> None:
    source = tmp_path / "corpus"
    noise(source / "large.bin", 3 * MB)
    with pytest.raises(CommandError, match=r'write failed on ".*large.bin.*": File too large .*continues') as error:
        send(Wire(tmp_path / "wire", largest_file=MB), source, volume_folder)
    assert "\n" not in str(error.value)
    assert not (volume_folder / "large.bin").exists()


def test_a_file_that_changes_while_it_is_sent_is_told(tmp_path: Path, volume_folder: Path, wire: Wire) -> None:
    source = noise(tmp_path / "a", 2 * MB)

    class Writer(Seen):
        def advance(self, size: int) -> None:
            super().advance(size)
            os.utime(source)

    with pytest.raises(CommandError, match="changed while it was sent"):
        rsync.send(wire.pod, *upload.local_files(source), str(volume_folder), Writer())


@pytest.mark.parametrize(
    ("source", "to", "folder"),
    [("corpus", None, "/data/corpus"), ("book.txt", None, "/data"), ("book.txt", "/data/b/", "/data/b")],
)
def test_where_things_go(source: str, to: str | None, folder: str, tmp_path: Path) -> None:
    (tmp_path / "book.txt").touch()
    assert upload.target_folder(tmp_path / source, to) == folder


@pytest.fixture
def reached(volume_folder: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command reach the volume."""
    monkeypatch.setattr(upload, "DATA", str(volume_folder))
    monkeypatch.setattr(upload, "volume_of", lambda stack: Target("c", "n", "", None, {}))
    monkeypatch.setattr(upload, "volume_pod", wire.volume_pod)


@pytest.mark.usefixtures("reached")
def test_what_of_a_folder_is_not_sent_or_not_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.txt", ".hidden", "picture.png"):
        noise(tmp_path / "corpus" / name, 10)
    assert __main__.main(["upload", str(tmp_path / "corpus")]) == 0
    said = capsys.readouterr().out
    assert "1 hidden file was not sent.\n" in said
    assert re.search(r"^1 file .* is not read as text: picture\.png$", said, re.MULTILINE)


@pytest.mark.usefixtures("reached")
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_text_that_changes_what_was_prepared_is_told(
    kind: str, tmp_path: Path, volume_folder: Path, capsys: Any
) -> None:
    noise(volume_folder / "runs" / "metrics.jsonl", 10)
    file = noise(tmp_path / "corpus" / "book.txt", 100)

    def changed() -> bool:
        assert __main__.main(["upload", str(file if kind == "file" else file.parent)]) == 0
        return "dataset.name" in capsys.readouterr().out

    assert [changed(), changed()] == [False, False], "other files of the volume do not count"
    file.write_bytes(bytes(101))
    assert [changed(), changed()] == [True, False]


def test_linked_folders_are_sent_once_and_what_cannot_be_sent_is_told(tmp_path: Path, wire: Wire) -> None:
    source, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    noise(source / "a.txt", 1)
    noise(elsewhere / "b.txt", 1)
    (source / "linked").symlink_to(elsewhere)
    (source / "around").symlink_to(source)
    with pytest.raises(
        CommandError, match=rf"linked/b.txt: links outside the folder, to {elsewhere}/b.txt; give --follow-links"
    ):
        upload.local_files(source)
    top, found = upload.local_files(source, follow_links=True)
    assert found == ["a.txt", "linked/b.txt"]
    rsync.send(wire.pod, top, found, str(tmp_path / "volume"), Seen())
    assert tree(tmp_path / "volume") == {
        "a.txt": (source / "a.txt").read_bytes(),
        "linked/b.txt": (elsewhere / "b.txt").read_bytes(),
    }
    (source / "nowhere").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CommandError, match=r"corpus/nowhere: is a link to nothing, or no file; remove it"):
        upload.local_files(source, follow_links=True)
    (source / "nowhere").unlink()
    Path(os.fsdecode(os.fsencode(source) + b"/caf\xe9.txt")).write_text("x")
    with pytest.raises(CommandError, match=r"caf\\udce9\.txt': the name is not valid UTF-8; rename the file"):
        upload.local_files(source, follow_links=True)


@pytest.mark.parametrize("name", ["sample", "2024", "1.5", "true"])
def test_a_name_that_would_mean_something_else_is_given_whole(name: str, tmp_path: Path) -> None:
    assert f"--path 'dataset.input[0]' /data/{name}" in upload.use(tmp_path, f"/data/{name}", "local")


@pytest.mark.parametrize("model", ["config.json", "model/config.json", "checkpoints/step-00000001/manifest.json"])
def test_what_to_do_with_an_upload_is_said(model: str, tmp_path: Path) -> None:
    assert "--path 'dataset.input[0]' texts" in upload.use(tmp_path, "/data/texts", "local")
    (tmp_path / model).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / model).write_text("{}")
    assert "--path training.model.name /data/models/mine" in upload.use(tmp_path, "/data/models/mine", "local")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([""], "FROM: missing; give a file or a folder"),
        (["/no/such"], "/no/such: no such file or folder"),
        (["s3://bucket/x"], "s3://bucket/x: an address, not a path of this machine"),
        (["hf:owner/name"], "and the hub need no upload: name it in dataset.input"),
        ([".", "--to", "../x"], "--to ../x: leads out of /data"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_done(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "volume_of", lambda stack: pytest.fail("asked the stack"))
    assert __main__.main(["upload", *arguments]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert problem in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["NEWS.gz"], "1 file without a suffix before .gz is not read as text: NEWS.gz"),
        (["a.png", "b.png"], "2 files of kind .png are not read as text: a.png, b.png"),
        (["LICENSE"], "1 file without a suffix is not read as text: LICENSE"),
    ],
)
def test_what_is_not_read_is_said_in_a_sentence(names: list[str], said: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text("x")
    assert upload.unread(tmp_path, names) == [said]

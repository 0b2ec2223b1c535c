"""Uploads to the volume with rsync and the pod's program as real processes, with interruptions."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli import CommandError, __main__, upload
from cli.target import Target
from cli.transfer import TransferError, put
from tests.cli.volume import MB, PROGRAM, Seen, Wire, hold, noise, told, tree


def send(wire: Wire, source: Path, folder: Path) -> Seen:
    seen = Seen()
    put(wire.volume, *upload.local_files(source), str(folder), seen)
    assert seen.done == seen.size
    return seen


def test_a_folder_arrives_as_it_is_and_is_not_sent_twice(tmp_path: Path, volume_folder: Path, wire: Wire) -> None:
    source = tmp_path / "corpus"
    noise(source / "large.bin", 2 * MB + 17)
    for number, name in enumerate(("small with spaces & ü.txt", "-dash", "#no; comment", "new\nline", "$(a)'\"*[x]?")):
        noise(source / "a:b" / name, 1000 + number)
    noise(source / "empty", 0)
    noise(source / ".hidden", 10)
    assert send(wire, source, volume_folder / "corpus").files == 7
    (source / ".hidden").unlink()
    assert tree(volume_folder / "corpus") == tree(source)
    before = wire.sent
    send(wire, source, volume_folder / "corpus")
    for path in source.rglob("*"):
        os.utime(path)  # another time, the same content
    send(wire, source, volume_folder / "corpus")
    assert wire.sent - before < 50_000
    assert tree(volume_folder) == {f"corpus/{name}": content for name, content in tree(source).items()}


@pytest.mark.parametrize("name", ["host:corpus", "-corpus", "rsync:", "a b", "ü\n'"])
def test_a_folder_of_any_name_is_a_folder_of_this_machine(
    name: str, tmp_path: Path, volume_folder: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise(tmp_path / name / "a.txt", 10)
    noise(tmp_path / name / "file", 10)
    monkeypatch.chdir(tmp_path)
    for source, folder in ((Path(name), volume_folder / name), (Path(name, "file"), volume_folder)):
        send(wire, source, folder)
    assert tree(volume_folder).keys() == {f"{name}/a.txt", f"{name}/file", "file"}


def test_what_changed_is_replaced_and_the_old_is_there_until_then(
    tmp_path: Path, volume_folder: Path, wire: Wire
) -> None:
    source = noise(tmp_path / "text.bin", 8 * MB)
    send(wire, source, volume_folder)
    old, new = source.read_bytes(), noise(tmp_path / "other" / "text.bin", 8 * MB + 1).read_bytes()
    source.write_bytes(new)
    seen: set[bytes] = set()
    end = threading.Event()

    def look() -> None:
        while not end.is_set():
            seen.add((volume_folder / "text.bin").read_bytes())

    looking = threading.Thread(target=look)
    looking.start()
    send(Wire(tmp_path / "breaks", break_after=5 * MB), source, volume_folder)
    end.set()
    looking.join()
    assert seen <= {old, new}
    assert tree(volume_folder) == {"text.bin": new}


@pytest.mark.parametrize("kill", [False, True], ids=["connection", "pod"])
def test_connections_and_pods_that_go_are_made_again_and_nothing_is_sent_twice(
    kill: bool, tmp_path: Path, volume_folder: Path
) -> None:
    """The API server closes the connection, and rsync in the pod ends in its own way; or the pod is gone at once."""
    source = noise(tmp_path / "large.bin", 24 * MB)
    wire = Wire(tmp_path / "wire", break_after=7 * MB, kill=kill)
    send(wire, source, volume_folder)
    assert wire.connections >= 4
    assert wire.sent < 25 * MB
    assert tree(volume_folder) == {"large.bin": source.read_bytes()}


def test_an_api_server_that_goes_away_for_a_while_is_waited_for(tmp_path: Path, volume_folder: Path) -> None:
    source, wire = noise(tmp_path / "large.bin", 40 * MB), Wire(tmp_path / "wire")
    sending = threading.Thread(target=send, args=(wire, source, volume_folder))
    sending.start()
    wait_until(lambda: part_of(volume_folder) > MB)
    (wire.notes / "down").touch()
    wait_until(lambda: wire.connections >= 3)
    assert not (volume_folder / "large.bin").exists()
    (wire.notes / "down").unlink()
    sending.join(60)
    assert tree(volume_folder) == {"large.bin": source.read_bytes()}
    assert wire.sent < 42 * MB


def part_of(folder: Path) -> int:
    """Bytes of the largest incomplete file."""
    return max((path.stat().st_size for path in folder.glob(".incomplete-*/**/large.bin*")), default=0)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("group", [False, True], ids=["the command", "all of its processes"])
def test_a_killed_upload_goes_on_where_it_stopped(group: bool, tmp_path: Path, volume_folder: Path) -> None:
    source = noise(tmp_path / "large.bin", 60 * MB)
    program = f"""
import sys
from pathlib import Path
from cli.transfer import put
from cli.upload import local_files
from tests.cli.volume import Seen, Wire
put(Wire(Path({str(tmp_path / "first")!r})).volume, *local_files(Path({str(source)!r})), {str(volume_folder)!r}, Seen())
"""
    held = hold(tmp_path / "first")
    client = subprocess.Popen([sys.executable, "-c", program], cwd=Path.cwd(), start_new_session=True)
    wait_until(lambda: part_of(volume_folder) > 4 * MB)
    os.killpg(client.pid, signal.SIGKILL) if group else client.kill()
    client.wait()
    there = part_of(volume_folder)
    assert not (volume_folder / "large.bin").exists()
    held.unlink()
    wire = Wire(tmp_path / "second")
    send(wire, source, volume_folder)
    assert wire.sent < 61 * MB - there
    assert tree(volume_folder) == {"large.bin": source.read_bytes()}


@pytest.mark.parametrize("part", [True, False], ids=["of an interrupted upload", "that was there"])
def test_a_damaged_file_is_found_and_its_damage_sent_again_alone(
    part: bool, tmp_path: Path, volume_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, there = noise(tmp_path / "large.bin", 8 * MB), volume_folder / "large.bin"
    with monkeypatch.context() as patch:
        patch.setattr("cli.transfer.PATIENCE_SECONDS", 0)
        assert told(lambda: send(Wire(tmp_path / "wire", break_after=5 * MB), source, volume_folder))
    if part:
        (there,) = (path for path in volume_folder.rglob("large.bin*") if path.stat().st_size)
    else:
        send(Wire(tmp_path / "whole"), source, volume_folder)
    content, wire = bytearray(there.read_bytes()), Wire(tmp_path / "again")
    content[MB + 5] ^= 1
    there.write_bytes(content)
    send(wire, source, volume_folder)
    assert tree(volume_folder) == {"large.bin": source.read_bytes()}
    assert wire.sent < 8.2 * MB - len(content)


def test_a_server_that_stays_away_is_told_with_what_to_do(
    tmp_path: Path, volume_folder: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.transfer.PATIENCE_SECONDS", 1)
    (wire.notes / "down").touch()
    with pytest.raises(TransferError, match=r"connection to the volume is lost .* refused; .* continues where it stop"):
        send(wire, noise(tmp_path / "a", 10), volume_folder)


def test_a_full_volume_is_one_line_and_nothing_half_is_seen(tmp_path: Path, volume_folder: Path) -> None:
    full = tmp_path / "program.py"
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({MB}, {MB}))\n"
    first = "from __future__ import annotations\n"
    full.write_text(PROGRAM.read_text().replace(first, first + limit))
    source = tmp_path / "corpus"
    noise(source / "large.bin", 3 * MB)
    with pytest.raises(TransferError, match=r'write failed on ".*large.bin.*": File too large .*continues') as error:
        send(Wire(tmp_path / "wire", program=full), source, volume_folder)
    assert "\n" not in str(error.value)
    assert not (volume_folder / "large.bin").exists()


@pytest.mark.parametrize("same", [False, True], ids=["two sources", "one source"])
def test_two_uploads_of_a_file_at_once_leave_one_of_them_whole(same: bool, tmp_path: Path, volume_folder: Path) -> None:
    contents = [noise(tmp_path / str(n) / "large.bin", 16 * MB + n) for n in range(2)]
    sources = [contents[0], contents[0] if same else contents[1]]
    wires = [Wire(tmp_path / f"wire{n}", break_after=6 * MB) for n in range(2)]
    both = [threading.Thread(target=send, args=(w, s, volume_folder)) for w, s in zip(wires, sources, strict=True)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert list(tree(volume_folder)) == ["large.bin"]
    assert (volume_folder / "large.bin").read_bytes() in {source.read_bytes() for source in sources}


def test_a_file_that_changes_while_it_is_sent_is_told(tmp_path: Path, volume_folder: Path) -> None:
    source = noise(tmp_path / "a", 20 * MB)

    class Writer(Seen):
        def advance(self, size: int) -> None:
            super().advance(size)
            os.utime(source)

    with pytest.raises(TransferError, match="changed while it was sent"):
        put(Wire(tmp_path / "wire").volume, *upload.local_files(source), str(volume_folder), Writer())


@pytest.mark.parametrize(
    ("source", "to", "folder"),
    [
        ("s3://bucket/corpus/", None, "/data"),
        ("https://host/a/book.txt", None, "/data"),
        ("https://host/a/book.txt", "texts", "/data/texts"),
        ("gs://bucket/a", "/data/b/", "/data/b"),
    ],
)
def test_where_things_go(source: str, to: str | None, folder: str) -> None:
    assert upload.target_folder(source, to) == folder


def test_text_that_changes_what_was_prepared_is_told(tmp_path: Path, volume_folder: Path, wire: Wire) -> None:
    source = tmp_path / "corpus"
    noise(source / "a.txt", 100)

    def changed() -> bool:
        return put(wire.volume, *upload.local_files(source), str(volume_folder / "corpus"), Seen())

    assert [changed(), changed()] == [False, False]
    noise(source / "b.txt", 100)
    assert [changed(), changed()] == [True, False]
    (source / "a.txt").write_bytes(bytes(100))
    assert changed()
    os.utime(source / "a.txt")
    assert not changed(), "the content is the same"
    for name in ("a.txt", "b.txt"):
        (source / name).rename(source / f"new-{name}")
    assert [changed(), changed()] == [True, False]


@pytest.fixture
def reached(volume_folder: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command reach the volume."""

    @contextmanager
    def transfer(*_: Any) -> Iterator[Any]:
        yield wire.volume, None, Seen()

    monkeypatch.setattr(upload, "DATA", str(volume_folder))
    monkeypatch.setattr(upload, "volume_of", lambda stack: Target("c", "n", "", None, {}))
    monkeypatch.setattr(upload, "transfer", transfer)


@pytest.mark.usefixtures("reached")
def test_what_of_a_folder_is_not_sent_or_not_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.txt", ".hidden", "picture.png"):
        noise(tmp_path / "corpus" / name, 10)
    assert __main__.main(["upload", str(tmp_path / "corpus")]) == 0
    said = capsys.readouterr().out
    assert "1 hidden file was not sent.\n" in said
    assert re.search(r"^1 file .* is not read as text: picture\.png$", said, re.MULTILINE)


@pytest.mark.usefixtures("reached")
def test_a_file_at_the_top_changes_only_a_file_of_its_name(tmp_path: Path, volume_folder: Path, capsys: Any) -> None:
    noise(volume_folder / "runs" / "metrics.jsonl", 10)
    source = noise(tmp_path / "book.txt", 100)

    def changed() -> bool:
        assert __main__.main(["upload", str(source)]) == 0
        return "dataset.name" in capsys.readouterr().out

    assert [changed(), changed()] == [False, False]
    source.write_bytes(bytes(100))
    assert changed()


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
    put(wire.volume, top, found, str(tmp_path / "volume"), Seen())
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
    assert f"--path 'dataset.input[0]' /data/{name}" in upload.use(str(tmp_path), f"/data/{name}", "local")


@pytest.mark.parametrize("model", ["config.json", "model/config.json", "checkpoints/step-00000001/manifest.json"])
def test_what_to_do_with_an_upload_is_said(model: str, tmp_path: Path) -> None:
    assert "--path 'dataset.input[0]' texts" in upload.use(str(tmp_path), "/data/texts", "local")
    (tmp_path / model).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / model).write_text("{}")
    assert "--path training.model.name /data/models/mine" in upload.use(str(tmp_path), "/data/models/mine", "local")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([""], "FROM: missing; give a file, a folder or an address"),
        (["/no/such"], "/no/such: no such file or folder"),
        (["ftp://host/x"], "ftp:// is not known; give a path, or s3, gs, https, http"),
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

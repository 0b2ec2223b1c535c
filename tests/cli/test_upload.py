"""Uploads to the volume through real processes and sockets, with interruptions."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli import CommandError, __main__, upload
from cli.transfer import Pair, TransferError, put
from cli.volume_server import PIECE, Server, partial
from tests.cli.volume import Seen, Wire, noise, server, tree


def send(wire: Wire, source: Path, folder: Path) -> Seen:
    seen = Seen()
    put(wire.volume, upload.local_files(source, str(folder)), str(folder), seen)
    assert seen.done == seen.size
    return seen


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_folder_arrives_as_it_is_and_is_not_sent_twice(tmp_path: Path, volume_folder: Path, wire: Wire) -> None:
    source = tmp_path / "corpus"
    noise(source / "large.bin", 2 * PIECE + 17)
    noise(source / "a" / "small with spaces & ü.txt", 1000)
    noise(source / "empty", 0)
    noise(source / ".hidden", 10)
    assert send(wire, source, volume_folder / "corpus").files == 3
    (source / ".hidden").unlink()
    assert tree(volume_folder / "corpus") == tree(source)
    before = wire.sent
    send(wire, source, volume_folder / "corpus")
    assert wire.sent - before < 10_000


def test_what_changed_is_replaced_and_the_old_is_there_until_then(
    tmp_path: Path, volume_folder: Path, wire: Wire
) -> None:
    source = noise(tmp_path / "text.bin", 2 * PIECE)
    send(wire, source, volume_folder)
    old = (volume_folder / "text.bin").read_bytes()
    source.write_bytes(old[:PIECE] + b"new" + old[PIECE + 3 :])
    pair = Pair(source, str(volume_folder / "text.bin"), 2 * PIECE)
    wire.volume.ask("PUT", "bytes", b"new", path=pair.remote, start=0, sha256=_sha(b"new"))
    assert (volume_folder / "text.bin").read_bytes() == old
    send(wire, source, volume_folder)
    assert tree(volume_folder) == {"text.bin": source.read_bytes()}


def test_a_killed_transfer_goes_on_with_the_pieces_that_are_missing(tmp_path: Path, volume_folder: Path) -> None:
    source = noise(tmp_path / "large.bin", 8 * PIECE)
    program = f"""
import socket, sys
from pathlib import Path
from cli.transfer import Volume, put
from cli.upload import local_files
from tests.cli.volume import Seen
class Slow(Seen):
    def advance(self, size):
        super().advance(size)
        print(self.done, flush=True)
        if self.done >= {3 * PIECE}:
            import time; time.sleep(60)
put(Volume(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[1])))),
    local_files(Path({str(source)!r}), {str(volume_folder)!r}), {str(volume_folder)!r}, Slow())
"""
    with server(volume_folder) as (port, _):
        client = subprocess.Popen(
            [sys.executable, "-c", program, str(port)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        assert client.stdout
        while int(client.stdout.readline()) < 3 * PIECE:
            pass
        client.kill()
        client.wait()
        assert not (volume_folder / "large.bin").exists()
        assert partial(volume_folder / "large.bin").exists()
    with server(volume_folder) as (port, _):
        wire = Wire(port)
        send(wire, source, volume_folder)
        assert wire.sent < 6 * PIECE
    assert tree(volume_folder) == {"large.bin": source.read_bytes()}


def test_a_damaged_piece_is_found_and_sent_again_alone(tmp_path: Path, volume_folder: Path, wire: Wire) -> None:
    source = noise(tmp_path / "large.bin", 4 * PIECE)
    content = bytearray(source.read_bytes())
    content[PIECE + 5] ^= 1
    partial(volume_folder / "large.bin").write_bytes(content)
    send(wire, source, volume_folder)
    assert (volume_folder / "large.bin").read_bytes() == source.read_bytes()
    assert PIECE < wire.sent < 1.1 * PIECE


def test_a_piece_that_arrives_damaged_is_refused(
    volume_folder: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.transfer.PATIENCE_SECONDS", 0)
    with pytest.raises(TransferError, match="arrived damaged"):
        wire.volume.ask("PUT", "bytes", b"x", path=volume_folder / "a", start=0, sha256=_sha(b"y"), size=1)
    assert tree(volume_folder) == {}


def test_an_answer_that_got_lost_may_be_asked_for_again(volume_folder: Path, wire: Wire) -> None:
    for _ in range(2):
        wire.volume.ask("PUT", "bytes", b"xy", path=volume_folder / "a", start=0, sha256=_sha(b"xy"), size=2)
        wire.volume.ask("POST", "finish", path=volume_folder / "a", size=2)
    with pytest.raises(TransferError, match=r"has 2 of 3 bytes|No such file"):
        wire.volume.ask("POST", "finish", path=volume_folder / "a", size=3)
    assert tree(volume_folder) == {"a": b"xy"}


def test_connections_that_break_are_made_again(tmp_path: Path, volume_folder: Path) -> None:
    source = noise(tmp_path / "large.bin", 6 * PIECE)
    with server(volume_folder) as (port, _):
        wire = Wire(port, break_after=PIECE * 3 // 2)
        send(wire, source, volume_folder)
    assert wire.connections > 5
    assert (volume_folder / "large.bin").read_bytes() == source.read_bytes()


def test_a_server_that_stays_away_is_told_with_what_to_do(
    tmp_path: Path, volume_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.transfer.PATIENCE_SECONDS", 1)
    with server(volume_folder) as (port, _):
        wire = Wire(port)
    with pytest.raises(TransferError, match=r"connection to the volume is lost .* it continues where it stopped"):
        send(wire, noise(tmp_path / "a", 10), volume_folder)


def test_a_full_volume_is_one_line_and_nothing_half_is_seen(tmp_path: Path, volume_folder: Path) -> None:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({PIECE}, {PIECE}))\n"
    with (
        server(volume_folder, before=limit) as (port, _),
        pytest.raises(TransferError, match="too large"),
    ):
        send(Wire(port), noise(tmp_path / "large.bin", 3 * PIECE), volume_folder)
    assert not (volume_folder / "large.bin").exists()


@pytest.mark.parametrize("name", ["../outside", "link/outside", "/etc/passwd"])
def test_nothing_outside_the_volume_is_read_or_written(
    tmp_path: Path, volume_folder: Path, wire: Wire, name: str
) -> None:
    (volume_folder / "link").symlink_to(tmp_path)
    path = name if name.startswith("/") else f"{volume_folder}/{name}"
    with pytest.raises(TransferError, match="outside of"):
        wire.volume.ask("PUT", "bytes", b"x", path=path, start=0, sha256=_sha(b"x"), size=1)
    with pytest.raises(TransferError, match="outside of"):
        wire.volume.ask("GET", "bytes", path=path, start=0, end=1)
    assert not (tmp_path / "outside").exists()


def test_a_file_that_changes_while_it_is_sent_is_told(tmp_path: Path, volume_folder: Path, wire: Wire) -> None:
    source = noise(tmp_path / "a", 1000)
    pairs = upload.local_files(source, str(volume_folder))
    noise(source, 2000)
    with pytest.raises(TransferError, match="changed while it was sent"):
        put(wire.volume, pairs, str(volume_folder), Seen())
    assert not (volume_folder / "a").exists()


def test_a_forgotten_server_ends_by_itself(volume_folder: Path) -> None:
    idle = Server(0, [volume_folder], idle_seconds=0.2)
    started = time.monotonic()
    idle.serve_forever(poll_interval=0.05)
    assert 0.2 <= time.monotonic() - started < 20


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
        folder = str(volume_folder / "corpus")
        return put(wire.volume, upload.local_files(source, folder), folder, Seen())

    assert [changed(), changed()] == [False, False]
    noise(source / "b.txt", 100)
    assert [changed(), changed()] == [True, False]
    (source / "a.txt").write_bytes(bytes(100))
    assert changed()
    for name in ("a.txt", "b.txt"):
        (source / name).rename(source / f"new-{name}")
    assert [changed(), changed()] == [True, False]


def test_a_file_at_the_top_changes_only_a_file_of_its_name(
    tmp_path: Path, volume_folder: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    @contextmanager
    def transfer(*_: Any) -> Iterator[Any]:
        yield wire.volume, None, Seen()

    monkeypatch.setattr(upload, "DATA", str(volume_folder))
    monkeypatch.setattr(upload, "target_of", lambda stack: None)
    monkeypatch.setattr(upload, "transfer", transfer)
    noise(volume_folder / "runs" / "metrics.jsonl", 10)
    source = noise(tmp_path / "book.txt", 100)

    def told() -> bool:
        assert __main__.main(["upload", str(source)]) == 0
        return "dataset.name" in capsys.readouterr().out

    assert [told(), told()] == [False, False]
    source.write_bytes(bytes(100))
    assert told()


def test_linked_folders_are_sent_once_and_a_name_that_nobody_can_write_is_told(tmp_path: Path) -> None:
    source, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    noise(source / "a.txt", 1)
    noise(elsewhere / "b.txt", 1)
    (source / "linked").symlink_to(elsewhere)
    (source / "around").symlink_to(source)
    with pytest.raises(
        CommandError, match=rf"linked/b.txt: links outside the folder, to {elsewhere}/b.txt; give --follow-links"
    ):
        upload.local_files(source, "/data/corpus")
    found = [pair.remote for pair in upload.local_files(source, "/data/corpus", follow_links=True)]
    assert found == ["/data/corpus/a.txt", "/data/corpus/linked/b.txt"]
    Path(os.fsdecode(os.fsencode(source) + b"/caf\xe9.txt")).write_text("x")
    with pytest.raises(CommandError, match=r"caf\\udce9\.txt': the name is not valid UTF-8; rename the file"):
        upload.local_files(source, "/data/corpus", follow_links=True)


@pytest.mark.parametrize("name", ["sample", "2024", "1.5", "true"])
def test_a_name_that_would_mean_something_else_is_given_whole(name: str, tmp_path: Path) -> None:
    assert f"--path 'dataset.input[0]' /data/{name}" in upload.use(str(tmp_path), f"/data/{name}", "local")


def test_what_to_do_with_an_upload_is_said(tmp_path: Path) -> None:
    assert "--path 'dataset.input[0]' texts" in upload.use(str(tmp_path), "/data/texts", "local")
    (tmp_path / "config.json").write_text("{}")
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
    monkeypatch.setattr(upload, "target_of", lambda stack: pytest.fail("asked the stack"))
    assert __main__.main(["upload", *arguments]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert problem in shown
    assert shown.count("\n") == 1

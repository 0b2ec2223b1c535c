"""Files onto the volume: through real processes, real sockets, and the interruptions that happen to them."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cli import __main__, upload
from cli.reach import SERVER
from cli.transfer import Pair, TransferError, copy, put
from cli.volume_server import PIECE, Server, partial
from tests.cli.volume import Seen, Wire, noise, server, tree


@pytest.fixture
def volume_folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "volume").mkdir()
    return folder


@pytest.fixture
def wire(volume_folder: Path) -> Iterator[Wire]:
    with server(volume_folder) as (port, _):
        yield Wire(port)


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


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server that knows no ranges, and its folder."""
    folder = tmp_path / "web"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object, **options: object):
            super().__init__(*arguments, directory=str(folder), **options)  # type: ignore[arg-type]

        def log_message(self, format: str, *args: object) -> None:
            pass

    site = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{site.server_port}", folder
    site.shutdown()


def test_a_web_address_is_fetched_by_the_cluster(volume_folder: Path, web: tuple[str, Path], wire: Wire) -> None:
    address, folder = web
    noise(folder / "text.bin", PIECE + 5)
    seen = Seen()
    copy(wire.volume, f"{address}/text.bin", str(volume_folder), seen)
    assert seen.done == PIECE + 5
    assert (volume_folder / "text.bin").read_bytes() == (folder / "text.bin").read_bytes()
    assert wire.sent < 5000
    with pytest.raises(TransferError, match=r"missing\.txt: is not there"):
        copy(wire.volume, f"{address}/missing.txt", str(volume_folder), Seen())


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, dict[str, str]]]:
    """A client of S3 on this machine, and the environment in which a server finds it."""
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    environment = {**os.environ, **keys, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    for name in ("AWS_ENDPOINT_URL", *keys):
        monkeypatch.setenv(name, environment[name])
    import boto3

    client = boto3.client("s3")
    client.create_bucket(Bucket="texts")
    yield client, environment
    moto.stop()


def test_a_bucket_comes_without_this_machine_and_goes_on_after_a_kill(
    volume_folder: Path, bucket: tuple[Any, dict[str, str]]
) -> None:
    client, environment = bucket
    large = random.Random(1).randbytes(5 * PIECE + 3)
    client.put_object(Bucket="texts", Key="corpus/a/large.bin", Body=large)
    client.put_object(Bucket="texts", Key="corpus/small.txt", Body=b"small")
    target = volume_folder / "corpus"
    # The process dies when it has written three pieces.
    death = "import os as _os; _left = [4]\n"
    program = SERVER.read_text("utf-8").replace(
        "            written.write(piece)\n",
        "            written.write(piece); written.flush(); _left[0] -= 1\n            _left[0] or _os._exit(9)\n",
    )
    assert "_left[0] or" in program
    with server(volume_folder, before=death, program=program, **environment) as (port, process):
        with contextlib.suppress(OSError, http.client.HTTPException):
            steps = list(Wire(port).volume.lines("copy", path=str(target), source="s3://texts/corpus"))
            assert "complete" not in steps[-1]
        assert process.wait(10) == 9
    assert tree(target).keys() == {"a/" + partial_of(target)}
    with server(volume_folder, **environment) as (port, _):
        wire = Wire(port)
        seen = Seen()
        copy(wire.volume, "s3://texts/corpus", str(target), seen)
        assert seen.done == seen.size == len(large) + 5
        assert (target / "a" / "large.bin").read_bytes() == large
        assert wire.received < 5000
        first = (target / "a" / "large.bin").stat()
        client.put_object(Bucket="texts", Key="corpus/small.txt", Body=b"other")
        copy(wire.volume, "s3://texts/corpus", str(target), Seen())
        assert (target / "small.txt").read_bytes() == b"other"
        # What has not changed was not written again.
        assert (target / "a" / "large.bin").stat().st_ino == first.st_ino
        with pytest.raises(TransferError, match="s3://nowhere: is not there"):
            copy(wire.volume, "s3://nowhere", str(target), Seen())


def test_a_public_bucket_needs_no_credentials(
    tmp_path: Path, volume_folder: Path, bucket: tuple[Any, dict[str, str]]
) -> None:
    client, environment = bucket
    client.put_object(Bucket="texts", Key="a.txt", Body=b"public", ACL="public-read")
    nobody = {name: value for name, value in environment.items() if not name.startswith("AWS_ACCESS")}
    nobody |= {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    nobody.pop("AWS_SECRET_ACCESS_KEY")
    with server(volume_folder, **nobody) as (port, _):
        copy(Wire(port).volume, "s3://texts/a.txt", str(volume_folder), Seen())
    assert (volume_folder / "a.txt").read_bytes() == b"public"


def partial_of(folder: Path) -> str:
    """Name of the one file that is not whole."""
    (found,) = folder.rglob(".large.bin.*part")
    assert 2 * PIECE <= found.stat().st_size < 5 * PIECE
    return found.name


@pytest.mark.parametrize(
    ("source", "to", "folder"),
    [
        ("s3://bucket/corpus/", None, "/data/corpus"),
        ("s3://bucket", None, "/data/bucket"),
        ("https://host/a/book.txt", None, "/data"),
        ("https://host/a/book.txt", "texts", "/data/texts"),
        ("gs://bucket/a", "/data/b/", "/data/b"),
    ],
)
def test_where_things_go(source: str, to: str | None, folder: str) -> None:
    assert upload.target_folder(source, to) == folder


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

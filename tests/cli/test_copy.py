"""Copies from buckets and web addresses to the volume: the cluster reads the source itself."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cli import upload, volume_program
from cli.transfer import LostError, TransferError, copy
from cli.volume_program import PIECE
from tests.cli.volume import PROGRAM, Seen, Wire, noise, plant, told, tree


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server without range requests, and its folder."""
    folder = tmp_path / "web"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object, **options: object):
            super().__init__(*arguments, directory=str(folder), **options)  # pyrefly: ignore[bad-argument-type]

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
    with pytest.raises(TransferError, match=r"missing\.txt: does not exist"):
        copy(wire.volume, f"{address}/missing.txt", str(volume_folder), Seen())


def test_a_file_that_is_shorter_than_listed_is_told_once(tmp_path: Path, volume_folder: Path) -> None:
    source = noise(tmp_path / "text.bin", 10)
    steps = volume_program.copy(str(source), str(volume_folder))
    next(steps)
    source.write_bytes(bytes(5))
    with pytest.raises(volume_program.RefusedError, match=f"^{source}: gave 5 of 10 bytes; run it again$"):
        list(steps)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, dict[str, str]]]:
    """A client of an emulated S3, and the environment that points a server to it."""
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    environment = {**keys, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    import boto3

    client = boto3.client("s3")
    client.create_bucket(Bucket="texts")
    yield client, environment
    moto.stop()


def test_a_bucket_comes_without_this_machine_and_goes_on_after_a_kill(
    tmp_path: Path, volume_folder: Path, bucket: tuple[Any, dict[str, Any]]
) -> None:
    client, environment = bucket
    large = random.Random(1).randbytes(5 * PIECE + 3)
    client.put_object(Bucket="texts", Key="corpus/a/large.bin", Body=large)
    client.put_object(Bucket="texts", Key="corpus/small.txt", Body=b"small")
    target = volume_folder / "corpus"
    # The process dies after it has written four pieces.
    dying = tmp_path / "program.py"
    program = PROGRAM.read_text("utf-8").replace(
        "            written.write(piece)\n",
        "            written.write(piece); written.flush(); LEFT[0] -= 1\n            LEFT[0] or os._exit(9)\n",
    )
    assert "LEFT[0] or" in program
    dying.write_text(program.replace("\nPIECE =", "\nLEFT = [4]\nPIECE ="))
    steps = []
    with pytest.raises(LostError):
        steps.extend(
            Wire(tmp_path / "dies", dying, **environment).volume.lines("copy", "s3://texts/corpus", str(target))
        )
    assert tree(target).keys() == {"a/" + partial_of(target)}
    wire = Wire(tmp_path / "wire", **environment)
    seen = Seen()
    copy(wire.volume, "s3://texts/corpus", str(target), seen)
    assert seen.done == seen.size == len(large) + 5
    assert (target / "a" / "large.bin").read_bytes() == large
    assert wire.received < 5000
    first = (target / "a" / "large.bin").stat()
    client.put_object(Bucket="texts", Key="corpus/small.txt", Body=b"other")
    copy(wire.volume, "s3://texts/corpus", str(target), Seen())
    assert (target / "small.txt").read_bytes() == b"other"
    # The unchanged file was not written again.
    assert (target / "a" / "large.bin").stat().st_ino == first.st_ino
    with pytest.raises(TransferError, match="s3://nowhere: does not exist"):
        copy(wire.volume, "s3://nowhere", str(target), Seen())


def test_a_public_bucket_needs_no_credentials(
    tmp_path: Path, volume_folder: Path, bucket: tuple[Any, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, environment = bucket
    client.put_object(Bucket="texts", Key="a.txt", Body=b"public", ACL="public-read")
    nobody = {name: value for name, value in environment.items() if not name.startswith("AWS_ACCESS")}
    nobody |= {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    nobody.pop("AWS_SECRET_ACCESS_KEY")
    for name in environment:
        monkeypatch.delenv(name)
    copy(Wire(tmp_path / "wire", **nobody).volume, "s3://texts/a.txt", str(volume_folder), Seen())
    assert (volume_folder / "a.txt").read_bytes() == b"public"


def partial_of(folder: Path) -> str:
    """Name of the only partial file."""
    (found,) = folder.rglob(".large.bin.*part")
    assert 2 * PIECE <= found.stat().st_size < 5 * PIECE
    return found.name


@pytest.mark.parametrize("key", ["wiki-v1.5/a.txt", "wiki-v1.5/b/c.txt"])
def test_a_folder_with_a_dot_in_its_name_is_a_folder_and_a_file_goes_to_the_top(
    tmp_path: Path, volume_folder: Path, bucket: tuple[Any, dict[str, Any]], key: str
) -> None:
    client, environment = bucket
    client.put_object(Bucket="texts", Key=key, Body=b"text")
    wire = Wire(tmp_path / "wire", **environment)
    for address, inside in (("s3://texts/wiki-v1.5", "wiki-v1.5"), (f"s3://texts/{key}", Path(key).name)):
        found = copy(wire.volume, address, str(volume_folder), Seen(), name=upload.remote_name(address))
        assert found == str(volume_folder / inside)
    assert (volume_folder / key).read_bytes() == b"text"
    assert upload.remote_name("gs://data.example.com") == "data.example.com"


@pytest.mark.parametrize("planted", ["a", "a/text.bin", "part", ".copied", ".copied.part"])
@pytest.mark.parametrize("kind", ["link", "hard link", "fifo"])
def test_a_copy_writes_nowhere_but_into_its_folder(
    planted: str, kind: str, tmp_path: Path, volume_folder: Path
) -> None:
    source, elsewhere = tmp_path / "source", tmp_path / "elsewhere"
    noise(source / "a" / "text.bin", 1000)
    noise(elsewhere / "text.bin", 10)
    before, inside = tree(elsewhere), volume_folder / "corpus"
    (inside / "a").mkdir(parents=True)
    if planted == "part":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
            with pytest.raises(OSError, match="full"):
                list(volume_program.copy(str(source), str(volume_folder), "corpus"))
        (path,) = (inside / "a").iterdir()
    else:
        path = inside / planted
    plant(path, elsewhere if planted == "a" else elsewhere / "text.bin", kind if planted != "a" else "link")
    wire = Wire(tmp_path / "wire")
    refused = told(lambda: copy(wire.volume, str(source), str(volume_folder), Seen(), name="corpus"))
    assert not refused or ("link" in refused and "remove it" in refused)
    assert refused or (inside / "a" / "text.bin").read_bytes() == (source / "a" / "text.bin").read_bytes()
    assert tree(elsewhere) == before


def test_the_pods_program_reads_addresses_with_the_dataset_jobs_own_reader() -> None:
    """Each attempt and its order is `reach`'s: no second list of ways to a public bucket."""
    text = PROGRAM.read_text("utf-8")
    assert "reach(source, look)" in text
    assert not [word for word in ("anon", "url_to_fs", "fsspec.core") if word in text]

"""Uploads to the volume: what is sent, how an interrupted one goes on, and what a person is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cli import CommandError, __main__, rsync, upload, volume
from tests.cli.cluster import TARGET
from tests.cli.volume import MB, Seen, Wire, noise, tree


def send(wire: Wire, source: Path, folder: Path, follow_links: bool = False) -> Seen:
    seen = Seen()
    rsync.send(wire.pod, source, str(folder), seen, follow_links)
    assert seen.done == seen.size
    return seen


def test_a_folder_arrives_as_it_is_and_is_not_sent_twice(
    tmp_path: Path, volume_folder: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = Path("host:corpus")
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
    for path in source.rglob("*"):
        os.utime(path)  # another time, the same content
    send(wire, source, volume_folder / "corpus")
    assert wire.sent - before < 50_000


def test_a_lost_connection_is_made_again_and_goes_on_where_it_broke(
    tmp_path: Path, volume_folder: Path, wire: Wire
) -> None:
    source = noise(tmp_path / "text.bin", 6 * MB)
    noise(volume_folder / "text.bin", 1000)
    broken = Wire(tmp_path / "breaks", break_after=2 * MB)
    send(broken, source, volume_folder)
    assert broken.connections >= 5, "one asks, three send, one looks again"
    assert broken.sent < 7 * MB, "nothing twice"
    assert tree(volume_folder) == {"text.bin": source.read_bytes()}


def test_a_server_that_stays_away_is_told_with_what_to_do(
    tmp_path: Path, volume_folder: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.rsync.PATIENCE_SECONDS", 0.2)
    (wire.notes / "down").touch()
    with pytest.raises(CommandError, match=r"connection to the volume is lost: .* refused; .* continues where it stop"):
        send(wire, noise(tmp_path / "a", 10), volume_folder)
    assert wire.connections >= 2


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
        def reached(self, size: int) -> None:
            super().reached(size)
            os.utime(source)

    with pytest.raises(CommandError, match="changed while it was sent"):
        rsync.send(wire.pod, source, str(volume_folder), Writer())


def test_what_is_not_read_and_what_changes_a_prepared_text_is_told(
    tmp_path: Path, volume_folder: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(volume, "DATA", str(volume_folder))
    monkeypatch.setattr(upload, "volume_of", lambda *_: TARGET)
    monkeypatch.setattr(upload, "volume_pod", wire.volume_pod)
    noise(volume_folder / "runs" / "metrics.jsonl", 10)
    for name in ("a.png", "b.png", "NEWS.gz", "c.csv"):
        noise(tmp_path / "corpus" / name, 10)
    file = noise(tmp_path / "corpus" / "book.txt", 100)

    def said(path: Path = file.parent, *more: str) -> str:
        assert __main__.main(["upload", str(path), *more]) == 0
        return capsys.readouterr().out

    first = said()
    assert "2 files of kind .png are not read as text: a.png, b.png\n" in first
    assert "1 file without a suffix before .gz is not read as text: NEWS.gz\n" in first
    told = "1 file of kind .csv is not read as text: c.csv; the whole folder is refused as dataset.input for it\n"
    assert told in first
    assert "dataset.name" not in first, "other files of the volume do not count"
    file.write_bytes(bytes(101))
    assert "dataset.name" in said()
    assert "dataset.name" not in said()
    assert f"--path 'dataset.input[0]' {volume_folder}/book.txt\n" in said(file), "a file goes to the top"
    said(file, "--to", f"{volume_folder}/b/")
    assert (volume_folder / "b" / "book.txt").exists()


def test_links_are_refused_unless_they_are_asked_for(tmp_path: Path, volume_folder: Path, wire: Wire) -> None:
    """In a downloaded folder one might point to keys."""
    source, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    noise(source / "a.txt", 1)
    noise(elsewhere / "b.txt", 1)
    (source / "linked").symlink_to(elsewhere)
    with pytest.raises(CommandError, match=rf"linked: is a link, to {elsewhere}; give --follow-links"):
        upload.local_files(str(source))
    assert upload.local_files(str(source), follow_links=True) == ["a.txt", "linked/b.txt"]
    send(wire, source, volume_folder, follow_links=True)
    assert tree(volume_folder).keys() == {"a.txt", "linked/b.txt"}
    assert not (volume_folder / "linked").is_symlink()
    (source / "nowhere").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CommandError, match=r'symlink has no referent: ".*nowhere"'):
        send(wire, source, volume_folder, follow_links=True)


@pytest.mark.parametrize("model", ["config.json", "model/config.json", "checkpoints/step-00000001/manifest.json"])
def test_what_to_do_with_an_upload_is_said(model: str, tmp_path: Path) -> None:
    assert "--path 'dataset.input[0]' /data/2024" in upload.use(tmp_path, "/data/2024", "local")
    (tmp_path / model).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / model).write_text("{}")
    assert "--path training.model.name /data/models/mine" in upload.use(tmp_path, "/data/models/mine", "local")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([""], "'': no such file or folder on this machine\n"),
        (["s3://bucket/x"], "s3://bucket/x: no such file or folder on this machine; a bucket, the web and"),
        ([".", "--to", "../x"], "../x: leads out of /data"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_done(
    arguments: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(upload, "volume_of", lambda *_: pytest.fail("asked the stack"))
    monkeypatch.chdir(noise(tmp_path / "a.txt", 1).parent)
    assert __main__.main(["upload", *arguments]) in (1, 2)
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: {problem}")
    assert shown.count("\n") == 1

"""Files and folders that the trainer's user may not read: each is named in one line, and none is taken for absent.

A run whose checkpoints seem absent would begin again, and a folder that is left out would be missing in the dataset.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.processes import context, run_unprivileged
from trainer import prepare
from trainer.contract import EXIT_FATAL, EXIT_USAGE

TRAINING = (
    "steps=2 tokens_per_step=128 sequence_length=32 micro_batch=2 precision=fp32 model.preset=tiny "
    "evaluation.batches=1 data.directory=data run.directory=run"
)
TRAIN, LAUNCH = f"train {TRAINING}", f"launch --standalone -- {TRAINING}"
PREPARE = "prepare --output prepared --tokenizer tokenizer --documents lines --input"
DENIED = f"{{}}: user {os.getuid()} may not read or write it; change its owner or its mode"


@pytest.fixture
def volume(tmp_path: Path, dataset: Path, tokenizer: Path) -> Iterator[Path]:
    (tmp_path / "data").symlink_to(dataset)
    (tmp_path / "tokenizer").symlink_to(tokenizer)
    for name in ("run/checkpoints/step-00000004/manifest.json", "run/DONE", "run/metrics.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    for name in ("texts/a.txt", "texts/inner/b.txt", "texts/lost+found/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(prepare.SAMPLE.read_text("utf-8")[:20_000], encoding="utf-8")
    yield tmp_path
    for folder, folders, _ in os.walk(tmp_path):  # so that it can be deleted
        for name in folders:
            Path(folder, name).chmod(0o755)


def run(volume: Path, command: str) -> tuple[int | None, str]:
    """Exit code and output of a program in the folder of the volume."""
    program, *arguments = command.split()
    log = volume / "said"
    process = context().Process(
        target=run_unprivileged, args=(str(volume), [f"trainer.{program}", *arguments], str(log))
    )
    process.start()
    process.join(100)
    return process.exitcode, log.read_text()


@pytest.mark.parametrize(
    ("locked", "command", "code", "said"),
    [
        ("run/checkpoints", LAUNCH, EXIT_FATAL, "run.directory: {} cannot be read and written by user"),
        ("run/checkpoints/step-00000004", TRAIN, EXIT_FATAL, DENIED.format("{}/manifest.json")),
        ("data/index.json", TRAIN, EXIT_FATAL, DENIED),
        ("run/checkpoints", "evaluate --run run", EXIT_USAGE, DENIED),
        ("texts/inner", f"{PREPARE} texts", EXIT_USAGE, "--input {}: cannot be read by user"),
        ("texts/inner", f"{PREPARE} hf:texts", EXIT_USAGE, DENIED),
    ],
)
def test_what_may_not_be_read_is_named_in_one_line(
    volume: Path, dataset: Path, locked: str, command: str, code: int, said: str
) -> None:
    path = volume / locked
    before = path.stat().st_mode
    path.chmod(0)
    try:
        ended, told = run(volume, command)
    finally:
        path.chmod(before)
    assert ended == code, told
    assert any(said.format(name) in told for name in (path, locked)), told
    assert "Traceback" not in told
    assert (volume / "run/checkpoints/step-00000004/manifest.json").read_text() == "{}\n"


@pytest.mark.parametrize(("locked", "given"), [("texts/lost+found", "texts"), ("texts/inner", "texts/*.txt")])
def test_what_is_not_asked_for_need_not_be_readable(volume: Path, locked: str, given: str) -> None:
    (volume / locked).chmod(0)
    ended, told = run(volume, f"{PREPARE} {given}")
    assert ended == 0, told

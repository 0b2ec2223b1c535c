"""Real workers on real data: one mathematics at any world size, exact resume, a clean end on every signal."""

from __future__ import annotations

import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.conftest import Launcher, Settings, Start, done, losses, metrics, newest, reached, status, wait_until
from tests.trainer.processes import run_worker
from trainer.checkpoint import saver
from trainer.checkpoint.format import list_checkpoints
from trainer.train import __main__ as train

PATIENCE = 240
"""Seconds: what takes 10 s on an idle machine takes minutes on a shared one."""


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(newest(run).path / "model" / "model.safetensors")


def test_one_or_three_workers_compute_the_same_run(start_workers: Start, settings: Settings, tmp_path: Path) -> None:
    """A step is one pass of one worker, or has four micro-batches, of which three workers get uneven shares, or two, of
    which one of three gets none."""
    found: list[list[float]] = []
    for world, size in ((1, 8), (3, 2), (3, 4)):
        run, batches = tmp_path / str(len(found)), 32 // size
        changes = {"evaluation__batches": batches, "evaluation__every": 5, "optimizer__learning_rate": 1e-2}
        workers = start_workers(world, settings(run, micro_batch=size, **changes))
        assert workers.wait(PATIENCE) == [0] * world, workers.output
        validation = [line["validation_loss"] for line in metrics(run) if "validation_loss" in line]
        # The norms, too: AdamW hides a gradient that is wrong by a factor.
        norms = [line["gradient_norm"] for line in metrics(run) if "gradient_norm" in line]
        found.append([*losses(run).values(), *validation, *norms])
        assert len(found[-1]) == 12 + 4 + 12
    alone, *others = found
    for each in others:
        assert each == pytest.approx(alone, abs=1e-5)
    assert alone[0] > alone[11] + 0.5, "the model must learn, or equal losses say nothing"


def test_epochs_become_the_steps_of_the_prepared_data(start_workers: Start, settings: Settings, tmp_path: Path) -> None:
    """Also when the run is resumed, and longer then."""
    by_epochs = [text for text in settings(tmp_path / "run") if not text.startswith("steps=")]
    first = start_workers(2, [*by_epochs, "epochs=0.1"])
    assert first.wait(PATIENCE) == [0, 0], first.output
    told = status(tmp_path / "run")
    assert told["step"] == told["steps"] == done(tmp_path / "run")["step"]
    assert told["epoch"] >= 0.1 > told["epoch"] * (told["steps"] - 1) / told["steps"], "rounded up"
    assert f"event=epochs epochs=0.1 steps={told['steps']} " in first.output
    again = start_workers(1, [*by_epochs, "epochs=0.2"])
    assert again.wait(PATIENCE) == [0], again.output
    assert f"key=steps before={told['steps']} now=" in again.output
    assert 2 * told["steps"] - 1 <= done(tmp_path / "run")["step"] <= 2 * told["steps"]


def test_a_run_killed_and_resumed_equals_a_straight_one(
    start_workers: Start, settings: Settings, tmp_path: Path
) -> None:
    """By as many workers bit by bit, by another number up to rounding."""
    straight, broken, uneven = (tmp_path / name for name in ("straight", "broken", "uneven"))
    changes = {"steps": 40, "checkpoint__every_steps": 5, "evaluation__every": 12}
    workers = start_workers(2, settings(straight, **changes))
    again = start_workers(2, settings(broken, **changes))
    wait_until(lambda: reached(broken, 13), PATIENCE, "step 13")
    again.kill(signal.SIGKILL)
    assert again.wait(PATIENCE) == [-9, -9]
    assert not (broken / "DONE").exists(), "the kill came too late to test anything"
    assert workers.wait(PATIENCE) == [0, 0], workers.output

    shutil.copytree(broken, uneven)
    resumed = start_workers(2, settings(broken, **changes))
    three = start_workers(3, settings(uneven, **changes))
    assert resumed.wait(PATIENCE) == [0, 0], resumed.output
    assert three.wait(PATIENCE) == [0, 0, 0], three.output
    assert "event=resume" in three.output
    assert list(losses(uneven).values()) == pytest.approx(list(losses(straight).values()), abs=1e-5)
    step = int(resumed.output.split("event=resume step=")[1].split()[0])
    assert 10 <= step < 40
    assert losses(broken) == losses(straight)
    assert list(losses(broken)) == list(range(1, 41))
    for name, value in weights(straight).items():
        assert torch.equal(value, weights(broken)[name]), name
    assert done(broken)["validation_loss"] == done(straight)["validation_loss"]
    assert done(broken)["initial_validation_loss"] == done(straight)["initial_validation_loss"]


@pytest.mark.parametrize("moment", ["training", "evaluation"])
def test_sigterm_to_one_worker_makes_all_save_the_same_step(
    start_workers: Start, settings: Settings, tmp_path: Path, moment: str
) -> None:
    """The one that got the notice ends with 143, the other asks to be started again with 75."""
    if moment == "training":
        changes: dict[str, Any] = {"steps": 100_000}
    else:  # evaluations without end, so that the notice meets one
        changes = {"steps": 100_000, "evaluation__every": 5, "evaluation__batches": 100_000}
        changes["micro_batch"] = 1
    workers = start_workers(2, settings(tmp_path, **changes))
    wait_until(lambda: reached(tmp_path, 7), PATIENCE, "step 7")
    workers.kill(signal.SIGTERM, only=1)
    assert workers.wait(20) == [75, 143], workers.output
    step = newest(tmp_path).step
    assert step == max(losses(tmp_path))
    assert f"event=checkpoint step={step}" in workers.output


def test_a_worker_whose_peer_was_killed_leaves_at_once(
    start_workers: Start, settings: Settings, tmp_path: Path
) -> None:
    workers = start_workers(2, settings(tmp_path, steps=100_000, checkpoint__every_minutes=0.01))
    wait_until(lambda: workers.output.count("event=checkpoint step=") >= 2, PATIENCE, "two checkpoints, by time")
    workers.kill(signal.SIGKILL, only=0)
    assert workers.wait(15) == [-9, 75], workers.output
    assert "event=peers_lost" in workers.output
    assert "Traceback" not in workers.output


def test_a_loss_that_is_no_number_ends_with_42_and_keeps_the_last_good_checkpoint(
    start_workers: Start, settings: Settings, tmp_path: Path
) -> None:
    assert start_workers(2, settings(tmp_path, steps=2)).wait(PATIENCE) == [0, 0]
    (tmp_path / "DONE").unlink()
    changes = {"optimizer__learning_rate": 1e30, "optimizer__warmup_steps": 10, "optimizer__clip": 0}
    workers = start_workers(2, settings(tmp_path, checkpoint__every_steps=1, steps=500, **changes))
    assert workers.wait(PATIENCE) == [42, 42], workers.output
    assert "training diverged; lower optimizer.learning_rate" in workers.output
    assert "Traceback" not in workers.output
    assert status(tmp_path)["state"] == "failed"
    assert "diverged" in status(tmp_path)["message"]
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002"]
    assert all(
        torch.isfinite(value).all()
        for path in list_checkpoints(tmp_path)
        for value in load_file(path / "model" / "model.safetensors").values()
    )


def test_bad_input_ends_with_42_and_one_line(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for arguments, said in (
        (settings(tmp_path / "c", stepz=3), "did you mean steps?"),
        (settings(tmp_path / "file" / "run"), "run.directory: "),
    ):
        assert train.main(arguments) == 42
        [line] = capsys.readouterr().err.splitlines()
        assert said in line


def test_a_token_that_no_model_has_ends_the_run_with_its_place_in_the_status(
    start_workers: Start, settings: Settings, dataset: Path, tmp_path: Path
) -> None:
    """Found in the middle of the run: the shards of a large dataset are not read at the start."""
    data, run = tmp_path / "data", tmp_path / "run"
    shutil.copytree(dataset, data)
    for shard in data.glob("train-*.bin"):
        shard.write_bytes(b"\xff" * shard.stat().st_size)
    workers = start_workers(1, settings(run, data__directory=data, data__verify="never"))
    assert workers.wait(PATIENCE) == [42], workers.output
    assert status(run)["state"] == "failed"
    assert "outside the vocabulary of 500" in status(run)["message"]


def test_what_a_finished_run_leaves(
    start_launcher: Callable[..., Launcher], settings: Settings, tmp_path: Path
) -> None:
    """On one machine alone, which needs no rendezvous store."""
    changes = {"metrics__every": 5, "evaluation__every": 4, "checkpoint__every_steps": 5, "checkpoint__keep": 2}
    arguments = settings(tmp_path, metrics__tensorboard="true", **changes)
    launcher = start_launcher(arguments, ["--standalone", "--nproc-per-node", "2"])
    assert launcher.wait(PATIENCE) == 0, launcher.output
    result = done(tmp_path)
    assert result["step"] == 12
    assert "adapter_of" not in result
    assert result["initial_validation_loss"] == pytest.approx(torch.tensor(500.0).log().item(), abs=0.1), "by chance"
    assert result["validation_loss"] < result["initial_validation_loss"]
    assert result["checkpoint"] == str(tmp_path / "checkpoints" / "step-00000012")
    assert result["sample"].startswith("The")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000010", "step-00000012"]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000010", "step-00000012"]
    assert [line["step"] for line in metrics(tmp_path) if "loss" in line] == [5, 10, 12]
    assert [line["step"] for line in metrics(tmp_path) if "validation_loss" in line] == [0, 4, 8, 12]
    keys = {"step", "loss", "learning_rate", "gradient_norm", "tokens_per_second", "time"}
    assert all(set(line) >= keys for line in metrics(tmp_path) if "loss" in line)
    told = status(tmp_path)
    assert (told["state"], told["step"], told["steps"], told["world_size"]) == ("done", 12, 12, 2)
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
    lines = launcher.output.splitlines()
    assert "event=round round=1 world_size=2 rank=0" in lines
    assert any(line.startswith("step=5 steps=12 loss=") and line.endswith("world_size=2") for line in lines)
    assert any(line.startswith("step=12 validation_loss=") for line in lines)
    assert any(line.startswith("event=checkpoint step=12 ") for line in lines)


def run_on_a_disk_that_is_freed(environment: dict[str, str], arguments: list[str], log: str) -> None:
    """Limit files to 40 kB, which metrics and the log fit and weights do not, until a file says that there is space."""
    saver.RETRY_SECONDS = 1
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, most))

    def free() -> None:
        while not Path(f"{log}.freed").exists():
            time.sleep(0.02)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    threading.Thread(target=free, daemon=True).start()
    run_worker(environment, arguments, log)


@pytest.mark.parametrize("ending", ["space", "notice"])
def test_a_storage_that_refuses_the_last_checkpoint_is_waited_for(
    start_workers: Start, settings: Settings, tmp_path: Path, ending: str
) -> None:
    """Once, a full disk between the last two steps cost the Job, and all steps since the newest checkpoint."""
    workers = start_workers(2, settings(tmp_path / "run", steps=4), run_on_a_disk_that_is_freed)
    wait_until(lambda: "event=end_delayed " in workers.output, PATIENCE, "a refused checkpoint")
    if ending == "space":
        (tmp_path / "workers-0.log.freed").touch()
        assert workers.wait(PATIENCE) == [0, 0], workers.output
        assert Path(done(tmp_path / "run")["checkpoint"]).is_dir()
    else:
        workers.kill(signal.SIGTERM, only=1)
        assert workers.wait(PATIENCE) == [75, 143], workers.output


def test_a_notice_is_heard_in_the_middle_of_a_long_step(
    start_workers: Start, settings: Settings, tmp_path: Path
) -> None:
    """A step of 8,000 micro-batches takes far longer than the notice: it is given up, and computed again at resume."""
    changes = {"tokens_per_step": 512_000, "evaluation__batches": 1}
    workers = start_workers(2, settings(tmp_path, **changes))
    wait_until(lambda: "step=0 validation_loss" in workers.output, PATIENCE, "the first step began")
    workers.kill(signal.SIGTERM, only=0)
    assert workers.wait(20) == [143, 75], workers.output
    assert newest(tmp_path).step == 0

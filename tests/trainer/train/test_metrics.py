"""A run's output: whole lines, figures in every place that was asked for, and no failure there ends a training."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.trainer import toy
from tests.trainer.conftest import metrics, status, wait_until
from trainer.errors import Retry, TrainingError, UserError
from trainer.train.metrics import Reporter, StepFigures

WRITERS, LINES = 4, 500


def figures(step: int, **changes: Any) -> StepFigures:
    values: dict[str, Any] = {name: 0.5 for name in StepFigures.__dataclass_fields__}
    values |= {
        "step": step,
        "loss": 3.25,
        "tokens_per_second": 1234.5,
        "mfu": None,
        "loss_scale": None,
        "activations": {},
    }
    return StepFigures(**values | changes)


def reporter(run: Path, step: int = 0, **settings: Any) -> Reporter:
    changes = {f"metrics.{name}": str(value).lower() for name, value in {"tensorboard": False, **settings}.items()}
    made = Reporter(run, toy.configuration(steps=100, **changes), toy.place(size=2))
    made.start(step, {})
    return made


def test_lines_of_workers_that_share_a_stream_stay_whole() -> None:
    """As in a pod: unbuffered Python, one pipe. With print() two lines of several hundred run into each other."""
    reader, writer = os.pipe()
    program = f"from trainer import log\nfor n in range({LINES}): log.event('round', rank=n)"
    workers = [subprocess.Popen([sys.executable, "-u", "-c", program], stdout=writer) for _ in range(WRITERS)]
    os.close(writer)
    with open(reader, encoding="utf-8") as stream:
        lines = stream.read().splitlines()
    assert [worker.wait(30) for worker in workers] == [0] * WRITERS
    assert sorted(lines) == sorted([f"event=round rank={n}" for n in range(LINES)] * WRITERS)


LEAVE = (
    "import atexit; from trainer import log; atexit.register(print, 'shut down'); print('said', end=''); log.leave(75)"
)


def test_what_was_said_is_written_and_nothing_is_shut_down() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (75, "said")


def test_the_figures_of_a_step_are_in_the_file_the_status_and_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell = reporter(tmp_path)
    tell.training(figures(10, mfu=0.4, activations={"layer0_attention_weight_max": 6.25}))
    tell.training(figures(20))
    tell.close()
    first, second = metrics(tmp_path)
    assert {key: first[key] for key in ("step", "loss", "mfu", "activations/layer0_attention_weight_max")} == {
        "step": 10,
        "loss": 3.25,
        "mfu": 0.4,
        "activations/layer0_attention_weight_max": 6.25,
    }
    assert second["mfu"] is None
    assert second["loss_scale"] is None
    assert not any(key.startswith("activations") for key in second)
    assert set(StepFigures.__dataclass_fields__) - {"activations"} < set(second)
    told = status(tmp_path)
    assert (told["step"], told["loss"], told["tokens_per_second"]) == (20, 3.25, 1234.5)
    said = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("record ")]
    assert said[0].startswith("step=10 steps=100 loss=3.2500 ")
    assert " mfu=0.400 " in said[0]
    assert " mfu=n/a " in said[1]


def test_a_worker_that_is_not_the_first_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Reporter(tmp_path, toy.configuration(metrics__prometheus_port=free_port()), toy.place(rank=1, size=2))
    other.start(0, {})
    other.training(figures(10))
    other.close()
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().out == ""


def test_prometheus_scrapes_the_newest_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prometheus_client import exposition
    from prometheus_client.parser import text_string_to_metric_families

    port = free_port()
    (tmp_path / "my-run").mkdir()
    tell = reporter(tmp_path / "my-run", prometheus_port=port)

    def scraped() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
            families = list(text_string_to_metric_families(reply.read().decode()))
        return {s.name: s.value for family in families for s in family.samples if s.labels == {"run": "my-run"}}

    assert scraped() == {}
    tell.validation(0, 10.8)
    tell.training(figures(10, activations={"layer0_attention_weight_max": 6.25}))
    tell.training(figures(20, loss=3.0))
    found = scraped()
    assert found["trainyard_step"] == 20
    assert found["trainyard_loss"] == 3.0
    assert found["trainyard_tokens_per_second"] == 1234.5
    assert found["trainyard_validation_loss"] == 10.8
    assert found["trainyard_activations_layer0_attention_weight_max"] == 6.25
    assert "trainyard_mfu" not in found, "an unknown figure is no zero"
    assert exposition._SilentHandler.timeout == 5
    monkeypatch.setattr(exposition._SilentHandler, "timeout", 0.2)
    with socket.create_connection(("127.0.0.1", port)) as silent:
        assert silent.recv(1) == b"", "a connection that says nothing is ended"
    tell.close()
    with pytest.raises(OSError, match="refused"):
        scraped()


def test_a_port_in_use_costs_the_endpoint_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        tell = reporter(tmp_path, prometheus_port=taken.getsockname()[1])
        tell.training(figures(10))
        tell.close()
    assert "event=metrics_failed what=prometheus reason='[Errno 98] Address already in use'" in capsys.readouterr().out
    assert [line["step"] for line in metrics(tmp_path)] == [10]


def test_tensorboard_holds_the_same_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TRAINYARD_STACK", "local-sweep")
    tell = reporter(tmp_path, tensorboard=True)
    for step in (10, 20, 30):
        tell.training(figures(step, loss=step / 10, activations={"layer0_attention_weight_min": -7.0}))
    tell.close()
    resumed = reporter(tmp_path, step=20, tensorboard=True)  # what came after the checkpoint is repeated, not doubled
    resumed.training(figures(30, loss=9.0))
    resumed.close()
    found = EventAccumulator(str(tmp_path / "tensorboard" / "local-sweep")).Reload()
    assert [(event.step, event.value) for event in found.Scalars("loss/loss")] == [(10, 1.0), (20, 2.0), (30, 9.0)]
    assert found.Scalars("more/activations/layer0_attention_weight_min")[0].value == -7.0
    tags: Any = found.Tags()["scalars"]
    assert "more/mfu" not in tags
    assert sorted(tags)[0] == "loss/loss", "it opens on what stands first by alphabet"
    assert [line["loss"] for line in metrics(tmp_path)] == [1.0, 2.0, 9.0]


@pytest.fixture
def wandb_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """W&B with no settings of this machine, started anew: it keeps the first environment that it sees."""
    import wandb

    for key in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(key, raising=False)
    for key in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(key, str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    wandb.teardown()
    yield
    wandb.teardown()


@pytest.mark.usefixtures("wandb_home")
def test_wandb_records_offline_and_a_resumed_run_stays_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "my-run"
    run.mkdir()
    for step in (10, 20):
        tell = reporter(run, step=step - 10, wandb_project="trainyard-tests")
        tell.training(figures(step, loss=step + 0.125))
        tell.close()
    identity = (run / "wandb-id.txt").read_text().strip()
    files = sorted((run / "wandb").glob(f"offline-run-*/run-{identity}.wandb"))
    assert len(files) == 2, "both attempts belong to one run"
    for file, loss in zip(files, (b"10.125", b"20.125"), strict=True):
        # Its log of records is not compressed; wandb's own process writes it out after the run's end was told.
        wait_until(lambda file=file: b"loss" in file.read_bytes(), 30, f"{file.parent.name} is written")
        assert loss in file.read_bytes()
    assert "metrics_failed" not in capsys.readouterr().out


def test_of_two_trainings_that_do_not_see_each_other_the_newer_writes(
    tmp_path: Path,
) -> None:
    """One is cut off from the rendezvous and not from the storage, and others begin without it."""
    cut_off = reporter(tmp_path)
    cut_off.training(figures(10))
    newer = reporter(tmp_path, step=10)
    newer.training(figures(20))
    with pytest.raises(Retry, match="another training has begun to write"):
        cut_off.status(state="training")
    cut_off.end("failed", TrainingError("diverged"))
    cut_off.status(state="restarting")
    cut_off.close()
    newer.training(figures(30))
    assert [(line["step"], line["loss"]) for line in metrics(tmp_path)] == [(10, 3.25), (20, 3.25), (30, 3.25)]
    assert status(tmp_path)["state"] == "training"


def test_a_training_that_fails_before_it_writes_says_so_and_ends_no_other(tmp_path: Path) -> None:
    """Such as a second one in the folder of the first, with another model."""
    older = reporter(tmp_path)
    older.training(figures(10))
    newcomer = Reporter(tmp_path, toy.configuration(), toy.place())
    newcomer.end("failed", UserError("holds another model"))
    told = status(tmp_path)
    assert (told["state"], told["message"]) == ("failed", "holds another model")
    assert (told["step"], told["loss"]) == (10, 3.25), "the figures of the run stay"
    older.training(figures(20))
    assert status(tmp_path)["state"] == "training"


def test_a_disk_that_is_full_as_a_run_resumes_does_not_make_the_former_attempt_another_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = reporter(tmp_path)
    former.training(figures(10))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("trainer.train.metrics.write_json", full)
        resumed = reporter(tmp_path, step=10)
        resumed.status(state="compiling")
    resumed.training(figures(20))
    assert status(tmp_path)["step"] == 20
    with pytest.raises(Retry):
        former.training(figures(20))


def test_a_line_that_is_on_its_way_when_a_newer_training_begins_is_not_in_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, asked = reporter(tmp_path), Reporter._hold

    def begin_a_newer(self: Reporter) -> None:
        asked(self)
        monkeypatch.undo()
        reporter(tmp_path, step=10)

    older.training(figures(10))
    monkeypatch.setattr(Reporter, "_hold", begin_a_newer)
    with pytest.raises(Retry):
        older.training(figures(20))
    assert [line["step"] for line in metrics(tmp_path)] == [10]


def test_a_full_disk_does_not_keep_a_run_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    reporter = Reporter(tmp_path, toy.configuration(), toy.place())
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        reporter.start(1, {})
    assert "what=metrics.jsonl" in capsys.readouterr().out
    assert [path.name for path in tmp_path.glob(".metrics*")] == [], "nothing of the attempt takes space"
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_lines_that_a_full_disk_refuses_are_written_when_there_is_space(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell = reporter(small_disk)
    tell.training(figures(10))
    filler = small_disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free))
    # The started block of the file may still take a line; those after it wait.
    for step in range(20, 200, 10):
        tell.training(figures(step))
    written = [line["step"] for line in metrics(small_disk)]
    assert written == list(range(10, 10 + 10 * len(written), 10)), "whole lines, in order"
    assert len(written) < 19
    said = capsys.readouterr().out
    assert said.count("event=metrics_failed what=metrics.jsonl reason='No space left on device'") == 1
    filler.unlink()
    tell.training(figures(200))
    tell.close()
    assert [line["step"] for line in metrics(small_disk)] == list(range(10, 210, 10))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # in TensorBoard's own thread
def test_an_exporter_that_cannot_close_ends_no_training_and_keeps_no_other_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorBoard writes from a thread, and tells what its storage refused only when it is closed."""
    port = free_port()
    tell = reporter(tmp_path, tensorboard=True, prometheus_port=port)
    (tmp_path / "tensorboard").rename(tmp_path / "gone")  # at once: its thread may be making a file in it
    tell.validation(10, 3.0)
    tell.close()
    assert 'event=metrics_failed what=tensorboard reason="[Errno 2] No such file' in capsys.readouterr().out
    with socket.socket() as free:
        free.bind(("0.0.0.0", port))

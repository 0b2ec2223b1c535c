"""A run that `trainyard fetch` brought here opens as the run directory on the volume does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli import fetch
from cli.runs import run_of
from tests.cli.volume import Seen, Wire
from tests.trainer.export.test_use import Capture, evaluated, fails, newest, run
from tests.trainer.processes import start_round
from trainer import report, sample, volume
from trainer.export import __main__ as export
from trainer.export import runs

__all__ = ["run"]  # a fixture


@pytest.fixture
def fetched(run: Path, tmp_path: Path) -> Path:
    pod, folder = Wire(tmp_path / "wire").pod, tmp_path / "here" / "opticks"
    told = {"run": run.name, "now": 0.0, "status": {}, "bytes": 0, "checkpoints": volume.checkpoints(run)}
    fetch.bring_run(pod, str(run), run_of(told, {}), folder, Seen(), False)
    assert not (folder / "checkpoints").exists()
    return folder


def test_it_is_evaluated_sampled_exported_and_reported_as_on_the_volume(
    run: Path, fetched: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "vega", str)  # test_report draws the charts

    def of(folder: Path) -> list[Any]:
        options = ["--run", str(folder)]
        loss = evaluated(options, capsys)
        assert sample.main([*options, "--tokens", "5"]) == 0
        text = capsys.readouterr().out
        output = tmp_path / f"exported-{folder.name}-{folder.parent.name}"
        assert export.main([*options, "--output", str(output)]) == 0
        files = {path.name: path.read_bytes() for path in output.iterdir()}
        assert report.main([str(folder), "--output", str(output)]) == 0
        capsys.readouterr()
        (shown,) = runs.read_runs([folder])
        return [loss["loss"], loss["step"], text, files, shown]

    assert of(fetched) == of(fetched / "model") == of(run)


def test_a_fetched_run_names_its_one_step_and_what_is_damaged(fetched: Path, capsys: Capture) -> None:
    said = fails(sample.main, ["--run", str(fetched), "--step", "10"], capsys)
    assert "--step 10: only step 25 was fetched; trainyard fetch --all brings every one" in said
    assert sample.main(["--model", str(fetched)]) == 0, "its folder names the model as well"
    (fetched / "config.yaml").write_text("other: {}")
    assert "run the same trainyard fetch again" in fails(sample.main, ["--run", str(fetched)], capsys)
    (fetched / "manifest.json").unlink()
    assert "holds no checkpoint that verifies" in fails(sample.main, ["--run", str(fetched)], capsys)


def test_a_model_that_is_named_model_on_its_own_is_no_run(run: Path, tmp_path: Path, capsys: Capture) -> None:
    assert "no checkpoint that verifies" in fails(sample.main, ["--run", str(newest(run) / "model")], capsys)


def test_a_training_does_not_begin_again_in_a_fetched_run(fetched: Path, tmp_path: Path) -> None:
    """It has no optimizer state, and its metrics and model would be mixed with those of another training."""
    (fetched / "DONE").unlink()
    before = (fetched / "metrics.jsonl").read_bytes()
    settings = ["--config", str(fetched / "config.yaml"), f"run.directory={fetched}"]
    workers = start_round(1, settings, tmp_path / "log")
    assert workers.wait(120) == [42], workers.output
    assert f"run.directory: {fetched} is a fetched copy with the model alone" in str(workers.output)
    assert (fetched / "metrics.jsonl").read_bytes() == before

"""Exporters of figures beside metrics.jsonl: TensorBoard, Weights & Biases, Prometheus. None may end a training."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from trainer import patches
from trainer.config.schema import Config
from trainer.contract import STACK
from trainer.errors import one_line

WANDB_ID = "wandb-id.txt"
"""In the run directory: a resumed run continues the same W&B run."""
PREFIX = "trainyard_"
LOSSES = ("loss", "validation_loss", "bits_per_byte", "f1", "exact_match")
"""Figures that say how well the model has learned."""


class Exporter(Protocol):
    name: str

    def write(self, step: int, values: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


def start(config: Config, run: Path, step: int, failed: Callable[[str, str], None]) -> list[Exporter]:
    """Start the configured exporters; call `failed(name, reason)` for each that does not start."""
    settings, started = config.metrics, list[Exporter]()
    kinds: list[tuple[Any, Any, Any]] = [
        (settings.tensorboard, TensorBoard, step),
        (settings.wandb_project, WeightsAndBiases, config),
        (settings.prometheus_port, Prometheus, settings.prometheus_port),
    ]
    for wanted, kind, given in kinds:
        try:
            if wanted:
                started.append(kind(run, given))
        except Exception as error:  # a port in use, no network, a full disk: each library has its own
            failed(kind.name, one_line(error))
    return started


def tag(figure: str) -> str:
    """The name of a figure in TensorBoard."""
    return f"{'loss' if figure in LOSSES else 'more'}/{figure}"


class TensorBoard:
    """Its page opens on the group that is first by alphabet: the losses, not the activations. It names a run by its
    folder, so the folder carries the stack's name."""

    name = "tensorboard"

    def __init__(self, run: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / "tensorboard" / os.environ.get(STACK, "")), purge_step=step + 1)

    def write(self, step: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(tag(name), value, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    name = "wandb"

    def __init__(self, run: Path, config: Config) -> None:
        import wandb

        identity = run / WANDB_ID
        if not identity.exists():
            identity.write_text(secrets.token_hex(4) + "\n", encoding="utf-8")
        self._run = wandb.init(
            project=config.metrics.wandb_project,
            id=identity.read_text("utf-8").strip(),
            name=run.name,
            dir=str(run),
            config=config.model_dump(),
            resume="allow",
            # Keep its lines out of the log, and do not wait long for a server.
            settings=wandb.Settings(silent=True, console="off", init_timeout=60),
        )

    def write(self, step: int, values: dict[str, Any]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


class Prometheus:
    """A text endpoint at http://HOST:PORT/metrics: one gauge a figure, labelled with the run's name."""

    name = "prometheus"

    def __init__(self, run: Path, port: int) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

        self._registry, self._label, self._gauges = CollectorRegistry(), run.name, dict[str, Any]()
        ProcessCollector(registry=self._registry)
        patches.end_silent_scrapers()
        self._server, self._thread = start_http_server(port, registry=self._registry)

    def write(self, step: int, values: dict[str, Any]) -> None:
        from prometheus_client import Gauge

        for name, value in {"step": step, **values}.items():
            name = PREFIX + name.replace("/", "_")  # a metric's name may hold no slash
            if name not in self._gauges:
                self._gauges[name] = Gauge(name, "see docs/model.md", ["run"], registry=self._registry)
            self._gauges[name].labels(self._label).set(value)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""The exchange of gradients between workers: in which type, in how many bytes, and how long computing waits for it."""

import time
from typing import Any

import torch

from trainer import log
from trainer.config.schema import Config

TYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""communication.compression. bf16 keeps fp32's range; fp16 keeps 3 more bits, but loses what is below 6e-8."""
NOTABLE = 0.1
"""Share of a step spent on the exchange from which on the log says what would lower it."""


def wire(config: Config, device: torch.device, dtype: torch.dtype) -> str:
    """communication.compression with `auto` decided."""
    settings = config.communication
    if settings.compression != "auto":
        return settings.compression
    if config.engine.name == "deepspeed" and dtype == torch.bfloat16:
        return "bf16"  # DeepSpeed's bf16 mode has no wider gradients
    return "bf16" if device.type == "cuda" and dtype != torch.float32 else "none"


def advice(config: Config, sent: str) -> str:
    """Which setting would lower the exchange's share of a step. sent: the result of `wire`."""
    if sent == "none":
        return "communication.compression=bf16 halves the bytes"
    return f"a larger tokens_per_step than {config.tokens_per_step} exchanges less often"


class Share:
    """The exchange's part of this worker's steps so far. One slow step among many is no reason for advice."""

    def __init__(self, advice: str) -> None:
        self._advice, self._told = advice, False
        self._waited = self._whole = 0.0
        self._begun = False

    def add(self, waited: float, whole: float, log_it: bool) -> str:
        """The advice if the part is NOTABLE, else nothing; the first log step, which warms caches up, does not count.

        Seconds of a step, `whole` of which `waited` for the exchange. With `log_it` the log tells it once.
        """
        if not self._begun:
            self._begun = True
            return ""
        self._waited, self._whole = self._waited + waited, self._whole + whole
        share = self._waited / self._whole if self._whole else 0.0
        if share < NOTABLE:
            return ""
        if log_it and not self._told:
            log.warn("exchange_slow", share=round(share, 3), advice=repr(self._advice))
        self._told = True
        return self._advice


def ring_bytes(size: int, world: int) -> int:
    """Bytes that each worker sends in a ring all-reduce of `size` bytes, as gloo and NCCL do it."""
    return round(2 * size * (world - 1) / world)


class Clock:
    """Adds up spans of time: on the host's clock, or between events in the accelerator's stream, without a wait."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._open: Any = None
        self._spans: list[tuple[Any, Any]] = []

    def begin(self) -> None:
        self._open = self._now()

    def end(self) -> None:
        if self._open is not None:
            self._spans.append((self._open, self._now()))
            self._open = None

    def take(self) -> float:
        """Sum of the spans since the last call, in seconds. It waits for the device: call it at log steps only."""
        if self._cuda and self._spans:
            self._spans[-1][1].synchronize()
        seconds = sum(a.elapsed_time(b) / 1000 if self._cuda else b - a for a, b in self._spans)
        self._spans = []
        return seconds

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

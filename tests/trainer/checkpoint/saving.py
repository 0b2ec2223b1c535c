"""A tiny model that saves checkpoints, and forks of a process that die meanwhile."""

from __future__ import annotations

import functools
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

from trainer.checkpoint.format import Snapshot
from trainer.checkpoint.saver import Saver
from trainer.config.settings import Checkpoint as Settings

SIZE: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}


class Training:
    """A tiny model and its optimizer."""

    def __init__(self, seed: int, vocabulary: int = 500) -> None:
        torch.manual_seed(seed)
        ends: dict[str, Any] = {"bos_token_id": vocabulary - 1, "eos_token_id": vocabulary - 1}
        self.net = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, **SIZE, **ends))
        self.adam = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.names = {id(parameter): name for name, parameter in self.net.named_parameters()}

    def step(self) -> Training:
        tokens = torch.randint(0, 500, (2, 16))
        self.net(tokens, labels=tokens).loss.backward()
        self.adam.step()
        self.adam.zero_grad()
        return self

    def snapshot(self, **figures: Any) -> Snapshot:
        state = {self.names[id(parameter)]: part for parameter, part in self.adam.state.items()}
        return Snapshot(self.net.state_dict(), state, {"scaler": {"scale": 8.0}}, figures)

    def write_model(self, weights: dict[str, torch.Tensor], folder: Path) -> None:
        self.net.save_pretrained(folder, state_dict=weights)


@functools.cache
def trained(seed: int) -> Training:
    """For those who only read it."""
    return Training(seed).step()


def killed_while_saving(run: Path, at: int = 0, largest: int = 0) -> bool:
    """Whether a fork of this process died while it saved step 20. Call it where no other threads run."""
    training = trained(2)
    child = os.fork()
    if child == 0:
        try:
            save_and_die(str(run), training, at, largest)
        finally:
            os._exit(1)  # an error, which this process must not carry on into its parent's work
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL, -signal.SIGXFSZ)
    return code != 0


def save_and_die(run: str, training: Training, at: int, largest: int) -> NoReturn:
    """Save step 20 and die: at the at-th write (a file opened, renamed or deleted, a folder made, an fsync), or in the
    middle of the write that takes a file over `largest` bytes."""
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(name: str, arguments: tuple[Any, ...]) -> None:
        writes = (
            name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        changes = name in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.copyfile", "shutil.rmtree")
        if (writes or changes) and run in " ".join(str(argument) for argument in arguments):
            tick()

    real = os.fsync
    saver = Saver(Path(run), Settings(keep=1), training.write_model, "")
    sys.addaudithook(watch)
    os.fsync = lambda descriptor: (tick(), real(descriptor))[1]  # pyrefly: ignore[bad-assignment]
    if largest:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and gets an error instead
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    saver.save(20, training.snapshot())
    saver.wait()
    os._exit(0)

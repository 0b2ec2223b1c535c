"""Shared by the trainer's benchmarks: options, data, a training of which only the steps are measured, and clocks."""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.batches import INDEX, VERSION
from trainer.files import sha256, write_json

SAMPLE = Path(__file__).parents[2] / "trainer" / "sample" / "opticks.txt"
LEARNT = 8000
"""Tokens that occur in the dataset, whose text has 600,000 characters."""
QUIET = {
    "evaluation.every": 0,
    "evaluation.batches": 1,
    "evaluation.sample_tokens": 0,
    "checkpoint.every_steps": 0,
    "checkpoint.every_minutes": 0,
    "metrics.every": 1,
    "metrics.tensorboard": "false",
}
"""Settings of a training of which only the steps are measured."""


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Make a parser with --device and --tiny."""
    made = argparse.ArgumentParser(prog=f"python -m bench.trainer.{module}", description=description)
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    made.add_argument("--tiny", action="store_true", help="rehearse an accelerator's run with small inputs")
    return made


def command(module: str, options: argparse.Namespace) -> str:
    """Say which command wrote a page."""
    return f"Written by `python -m bench.trainer.{module} --device {options.device}`"


def accelerator(device: str) -> str:
    """Return the end of the line that describes the machine: the accelerator, empty for a CPU."""
    if device == "cpu":
        return ""
    import torch

    return f"; {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def train(settings: dict[str, Any], environment: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Run a training with these settings on top of QUIET. Yield each line that it prints, and its CPU seconds by then.

    Raises CalledProcessError, with all that it printed."""
    command = [sys.executable, "-m", "trainer.train", *(f"{key}={value}" for key, value in (QUIET | settings).items())]
    said: list[str] = []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            said.append(line)
            yield line, processor_seconds(process.pid)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, "".join(said), "")


def dataset(folder: Path, vocabulary: int = 50257, characters: int = 600_000) -> str:
    """Write the sample text as a dataset with a vocabulary as large as GPT-2's; a tenth of it is for validation.

    This does not need the tokenizer package of trainer.prepare. Speed depends on the size of the vocabulary, not on its
    words: the tokenizer is trained on the sample, and padded with words that never occur.
    """
    from tokenizers import Tokenizer
    from tokenizers.implementations.byte_level_bpe import ByteLevelBPETokenizer

    from trainer.data.tokenizer import END_OF_TEXT, FILE, end_of_text

    text = SAMPLE.read_text("utf-8")[:characters]
    learnt = ByteLevelBPETokenizer()
    words = min(LEARNT, vocabulary)
    learnt.train_from_iterator(iter([text]), words, special_tokens=[END_OF_TEXT], show_progress=False)
    tokens = np.array(learnt.encode(text).ids, dtype=np.uint16)
    whole = Tokenizer.from_str(learnt.to_str())
    whole.add_tokens([f"<unused {number}>" for number in range(vocabulary - whole.get_vocab_size())])
    folder.mkdir(parents=True, exist_ok=True)
    whole.save(str(folder / FILE))
    held_out = len(tokens) // 10
    splits = {}
    for name, part in (("validation", tokens[:held_out]), ("train", tokens[held_out:])):
        file = folder / f"{name}.bin"
        part.tofile(file)
        splits[name] = {"shards": [{"file": file.name, "tokens": len(part), "sha256": sha256(file)}]}
    index = {"version": VERSION, "dtype": "uint16", "vocabulary": (size := whole.get_vocab_size()), "largest": size - 1}
    write_json(folder / INDEX, index | {"end_of_text": end_of_text(whole), "splits": splits})
    return str(folder)


def processor_seconds(process: int) -> float:
    """Return the user and system CPU seconds of all threads of a process so far (proc(5))."""
    fields = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_seconds() -> float:
    """Return the CPU seconds of the processes that this one has waited for."""
    return sum(os.times()[2:4])

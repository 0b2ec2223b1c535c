"""Tokens and time of two recipes to one loss: `python -m bench.trainer.recipe [FOLDER] [--size 3M]`.

Each run is a `python -m trainer.train` of one thread from scratch, as many at a time as there are processors: a GPT-2
with recipe gpt2, or a Qwen3 with as many parameters with recipe modern, on the same text. Three learning rates of each
are tried, and the best again with another seed. The modern runs get a part of the tokens: what a run has reached before
its rate has fallen says little. A run that has ended is kept beside the page and not made again, so that the table can
be completed in several sittings, on several machines.

Text: three Debian packages (dict-gcide, python3.11-doc, linux-doc-6.1), 72 MB of English, in documents of 5 kB. On an
accelerator (`make gpu STAGE=recipe`) GPT-2 small and modern-small are trained on it, without a network: carry the
folder there that `python -m bench.trainer.recipe --vocabulary GPT-2 --minutes 0` makes.
"""

import argparse
import fcntl
import gzip
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import page
from bench.trainer import recipe_table, setup
from bench.trainer.prepare import cut, dictionary, package, write_lines
from trainer.config.presets import PRESETS, Preset
from trainer.files import read_json, write_atomic, write_json

FOLDER = Path(__file__).parents[2] / ".local" / "recipe"
PACKAGES = ("python3.11-doc", "linux-doc-6.1")
"""Debian packages whose sources of documentation are read, beside dict-gcide."""
VOCABULARIES = {"8192": ("train:8192", 8192), "GPT-2": ("gpt2", 50_257)}
"""--tokenizer of trainer.prepare, and its size."""
SMALL = 256
"""Tokens of a window at the sizes that a processor trains."""
SIZES = {
    "3M": (Preset(5, 5, 160, SMALL), Preset(5, 5, 160, SMALL, "qwen3", 432)),
    "10M": (Preset(6, 5, 320, SMALL), Preset(6, 5, 320, SMALL, "qwen3", 864)),
    "30M": (Preset(8, 8, 512, SMALL), Preset(8, 8, 512, SMALL, "qwen3", 1376)),
    "124M": (PRESETS["small"], PRESETS["modern-small"]),
    "tiny": (PRESETS["tiny"], PRESETS["modern-micro"]),
}
"""Parameters (with 8,192 words, at 124M with GPT-2's) -> the two models."""
LARGE, TINY = "124M", "tiny"
"""The sizes on an accelerator, and in a rehearsal."""
ORDINARY = ("3M", "10M", "30M")
TOKENS_PER_STEP = {"3M": 4096, "10M": 8192, "30M": 16_384, LARGE: 131_072, TINY: 64}
STEPS = {"3M": 600, "10M": 300, "30M": 150, LARGE: 600, TINY: 10}
"""With recipe gpt2: 2.5 M tokens, at 124M 79 M. A larger model gets larger steps: Muon's products take as long as those
of 2,000 tokens at 30M."""
RATES = {
    "gpt2": {"3M": (1.5e-3, 3e-3, 6e-3), "10M": (0.75e-3, 1.5e-3, 3e-3), "30M": (0.375e-3, 0.75e-3, 1.5e-3)},
    "modern": dict.fromkeys(ORDINARY, (0.01, 0.02, 0.04)),
}
"""The best of the three is to lie between the others: AdamW's falls as the model grows."""
LARGE_RATES = {"gpt2": 1e-3, "modern": 0.02}
PARTS = {"gpt2": (1.0,), "modern": (0.25, 0.4)}
"""Of those steps; the aim is 0.4. On the line between two of them lies what gpt2's loss needs."""
SEEDS = (1337, 1338)
ABLATED = ("3M", "8192")
OTHERWISE: dict[str, dict[str, Any]] = {
    "GPT-2's network": {},
    "AdamW for all": {"optimizer.name": "adamw"},
    "cosine to a tenth": {"optimizer.schedule": "cosine", "optimizer.final_fraction": 0.1},
    "half the batch": {"tokens_per_step": TOKENS_PER_STEP["3M"] // 2},
}
"""What an ablation changes, one line of the recipe each. A batch that grows gains at most what half of it gains, which
makes twice as many steps of the same tokens."""


@dataclass(frozen=True, order=True)
class Trial:
    size: str
    vocabulary: str
    recipe: str
    part: float
    rate: float
    seed: int
    otherwise: str = ""

    @property
    def name(self) -> str:
        return "-".join(str(value) for value in asdict(self).values() if value != "").replace(" ", "-").replace("'", "")

    @property
    def tokens(self) -> int:
        return round(STEPS[self.size] * self.part) * TOKENS_PER_STEP[self.size]

    @property
    def steps(self) -> int:
        return self.tokens // OTHERWISE.get(self.otherwise, {}).get("tokens_per_step", TOKENS_PER_STEP[self.size])

    def settings(self, folder: Path) -> dict[str, Any]:
        old, new = SIZES[self.size]
        preset = new if self.recipe == "modern" and self.otherwise != "GPT-2's network" else old
        length = 16 if self.size == TINY else min(preset.positions, 1024)
        shape = folder / f"{self.name}.json"
        write_json(shape, preset.document(VOCABULARIES[self.vocabulary][1], length))
        return {
            "recipe": self.recipe,
            "model.config": shape,
            "data.directory": folder / self.vocabulary,
            "run.directory": folder / self.name,
            "run.seed": self.seed,
            "steps": self.steps,
            "tokens_per_step": TOKENS_PER_STEP[self.size],
            "sequence_length": length,
            "evaluation.batches": 32,
            "metrics.every": 20,
            "metrics.attention_statistics": "false",
            "optimizer.learning_rate": self.rate,
            "optimizer.warmup_steps": self.steps // 10,
            **OTHERWISE.get(self.otherwise, {}),
        }


@dataclass(frozen=True)
class Result:
    bits: float
    """Validation bits per byte at the end."""
    seconds: float
    """Of the steps alone: processor seconds, on an accelerator wall seconds."""
    tokens_per_second: float
    mfu: float | None
    """Of an accelerator whose peak is known."""
    machine: str
    """With date and versions."""


def main(arguments: list[str] | None = None) -> int:
    parser = setup.parser("recipe", __doc__)
    where = "where text, data and runs stay; default: .local/recipe"
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help=where)
    parser.add_argument("--size", choices=ORDINARY, action="append", help="on processors; default: all")
    parser.add_argument("--vocabulary", choices=VOCABULARIES, default="8192", help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after so many")
    options = parser.parse_args(arguments)
    options.folder /= "rehearsal" if options.tiny else ""
    until = time.monotonic() + 60 * options.minutes
    options.folder.mkdir(parents=True, exist_ok=True)
    file = page.results(options.tiny) / f"recipe{'_cuda' if options.device == 'cuda' else ''}.json"
    if options.tiny:  # what an earlier rehearsal has made says nothing of this one
        file.unlink(missing_ok=True)
    runs = made(file)
    for trials in sittings(options, runs):
        run(trials, runs, options.folder, file, until)
    if runs:
        print(recipe_table.write(runs, file.with_suffix(".md"), setup.command("recipe", options)))
    return 0


def sittings(options: argparse.Namespace, runs: Mapping[Trial, Result]) -> Iterator[list[Trial]]:
    """Yield what is to be run; each list depends on the results of those before it."""
    folder = options.folder
    if options.device == "cuda" or options.tiny:
        if options.tiny:
            setup.dataset(folder / "GPT-2", characters=60_000)
        prepare(folder, "GPT-2")
        for recipe, parts in PARTS.items():
            yield [Trial(TINY if options.tiny else LARGE, "GPT-2", recipe, parts[0], LARGE_RATES[recipe], SEEDS[0])]
        return
    prepare(folder, options.vocabulary)
    for size in options.size or ORDINARY:
        for recipe, parts in PARTS.items():
            tried = [Trial(size, options.vocabulary, recipe, parts[0], rate, SEEDS[0]) for rate in RATES[recipe][size]]
            yield tried
            best = min(tried, key=lambda trial: runs[trial].bits if trial in runs else math.inf)
            yield [replace(best, seed=SEEDS[1]), *(replace(best, part=part) for part in parts[1:])]
            if recipe == "modern" and (size, options.vocabulary) == ABLATED:
                yield [
                    replace(best, otherwise=name, rate=rate)
                    for name, changes in OTHERWISE.items()
                    for rate in ((best.rate,) if "optimizer.name" not in changes else RATES["gpt2"][size])
                ]


def run(trials: Iterable[Trial], runs: dict[Trial, Result], folder: Path, file: Path, until: float) -> None:
    """Make the runs that are not there, on processors one thread each, as many at a time as there are."""

    def one(trial: Trial) -> None:
        if trial not in runs and time.monotonic() < until:
            found = train(trial, folder)
            print(f"{trial.name}: {found}", flush=True)
            runs.update(keep({trial: found}, file))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(one, trials))


def train(trial: Trial, folder: Path) -> Result:
    """Run one to its end. Raises SystemExit if it fails."""
    run, large = folder / trial.name, trial.size == LARGE
    shutil.rmtree(run, ignore_errors=True)  # what an earlier sitting has begun
    spent: dict[int, float] = {}
    """At the first line about a step: from the first validation to the last step, which comes before the last one."""
    environment = os.environ | ({} if large else {"OMP_NUM_THREADS": "1"})
    try:
        for line, seconds in setup.train(trial.settings(folder), environment):
            if told := re.match(r"step=(\d+) ", line):
                spent.setdefault(int(told[1]), time.monotonic() if large else seconds)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{trial.name} ended with code {error.returncode}: {error.stdout[-3000:]}") from None
    done, lines = read_json(run / "DONE") or {}, (run / "metrics.jsonl").read_text("utf-8").splitlines()
    figures = [line for line in map(json.loads, lines) if "tokens_per_second" in line]
    speed = statistics.median(line["tokens_per_second"] for line in figures)
    machine = page.describe("torch", "transformers") + setup.accelerator("cuda" if large else "cpu")
    return Result(float(done["bits_per_byte"]), spent[trial.steps] - spent[0], speed, figures[-1].get("mfu"), machine)


def made(file: Path) -> dict[Trial, Result]:
    """All runs that are there."""
    found = json.loads(file.read_text("utf-8")) if file.exists() else []
    return {Trial(**each["trial"]): Result(**each["result"]) for each in found}


def keep(runs: dict[Trial, Result], file: Path) -> dict[Trial, Result]:
    """Add runs to those that are there, a line each; return all. Two benches may do so at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        kept = made(file) | runs
        lines = [json.dumps({"trial": asdict(trial), "result": asdict(kept[trial])}) for trial in sorted(kept)]
        write_atomic(file, "[\n" + ",\n".join(lines) + "\n]\n")
    finally:
        os.close(folder)
    return kept


def prepare(folder: Path, vocabulary: str) -> None:
    """Make the text and its tokens, if they are not there."""
    text, output = folder / "documents.jsonl", folder / vocabulary
    if (output / "index.json").exists():
        return
    if not text.exists():
        write_lines(text, list(documents(folder)))
    command = [sys.executable, "-m", "trainer.prepare", "--input", str(text), "--output", str(output)]
    command += ["--tokenizer", VOCABULARIES[vocabulary][0], "--validation-fraction", "0.01"]
    subprocess.run(command, check=True)


def documents(folder: Path) -> Iterator[str]:
    yield from cut(dictionary(folder).decode("utf-8", "ignore"))
    for name in PACKAGES:
        for path in sorted(package(name, folder).glob("usr/share/doc/**/_sources/**/*.txt*")):
            if path.is_file() and not path.is_symlink():
                content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
                text = content.decode("utf-8", "ignore")
                yield from cut(text) or [text]


if __name__ == "__main__":
    sys.exit(main())

"""Tokens and processor seconds of two recipes to one loss: `python -m bench.trainer.recipe FOLDER [--size 3M]`.

Each run is a `python -m trainer.train` of one thread from scratch, as many at a time as there are processors: a GPT-2
with recipe gpt2, or a Qwen3 with as many parameters with recipe modern, on the same text. Three learning rates of each
are tried, and the best again with another seed. The modern runs get a part of the tokens: what a run has reached before
its rate has fallen says little. A run that has ended stays in FOLDER and is not made again, so that the table can be
completed in several sittings; the page shows all runs that are there.

Text: three Debian packages (dict-gcide, python3.11-doc, linux-doc-6.1), 72 MB of English, in documents of 5 kB.
"""

import argparse
import gzip
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import page
from bench.trainer import setup
from bench.trainer.prepare import cut, dictionary, write_lines
from trainer.config.presets import Preset
from trainer.config.settings import DEFAULTS
from trainer.files import read_json, write_json

PACKAGES = ("python3.11-doc", "linux-doc-6.1")
"""Debian packages whose sources of documentation are read, beside dict-gcide."""
LENGTH = 256
RESULT = "result.json"
VOCABULARIES = {"8192": ("train:8192", 8192), "GPT-2": ("gpt2", 50_257)}
"""--tokenizer of trainer.prepare, and its size."""
SIZES = {"3M": (5, 5, 160, 432), "10M": (6, 5, 320, 864), "30M": (8, 8, 512, 1376)}
"""Layers, heads, width, and the inner width of the gated MLP; parameters with 8,192 words."""
TOKENS_PER_STEP = {"3M": 4096, "10M": 8192, "30M": 16_384}
STEPS = 600
"""With recipe gpt2."""
RATES = {"gpt2": (1.5e-3, 3e-3, 6e-3), "modern": (0.01, 0.02, 0.04)}
PARTS = {"gpt2": (1.0,), "modern": (0.4, 0.6)}
"""Of those steps: the aim, and the least that is to be saved."""
SEEDS = (1337, 1338)
RECIPE = DEFAULTS["recipes"]["modern"]["optimizer"]
OTHERWISE: dict[str, dict[str, Any]] = {
    "GPT-2's network": {},
    "AdamW for all": {"optimizer.name": "adamw"},
    "cosine to a tenth": {"optimizer.schedule": "cosine", "optimizer.final_fraction": 0.1},
    "no first products of zero": {"recipe": "gpt2", **{f"optimizer.{key}": value for key, value in RECIPE.items()}},
}
"""What an ablation changes, one line of the recipe each."""
ABLATED = ("3M", "8192")


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
    def steps(self) -> int:
        return round(STEPS * self.part)

    @property
    def tokens(self) -> int:
        return self.steps * TOKENS_PER_STEP[self.size]

    def settings(self, folder: Path) -> dict[str, Any]:
        modern = self.recipe == "modern" and self.otherwise != "GPT-2's network"
        layers, heads, width, inner = SIZES[self.size]
        preset = (
            Preset(layers, heads, width, LENGTH, "qwen3", inner) if modern else Preset(layers, heads, width, LENGTH)
        )
        shape = folder / f"{preset.architecture}-{self.size}-{self.vocabulary}.json"
        write_json(shape, preset.document(VOCABULARIES[self.vocabulary][1], LENGTH))
        return {
            **{key: value for key, value in setup.QUIET.items() if not key.startswith(("evaluation", "metrics.every"))},
            "recipe": self.recipe,
            "model.config": shape,
            "data.directory": folder / self.vocabulary,
            "run.directory": folder / self.name,
            "run.seed": self.seed,
            "steps": self.steps,
            "tokens_per_step": TOKENS_PER_STEP[self.size],
            "sequence_length": LENGTH,
            "evaluation.every": self.steps,
            "evaluation.batches": 32,
            "evaluation.sample_tokens": 0,
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
    """Processor seconds of the steps alone."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.trainer.recipe", description=__doc__)
    parser.add_argument("folder", type=Path, help="where text, data and runs stay between two sittings")
    parser.add_argument("--size", choices=SIZES, action="append", help="only this; may be given twice; default: all")
    parser.add_argument("--vocabulary", choices=VOCABULARIES, default="8192", help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after so many")
    parser.add_argument("--page", action="store_true", help="make no run, write the page of those that are there")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * options.minutes
    if not options.page:
        prepare(options.folder, options.vocabulary)
        for size in options.size or SIZES:
            for trials in sittings(size, options.vocabulary, options.folder):
                run(trials, options.folder, until)
    print(write(options.folder))
    return 0


def sittings(size: str, vocabulary: str, folder: Path) -> Iterator[list[Trial]]:
    """Yield what is to be run; each list depends on the results of those before it."""
    for recipe, parts in PARTS.items():
        tried = [Trial(size, vocabulary, recipe, parts[0], rate, SEEDS[0]) for rate in RATES[recipe]]
        yield tried
        best = min(tried, key=lambda trial: bits(trial, folder))
        yield [replace(best, seed=SEEDS[1]), *(replace(best, part=part) for part in parts[1:])]
        if recipe == "modern" and (size, vocabulary) == ABLATED:
            yield [
                replace(best, otherwise=name, rate=rate)
                for name, changes in OTHERWISE.items()
                for rate in ((best.rate,) if "optimizer.name" not in changes else RATES["gpt2"])
            ]


def run(trials: Iterable[Trial], folder: Path, until: float) -> None:
    """Make the runs that are not there, one thread each, as many at a time as there are processors."""

    def one(trial: Trial) -> None:
        if result(trial, folder) is None and time.monotonic() < until:
            print(f"{trial.name}: {train(trial, folder)}", flush=True)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(one, trials))


def train(trial: Trial, folder: Path) -> Result:
    """Run one to its end. Raises SystemExit if it fails."""
    command = setup.train(trial.settings(folder))
    metrics = folder / trial.name / "metrics.jsonl"
    spent: dict[str, float] = {}
    with (folder / f"{trial.name}.log").open("w") as log:
        process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)
        while process.poll() is None:
            time.sleep(0.1)
            last = metrics.read_text("utf-8").splitlines()[-1:] if metrics.exists() else []
            for line in map(json.loads, last):  # the first validation, and the last step before the last one
                moment = {0: "began", trial.steps: "ended"}.get(line["step"])
                if moment and moment not in spent:
                    spent[moment] = setup.processor_seconds(process.pid)
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with code {process.returncode}: {log.name}")
    done = read_json(folder / trial.name / "DONE") or {}
    found = Result(float(done["bits_per_byte"]), spent["ended"] - spent["began"])
    write_json(folder / trial.name / RESULT, asdict(trial) | asdict(found))
    return found


def result(trial: Trial, folder: Path) -> Result | None:
    """What a run has given; None: it has not been made."""
    found = read_json(folder / trial.name / RESULT)
    return Result(found["bits"], found["seconds"]) if found else None


def bits(trial: Trial, folder: Path) -> float:
    found = result(trial, folder)
    return found.bits if found else math.inf


def prepare(folder: Path, vocabulary: str) -> None:
    """Make the text and its tokens, if they are not there."""
    text, output = folder / "documents.jsonl", folder / vocabulary
    if not text.exists():
        write_lines(text, list(documents(folder)))
    if not (output / "index.json").exists():
        command = [sys.executable, "-m", "trainer.prepare", "--input", str(text), "--output", str(output)]
        command += ["--tokenizer", VOCABULARIES[vocabulary][0], "--validation-fraction", "0.01"]
        subprocess.run(command, check=True)


def documents(folder: Path) -> Iterator[str]:
    yield from cut(dictionary(folder).decode("utf-8", "ignore"))
    for package in PACKAGES:
        subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True, stderr=subprocess.DEVNULL)
        subprocess.run(["dpkg-deb", "-x", next(folder.glob(f"{package}_*.deb")), folder / package], check=True)
        for path in sorted(folder.glob(f"{package}/usr/share/doc/**/_sources/**/*.txt*")):
            if path.is_file() and not path.is_symlink():
                content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
                text = content.decode("utf-8", "ignore")
                yield from cut(text) or [text]


def made(folder: Path) -> dict[Trial, Result]:
    """All runs that are there."""
    found: dict[Trial, Result] = {}
    for path in sorted(folder.glob(f"*/{RESULT}")):
        values = json.loads(path.read_text("utf-8"))
        given = {key: values.pop(key) for key in Trial.__dataclass_fields__}
        found[Trial(**given)] = Result(**values)
    return found


def best_ends(runs: dict[Trial, Result], size: str, vocabulary: str, recipe: str) -> dict[float, Result]:
    """Part of the tokens -> means over the seeds at the rate that is best with the first seed."""
    found: dict[float, Result] = {}
    for part in PARTS[recipe]:
        same = [t for t in runs if (t.size, t.vocabulary, t.recipe, t.part) == (size, vocabulary, recipe, part)]
        first = [trial for trial in same if trial.seed == SEEDS[0] and not trial.otherwise]
        if first:
            best = min(first, key=lambda trial: runs[trial].bits)
            means = [runs[other] for seed in SEEDS if (other := replace(best, seed=seed)) in runs]
            found[part] = Result(
                *(statistics.mean(getattr(each, key) for each in means) for key in ("bits", "seconds"))
            )
    return found


def needed(ends: dict[float, Result], goal: float) -> float:
    """The part of the tokens at which recipe modern reaches the goal: on the line through its ends, in log tokens."""
    (early, first), *rest = sorted(ends.items())
    if not rest:
        return early if first.bits <= goal else math.nan
    late, last = rest[-1]
    slope = (last.bits - first.bits) / math.log(late / early)
    return early * math.exp((goal - first.bits) / slope)


def write(folder: Path) -> str:
    """Write the page of all runs that are there, and return it."""
    runs, rows, points = made(folder), list[Sequence[object]](), list[tuple[float, float]]()
    for size in SIZES:
        for vocabulary in VOCABULARIES:
            theirs, ours = (best_ends(runs, size, vocabulary, recipe) for recipe in PARTS)
            if not theirs or not ours:
                continue
            whole = theirs[1.0]
            part = needed(ours, whole.bits)
            one = next(iter(ours))
            step = ours[one].seconds / one / whole.seconds
            reached = [f"{ours[each].bits:.3f}" if each in ours else None for each in PARTS["modern"]]
            tokens = STEPS * TOKENS_PER_STEP[size]
            rows.append(
                (
                    size,
                    vocabulary,
                    f"{tokens / 1e6:.1f} M",
                    f"{whole.bits:.3f}",
                    *reached,
                    f"{part:.2f}x",
                    f"{part * step:.2f}x",
                    f"{step:.2f}x",
                )
            )
            if vocabulary == "8192":
                points.append((float(size.removesuffix("M")), part))
    lines = [
        (trial.otherwise or "the recipe", f"{runs[trial].bits:.3f}", f"{trial.rate:g}")
        for trial in sorted(runs)
        if (trial.size, trial.vocabulary) == ABLATED
        and trial.recipe == "modern"
        and trial.part == PARTS["modern"][0]
        and trial.seed == SEEDS[0]
    ]
    everything = [
        (
            *(value or None for value in asdict(trial).values()),
            f"{trial.tokens / 1e6:.2f} M",
            f"{found.bits:.4f}",
            f"{found.seconds:.0f}",
        )
        for trial, found in sorted(runs.items())
    ]
    return page.write(
        page.results() / "recipe.md",
        "# The same loss by two recipes",
        "Written by `python -m bench.trainer.recipe FOLDER`.",
        page.describe("torch", "transformers"),
        "In bits per byte of held-out text; means over the seeds at the best of three rates.",
        page.table(
            (
                "parameters",
                "words",
                "tokens of gpt2",
                "gpt2 ends at",
                *(f"modern at {each:g} of them" for each in PARTS["modern"]),
                "tokens to gpt2's end",
                "processor seconds to it",
                "a token's time",
            ),
            rows,
        ),
        f"The recipe at {ABLATED[0]}, and without one of its lines each:",
        page.table(("", "bits per byte", "rate"), lines),
        predicted(points),
        "All runs:",
        page.table((*Trial.__dataclass_fields__, "tokens", "bits per byte", "processor seconds"), everything),
    )


def predicted(points: list[tuple[float, float]]) -> str:
    """The part of the tokens at 124M, on the line through the sizes in the logarithm of the parameters."""
    if len(points) < 2:
        return ""
    slope, start = statistics.linear_regression(*zip(*((math.log(size), part) for size, part in points), strict=True))
    return f"The line through the sizes predicts {start + slope * math.log(124):.2f}x of the tokens at 124M."


if __name__ == "__main__":
    sys.exit(main())

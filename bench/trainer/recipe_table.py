"""The page with recipe.py's figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench import page
from trainer.config.memory import of_preset

if TYPE_CHECKING:
    from bench.trainer.recipe import Result, Trial


def write(runs: Mapping[Trial, Result], path: Path, command: str) -> str:
    rows: list[tuple[object, ...]] = []
    parts: dict[float, float] = {}
    for size, vocabulary in dict.fromkeys((trial.size, trial.vocabulary) for trial in sorted(runs, key=_order)):
        theirs, ours = (best_ends(runs, size, vocabulary, recipe) for recipe in ("gpt2", "modern"))
        if not theirs or not ours:
            continue
        [(_, (whole, tokens))] = theirs.items()
        part = needed(ours, whole.bits)
        step = sum(found.seconds for found, _ in ours.values()) / sum(ours) / whole.seconds
        reached = ", ".join(f"{each:g}: {found.bits:.3f}" for each, (found, _) in sorted(ours.items()))
        ends = size, vocabulary, f"{tokens / 1e6:.1f} M", f"{whole.bits:.3f}", reached
        told = ("unknown", "unknown") if math.isnan(part) else (f"{part:.2f}x", f"{part * step:.2f}x")
        rows.append((*ends, *told, f"{step:.2f}x"))
        if vocabulary == "8192" and not math.isnan(part):
            parts[float(size.removesuffix("M"))] = part
    shape = of_preset("modern-small")
    memory = (4 * (shape.parameters - shape.outer) + 8 * shape.outer) / (8 * shape.parameters)
    ablations = sorted((found.bits, trial) for trial, found in runs.items() if _ablation(trial, runs))
    without = [(trial.otherwise or "the recipe", f"{trial.rate:g}", f"{bits:.3f}") for bits, trial in ablations]
    everything = [
        (
            *(value or None for value in asdict(trial).values()),
            f"{trial.tokens / 1e6:.2f} M",
            f"{found.bits:.4f}",
            f"{found.seconds:.0f}",
            f"{found.tokens_per_second:,.0f}",
            f"{found.mfu:.3f}" if found.mfu else None,
        )
        for trial, found in sorted(runs.items(), key=lambda item: _order(item[0]))
    ]
    columns = ("parameters", "words", "tokens of gpt2", "gpt2 ends at", "modern ends at, by its part of them")
    figures = ("part", "rate", "seed", "without", "tokens", "bits per byte", "seconds", "tokens/s", "MFU")
    return page.write(
        path,
        "# The same loss by two recipes",
        f"{command}.",
        sorted({f"- {found.machine}" for found in runs.values()}),
        "Losses are bits per byte of held-out text, means over the seeds at the best of the rates. What modern needs "
        "for the loss at which gpt2 ends lies on the line through its own ends, in the logarithm of the tokens. "
        "Seconds are those of a processor, without start and validation; on an accelerator those of the clock. "
        "The time of a token is that of all of modern's runs by that of gpt2's.",
        page.table((*columns, "tokens to gpt2's end", "seconds to it", "time of a token"), rows),
        f"Optimizer memory of modern-small: {memory:.2f}x of AdamW's, by arithmetic.",
        predicted(parts),
        "The recipe, and what it reaches without one of its lines, from the same tokens:" if without else "",
        page.table(("", "rate", "bits per byte"), without) if without else "",
        "All runs:",
        page.table(("parameters", "words", "recipe", *figures), everything),
    )


def best_ends(runs: Mapping[Trial, Result], size: str, vocabulary: str, recipe: str) -> dict[float, tuple[Result, int]]:
    """Part of the tokens -> means over the seeds at the rate that is best with the first seed, and the tokens."""
    found: dict[float, tuple[Result, int]] = {}
    kind = [t for t in runs if (t.size, t.vocabulary, t.recipe, t.otherwise) == (size, vocabulary, recipe, "")]
    for part in sorted({trial.part for trial in kind}):
        best = min((trial for trial in kind if trial.part == part), key=lambda trial: runs[trial].bits)
        same = [runs[trial] for trial in kind if replace(trial, seed=best.seed) == best]
        bits, seconds = (statistics.mean(getattr(each, key) for each in same) for key in ("bits", "seconds"))
        found[part] = replace(runs[best], bits=bits, seconds=seconds), best.tokens
    return found


def needed(ends: Mapping[float, tuple[Result, int]], goal: float) -> float:
    """The part of the tokens at which recipe modern reaches the goal; nan where a single end does not tell."""
    (early, (first, _)), *rest = sorted(ends.items())
    if not rest:
        return early if first.bits <= goal else math.nan
    late, (last, _) = rest[-1]
    slope = (last.bits - first.bits) / math.log(late / early)
    return early * math.exp((goal - first.bits) / slope)


def predicted(parts: Mapping[float, float]) -> str:
    """The part of the tokens at 124M, on the line through the sizes in the logarithm of the parameters."""
    if len(parts) < 2:
        return "One size alone predicts nothing of others."
    slope, start = statistics.linear_regression([math.log(size) for size in parts], list(parts.values()))
    return f"The line through {len(parts)} sizes predicts {start + slope * math.log(124):.2f}x of the tokens at 124M."


def _ablation(trial: Trial, runs: Mapping[Trial, Result]) -> bool:
    """Whether it is one of an ablation's runs, or the whole recipe beside them."""
    return bool(trial.otherwise) or any(
        replace(other, otherwise="", rate=trial.rate) == trial for other in runs if other.otherwise
    )


def _order(trial: Trial) -> tuple[object, ...]:
    size = trial.size.removesuffix("M")
    return float(size) if size.isdecimal() else 0.0, *list(asdict(trial).values())[1:]

"""The page with speed.py's figures."""

from collections.abc import Iterator
from typing import Any

from bench import page
from bench.trainer.peers import BIASED
from trainer.config.memory import of_preset
from trainer.config.settings import Config
from trainer.config.speed import flops_per_token, peak_of

GOAL_PEER, GOAL_PEER_CUDA = 1.15, 1.1
GOALS = {"small": 0.45, "medium": 0.55, "tiny": 0.0}
"""MFU by the data sheet of one H200, bf16 at 1024 tokens. A rehearsal has no goal."""
GOAL_TOKENS = 540_000
PEERS = ("loop", "nanoGPT", BIASED, "Trainer")


def parts(figures: dict[str, Any], command: str, accelerator: bool = False) -> list[str | list[str]]:
    machines = sorted({figure["machine"] for figure in figures.values()})
    if accelerator:
        return _accelerators(figures, command, machines)
    order = sorted(figures.values(), key=lambda f: (*_group(f), -_rate(f)))
    columns = ("precision", "micro-batch", "program", "mode", "tokens/s", "s/step", "of steps")
    rows = (
        [
            *(figure[key] for key in ("precision", "micro_batch", "program")),
            _mode(figure),
            f"{_rate(figure):,.0f}",
            f"{figure['seconds']:.2f}",
            _spread(figure["steps"]),
            f"{figure['cpu']:.2f}",
            figure.get("first_step"),
            figure["machine"][:10],
        ]
        for figure in order
    )
    verdicts = (row for machine in machines for row in _verdicts([f for f in order if f["machine"] == machine]))
    return [
        "# Training speed, GPT-2 124M, sequence 1024",
        f"{command}. Tokens/s of whole optimizer steps of 4,096 tokens: the median of the steps after the first; "
        "beside it their number, the fastest and the slowest. Compare within one day: figures of shared machines move "
        "by tens of per cent from hour to hour.",
        [f"- {machine}" for machine in machines],
        "ours: `python -m trainer.train`. loop: a plain loop over transformers' model. Trainer: transformers' Trainer. "
        "Freed memory stays with each process, as the launcher sets it.",
        page.table((*columns, "CPU s/step", "first step, s", "day"), rows),
        page.table(("comparison of a step's time", "wall", "CPU", "goal"), verdicts),
    ]


def _accelerators(figures: dict[str, Any], command: str, machines: list[str]) -> list[str | list[str]]:
    columns = ("model", "windows", "program", "mode", "tokens/s", "s/step", "of steps")
    rows = (
        [
            *(figure[key] for key in ("preset", "micro_batch", "program")),
            _mode(figure),
            f"{_rate(figure):,.0f}",
            f"{figure['seconds']:.3f}",
            _spread(figure["steps"]),
            _mfu(figure),
            f"{figure.get('memory', 0) / 1e9:.1f}",
            f"{1e3 * figure.get('waits', 0):.1f}",
            figure.get("first_step"),
        ]
        for figure in sorted(figures.values(), key=lambda f: (f["preset"], f["micro_batch"], -_rate(f)))
    )
    found: list[str | list[str]] = [
        "# Training speed on an accelerator, GPT-2 in bf16",
        f"{command} (`make gpu STAGE=speed`). Whole optimizer steps of 524,288 tokens in windows of 1024, clipping and "
        "AdamW included: the median of the steps after the first. MFU counts the FLOPs of the products (PaLM, appendix "
        "B) in relation to the device's data sheet (trainer/config/peaks.yaml). wait: host seconds of a step in which "
        "batches were fetched, beside or before the device's work.",
        [f"- {machine}" for machine in machines],
        page.table((*columns, "MFU", "GB", "wait, ms", "first step, s"), rows),
    ]
    for machine in machines:
        if lines := goals(figures, machine):  # none for a day on which only peers were measured
            found.append(f"{_device(machine) or 'This processor'}, {machine.partition(';')[0]}:")
            found.append([f"- {line}" for line in lines])
    return found


def lacking(without: dict[str, str], machine: str) -> list[str | list[str]]:
    """List the modes of the last run that have no figure of it, and why."""
    lines = [f"- {mode}: {why}" for mode, why in without.items()]
    return [f"Without a new figure in the last run ({machine}):", lines] if lines else []


def goals(figures: dict[str, Any], machine: str) -> list[str]:
    """Compare the goals with the figures of this machine on one day, two lines for each model."""
    here = [figure for figure in figures.values() if figure["machine"] == machine]
    lines: list[str] = []
    for preset in dict.fromkeys(figure["preset"] for figure in here):
        own, peer = (_best([f for f in here if f["preset"] == preset], programs) for programs in (("ours",), PEERS))
        if own is None:
            continue
        said, sheet, goal = f"{preset}: {_rate(own):,.0f} tokens/s, MFU {_mfu(own)}", _peak(machine), GOALS.get(preset)
        if sheet and goal:
            verdicts = {f"MFU {goal}": _rate(own) * _flops(preset) / sheet >= goal}
            if preset == "small":
                verdicts[f"{GOAL_TOKENS:,} tokens/s"] = _rate(own) >= GOAL_TOKENS
            told = (f"{wanted} {_reached(reached)}" for wanted, reached in verdicts.items())
            said += f"; goals of one H200: {', '.join(told)}"
        lines.append(said)
        if peer is not None:
            ratio = _rate(own) / _rate(peer)
            wanted = f"; goal {GOAL_PEER_CUDA}: {_reached(ratio >= GOAL_PEER_CUDA)}" if preset == "small" else ""
            lines.append(f"{preset}: {ratio:.2f} times the best peer ({peer['program']}, {_rate(peer):,.0f}){wanted}")
    return lines


def _verdicts(figures: list[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    """Yield the ratio of step times of the best peer and ours, for each precision and micro-batch."""
    for key in sorted({_group(figure) for figure in figures}):
        alike = [figure for figure in figures if _group(figure) == key]
        own, peer = _best(alike, ("ours",)), _best(alike, PEERS)
        if own and peer:
            precision, micro_batch = key
            best = f"best peer ({peer['program']} {_mode(peer)})"
            ratios = (f"{peer[clock] / own[clock]:.2f}" for clock in ("seconds", "cpu"))
            goal = GOAL_PEER if precision == "bf16" else ""
            yield f"{precision}, micro-batch {micro_batch}: {best} / ours", *ratios, goal


def _best(figures: list[dict[str, Any]], programs: tuple[str, ...]) -> dict[str, Any] | None:
    return max((figure for figure in figures if figure["program"] in programs), key=_rate, default=None)


def _group(figure: dict[str, Any]) -> tuple[str, int]:
    return figure["precision"], figure["micro_batch"]


def _rate(figure: dict[str, Any]) -> float:
    return figure["tokens_per_second"]


def _mode(figure: dict[str, Any]) -> str:
    return "compiled" if figure["compiled"] else "eager"


def _spread(steps: list[float]) -> str:
    return f"{len(steps)}: {min(steps):.2f} to {max(steps):.2f}"


def _device(machine: str) -> str:
    """Return the accelerator's name from the end of the machine's line; empty for a CPU."""
    return machine.rpartition("; ")[2].partition(", CUDA")[0] if ", CUDA" in machine else ""


def _peak(machine: str) -> float | None:
    """Return the device's FLOP/s by its data sheet; None if unknown."""
    return peak_of(_device(machine))


def _mfu(figure: dict[str, Any]) -> str:
    peak = _peak(figure["machine"])
    return f"{_rate(figure) * _flops(figure['preset']) / peak:.3f}" if peak else "unknown"


def _flops(preset: str) -> float:
    """Forward and backward FLOPs of a token in a window of 1024."""
    return flops_per_token(of_preset(preset), Config())


def _reached(goal: bool) -> str:
    return "reached" if goal else "missed"

"""The page with speed.py's figures."""

from collections.abc import Iterator
from typing import Any

from bench import page
from trainer.config.presets import PRESETS
from trainer.train.metrics import peak_of

GOAL_PEER, GOAL_LIMIT = 1.15, 1.25
GOALS = {"small": 0.45, "medium": 0.55, "tiny": 0.0}
"""MFU by the data sheet of one H200, bf16 at 1024 tokens. A rehearsal has no goal."""
GOAL_TOKENS, GOAL_PEER_CUDA = 540_000, 1.1
PEERS = ("loop", "nanoGPT", "Trainer")


def flops_per_token(preset: str, length: int = 1024, vocabulary: int = 50257) -> float:
    """Count forward and backward FLOPs as trainer.models.networks does (PaLM, arXiv 2204.02311, appendix B)."""
    size = PRESETS[preset]
    layer = 12 * size.width**2 + 13 * size.width
    parameters = vocabulary * size.width + size.layers * layer + 2 * size.width
    return 6.0 * parameters + 12.0 * size.layers * size.width * length


def parts(figures: dict[str, Any], command: str, accelerator: bool = False) -> list[str | list[str]]:
    machines = sorted({figure["machine"] for figure in figures.values()})
    if accelerator:
        return _accelerators(figures, command, machines)
    order = sorted(
        figures.values(), key=lambda f: (f["precision"], f["micro_batch"], f["allocator"] != "kept", -_rate(f))
    )
    columns = ("precision", "micro-batch", "allocator", "program", "mode", "tokens/s", "s/step", "of steps")
    rows = (
        [
            *(figure[key] for key in ("precision", "micro_batch", "allocator", "program")),
            _mode(figure),
            f"{_rate(figure):,.0f}",
            f"{figure['seconds']:.2f}",
            _spread(figure.get("steps")),
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
        "limit: the matrix products alone. kept: freed memory stays with the process (both sides alike); glibc: its "
        "defaults.",
        page.table((*columns, "CPU s/step", "first step, s", "day"), rows),
        page.table(("comparison of a step's time", "wall", "CPU", "goal"), verdicts),
    ]


def _spread(steps: list[float] | None) -> str:
    return f"{len(steps)}: {min(steps):.2f} to {max(steps):.2f}" if steps else ""


def _mode(figure: dict[str, Any]) -> str:
    return "matrix products" if figure["program"] == "limit" else "compiled" if figure["compiled"] else "eager"


def _accelerators(figures: dict[str, Any], command: str, machines: list[str]) -> list[str | list[str]]:
    columns = ("model", "windows", "program", "mode", "tokens/s", "s/step", "of steps")
    columns += ("MFU, data sheet", "MFU, measured", "GB", "wait, ms", "first step, s")
    rows = (
        [
            *(figure[key] for key in ("preset", "micro_batch", "program")),
            _mode(figure),
            f"{_rate(figure):,.0f}",
            f"{figure['seconds']:.3f}",
            _spread(figure.get("steps")),
            *(_mfu(figure, _peak(figures, figure["machine"], kind)) for kind in ("sheet", "measured")),
            f"{figure.get('memory', 0) / 1e9:.1f}",
            f"{1e3 * figure.get('waits', 0):.1f}",
            figure.get("first_step"),
        ]
        for figure in sorted(figures.values(), key=lambda f: (f["preset"], f["micro_batch"], -_rate(f)))
    )
    found: list[str | list[str]] = [
        "# Training speed on an accelerator, GPT-2 in bf16",
        f"{command} (`make gpu STAGE=speed`). Whole optimizer steps "
        "of 524,288 tokens in windows of 1024, clipping and AdamW included: the median of the steps after the first. "
        "MFU counts the FLOPs of the products (PaLM, appendix B): in relation to the device's data sheet "
        "(trainer/train/peaks.yaml), and to the fastest bf16 product that this machine made (4096 to 16384 wide). "
        "wait: host seconds of a step in which batches were fetched, beside or before the device's work.",
        [f"- {machine}" for machine in machines],
        page.table(columns, rows),
    ]
    for machine in machines:
        found.append(f"{_device(machine) or 'This processor'}, {machine.partition(';')[0]}:")
        found.append([f"- {line}" for line in goals(figures, machine)])
    return found


def goals(figures: dict[str, Any], machine: str) -> list[str]:
    """Compare the goals with the figures of this machine on one day, one line each."""
    here = [figure for figure in figures.values() if figure["machine"] == machine]
    sheet, measured = (_peak(figures, machine, kind) for kind in ("sheet", "measured"))
    lines = [f"bf16 peak: {_tera(measured)} measured, {_tera(sheet)} by the data sheet"]
    for preset in dict.fromkeys(figure["preset"] for figure in here):
        group = [figure for figure in here if figure["preset"] == preset]
        own = max((f for f in group if f["program"] == "ours"), key=_rate, default=None)
        peer = max((f for f in group if f["program"] in PEERS), key=_rate, default=None)
        if own is None:
            continue
        goal = GOALS.get(preset, 0.0)
        said = f"{preset}: {_rate(own):,.0f} tokens/s, MFU {_mfu(own, sheet)} (measured peak: {_mfu(own, measured)})"
        if sheet and goal:
            verdicts = {f"MFU {goal}": _rate(own) * flops_per_token(preset) / sheet >= goal}
            if preset == "small":
                verdicts[f"{GOAL_TOKENS:,} tokens/s"] = _rate(own) >= GOAL_TOKENS
            told = (f"{wanted} {'reached' if reached else 'missed'}" for wanted, reached in verdicts.items())
            said += f"; goals of one H200: {', '.join(told)}"
        lines.append(said)
        if peer is not None:
            ratio = _rate(own) / _rate(peer)
            verdict = "reached" if ratio >= GOAL_PEER_CUDA else "missed"
            wanted = f"; goal {GOAL_PEER_CUDA}: {verdict}" if preset == "small" else ""
            lines.append(f"{preset}: {ratio:.2f} times the best peer ({peer['program']}, {_rate(peer):,.0f}){wanted}")
    return lines


def _peak(figures: dict[str, Any], machine: str, kind: str) -> float | None:
    """Return the device's peak FLOP/s: by its data sheet, or of the fastest measured product; None if unknown."""
    if kind == "sheet":
        return peak_of(_device(machine))
    return max((f["peak"] for f in figures.values() if f["machine"] == machine and "peak" in f), default=None)


def _device(machine: str) -> str:
    """Return the accelerator's name from the end of the machine's line; empty for a CPU."""
    return machine.rpartition("; ")[2].partition(", CUDA")[0] if ", CUDA" in machine else ""


def _mfu(figure: dict[str, Any], peak: float | None) -> str:
    if peak is None:
        return "unknown"
    return f"{_rate(figure) * flops_per_token(figure['preset']) / peak:.3f}"


def _tera(peak: float | None) -> str:
    return "unknown" if peak is None else f"{peak / 1e12:.0f} TFLOP/s"


def _verdicts(figures: list[dict[str, Any]]) -> Iterator[tuple[str, str, str, object]]:
    """Yield ratios of step times to the best peer and to the matrix products alone, from the figures that exist."""

    def row(name: str, above: dict[str, Any], below: dict[str, Any], goal: object) -> tuple[str, str, str, object]:
        return name, f"{above['seconds'] / below['seconds']:.2f}", f"{above['cpu'] / below['cpu']:.2f}", goal

    def group(figure: dict[str, Any]) -> tuple[str, int, str]:
        return figure["precision"], figure["micro_batch"], figure["allocator"]

    for key in sorted({group(figure) for figure in figures}):
        alike = [figure for figure in figures if group(figure) == key]
        own = max((f for f in alike if f["program"] == "ours"), key=_rate, default=None)
        peer = max((f for f in alike if f["program"] in ("loop", "Trainer")), key=_rate, default=None)
        limit = next((f for f in alike if f["program"] == "limit"), None)
        precision, micro_batch, allocator = key
        where = f"{precision}, micro-batch {micro_batch}, {allocator}"
        goal = precision == "bf16" and allocator == "kept"
        if own and peer:
            best = f"best peer ({peer['program']} {_mode(peer)})"
            yield row(f"{where}: {best} / ours", peer, own, GOAL_PEER if goal else "")
        if own and limit:
            part = {"seconds": limit["triangle"], "cpu": limit["triangle_cpu"]}
            yield row(f"{where}: ours / its matrix products", own, limit, GOAL_LIMIT if goal else "")
            yield row(f"{where}: ours / those without attention's upper triangle", own, part, "")


def _rate(figure: dict[str, Any]) -> float:
    return figure["tokens_per_second"]

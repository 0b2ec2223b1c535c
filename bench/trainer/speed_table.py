"""The figures of speed.py as a page."""

from typing import Any

FLOPS_PER_TOKEN = 855e6
"""GPT-2 124M at length 1024, forward and backward (PaLM, appendix B)."""
GOAL_PEER, GOAL_LIMIT, GOAL_CUDA = 1.15, 1.25, 450_000


def text(figures: dict[str, Any], device: str) -> str:
    machines = sorted({figure["machine"] for figure in figures.values()})
    lines = [
        "# Training speed, GPT-2 124M, sequence 1024",
        "",
        f"Written by `python -m bench.trainer.speed --device {device}`. Tokens/s of whole optimizer steps of "
        f"{'4,096' if device == 'cpu' else '524,288'} tokens: the median of the steps after the first. Compare within "
        "this page only: figures of shared machines move by tens of per cent from hour to hour.",
        "",
        *[f"- {machine}" for machine in machines],
        "",
        "ours: `python -m trainer.train`. loop: a plain loop over transformers' model. Trainer: transformers' Trainer. "
        "limit: the matrix products alone. kept: freed memory stays with the process (both sides alike); glibc: its "
        "defaults.",
        "",
        "| precision | micro-batch | allocator | program | mode | tokens/s | s/step | CPU s/step | first step, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    order = sorted(
        figures.values(),
        key=lambda f: (f["precision"], f["micro_batch"], f["allocator"] != "kept", -f["tokens_per_second"]),
    )
    for figure in order:
        how = "matrix products" if figure["program"] == "limit" else "compiled" if figure["compiled"] else "eager"
        lines.append(
            f"| {figure['precision']} | {figure['micro_batch']} | {figure['allocator']} | {figure['program']} "
            f"| {how} | {figure['tokens_per_second']:,.0f} | {figure['seconds']:.2f} | {figure['cpu']:.2f} "
            f"| {figure.get('first_step', '')} |"
        )
    return "\n".join([*lines, "", *_verdicts(order, device), ""])


def _verdicts(figures: list[dict[str, Any]], device: str) -> list[str]:
    """What the goals ask for, from the figures that are there."""
    lines = ["| comparison of a step's time | wall | CPU | goal |", "|---|---|---|---|"]
    groups = {(f["precision"], f["micro_batch"], f["allocator"]) for f in figures}
    for precision, micro_batch, allocator in sorted(groups):
        group = [
            f
            for f in figures
            if (f["precision"], f["micro_batch"], f["allocator"]) == (precision, micro_batch, allocator)
        ]
        own = max((f for f in group if f["program"] == "ours"), key=_rate, default=None)
        peer = max((f for f in group if f["program"] in ("loop", "Trainer")), key=_rate, default=None)
        limit = next((f for f in group if f["program"] == "limit"), None)
        where = f"{precision}, micro-batch {micro_batch}, {allocator}"
        goal = precision == "bf16" and allocator == "kept" and device == "cpu"
        if own and peer:
            name = f"{peer['program']} {'compiled' if peer['compiled'] else 'eager'}"
            lines.append(_row(f"{where}: best peer ({name}) / ours", peer, own, GOAL_PEER if goal else ""))
        if own and limit:
            part = {"seconds": limit["triangle"], "cpu": limit["triangle_cpu"]}
            lines.append(_row(f"{where}: ours / its matrix products", own, limit, GOAL_LIMIT if goal else ""))
            lines.append(_row(f"{where}: ours / those without attention's upper triangle", own, part, ""))
        if own and device == "cuda":
            lines.append(f"| {where}: ours, tokens/s | {_rate(own):,.0f} | | {GOAL_CUDA:,} |")
    return lines


def _row(name: str, above: dict[str, Any], below: dict[str, Any], goal: object) -> str:
    wall, cpu = (above[key] / below[key] for key in ("seconds", "cpu"))
    return f"| {name} | {wall:.2f} | {cpu:.2f} | {goal} |"


def _rate(figure: dict[str, Any]) -> float:
    return figure["tokens_per_second"]

"""The tables of bench/elastic: one row a measurement, its figures by name."""

from pathlib import Path


def shown(result: dict[str, float]) -> str:
    """One measurement as a line."""
    return "  ".join(f"{key} {value:.4g}" for key, value in result.items())


def write(path: Path, title: str, made: str, results: list[dict[str, float]]) -> None:
    """Write a Markdown page: title, how the figures were made, a row for each measurement."""
    head = list(results[0])
    lines = [
        f"# {title}",
        "",
        made,
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(f'{result[key]:.4g}' for key in head)} |" for result in results),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")

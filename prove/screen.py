"""What the person sees: a line for every step that ended and, on a terminal, what the one that runs waits for."""

from __future__ import annotations

import time
from datetime import datetime

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from prove.engine import Result, State, Step, Verdict

MARKS: dict[Verdict, tuple[str, str]] = {
    "passed": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "cannot": ("–", "yellow"),
    "not played": (" ", "dim"),
}
WORDS: dict[Verdict, str] = {
    "passed": "passed",
    "failed": "FAILED",
    "cannot": "cannot be done here",
    "not played": "not played",
}


class Screen:
    def __init__(self, state: State, total: int, console: Console | None = None) -> None:
        self.state, self.total = state, total
        self.console = console or Console(highlight=False)
        self._live: Live | None = None
        self._step: Step | None = None
        self._clock, self._said = 0.0, ""
        self._spinner = Spinner("dots")

    def __rich__(self) -> Spinner:
        """Drawn anew by the live display, four times a second."""
        assert self._step is not None
        spent = f", up to {self.state.spent():.2f} USD" if self.state.usd_per_hour and self.state.billed_from else ""
        parts = f"{self._step.title}  {minutes(time.monotonic() - self._clock)}{spent}  "
        text = Text.assemble((parts, "bold"), (" ".join(self._said.split()), "dim"))
        text.truncate(self.console.width - 3, overflow="ellipsis")
        self._spinner.update(text=text)
        return self._spinner

    def begin(self, step: Step) -> None:
        self._step, self._clock, self._said = step, time.monotonic(), ""
        number = list(self.state.results).index(step.name) + 1
        if self.console.is_terminal:
            self._live = Live(self, console=self.console, transient=True)
            self._live.start()
        else:
            self._line(f"{datetime.now():%H:%M:%S}  {number}/{self.total}  {step.name}: {step.title} ...")

    def say(self, text: str) -> None:
        """What the step waits for."""
        self._said = text

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def end(self, step: Step, result: Result) -> None:
        self.close()
        mark, style = MARKS[result.verdict]
        self.console.print(
            Text.assemble((f"{mark} ", style), (f"{step.name:<13}", "bold"), (f"{WORDS[result.verdict]:<20}", style)),
            Text(f"{minutes(result.seconds):>7}  {result.evidence}"),
            soft_wrap=True,
        )

    def _line(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"

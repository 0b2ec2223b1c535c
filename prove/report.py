"""The report of a run, for people (Markdown) and for programs (JSON)."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.page import describe
from chaos.page import busy
from infra.config import StackConfig
from infra.eks.section import EksConfig
from infra.gke.section import GkeConfig
from infra.stackfiles import ROOT
from prove.engine import State, Step
from prove.screen import WORDS, minutes

FOLDER = ROOT / "bench" / "results"


def facts(config: StackConfig, state: State) -> dict[str, str]:
    """What was proved, on what, with which versions."""
    nodes, where = config.nodes, "a cluster that was there before"
    if isinstance(config.cloud, GkeConfig):
        where = f"GKE in {config.cloud.zone}"
    if isinstance(config.cloud, EksConfig):
        where = f"EKS in {config.cloud.region}"
    found = {
        "date": state.begun,
        "commit": state.notes.get("commit", ""),
        "cluster": f"{where}, Kubernetes {state.notes.get('kubernetes', 'not asked')}",
        "workers": f"{config.workers.count} of {config.workers.cpu:g} CPUs, {config.workers.gpus} accelerators each",
        "training": f"model {config.training.model}, engine {config.training.engine}",
        "run from": f"{describe('pulumi', 'pulumi-kubernetes', 'kubernetes')}; Pulumi {state.notes.get('pulumi', '?')}",
        "machine's load": state.notes.get("load", ""),
    }
    if nodes:
        found["machines"] = f"up to {nodes.max} x {nodes.machine_type}, {nodes.consumption.replace('_', ' ')}"
        package = "pulumi-gcp" if isinstance(config.cloud, GkeConfig) else "pulumi-aws"
        found["provider"] = f"{package} {version(package)}"
    return found


def load() -> str:
    """How much of this machine others use, for the times of the report."""
    return f"{busy():.0%} of its processors used by others when the run began"


def commit() -> str:
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def write(stack: str, steps: tuple[Step, ...], state: State, told: dict[str, str], folder: Path = FOLDER) -> Path:
    """prove-STACK.md and .json; a short run has a name of its own. Returns the first."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"prove-{stack}-short" if state.short else f"prove-{stack}"
    results = {step.name: asdict(state.results[step.name]) for step in steps if step.name in state.results}
    content: dict[str, Any] = {
        "stack": stack,
        "short": state.short,
        "verdict": verdict(state),
        "ended": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        **told,
        "usd": round(state.spent(), 2),
        "steps": results,
    }
    (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    path = folder / f"{name}.md"
    path.write_text(_page(stack, steps, state, told), encoding="utf-8")
    return path


def verdict(state: State) -> str:
    found = [result.verdict for result in state.results.values()]
    return ", ".join(f"{found.count(each)} {word.lower()}" for each, word in WORDS.items() if each in found)


def _page(stack: str, steps: tuple[Step, ...], state: State, told: dict[str, str]) -> str:
    options = " --short" if state.short else ""
    lines = [f"# Proof of stack {stack}", "", f"`trainyard prove --stack {stack}{options}`: {verdict(state)}.", ""]
    if state.ended_by:
        lines += [f"Not every step was played: {state.ended_by}.", ""]
    lines += [f"- {key}: {value}" for key, value in told.items() if value]
    lines += ["", "| step | claim | verdict | time | evidence |", "|---|---|---|---:|---|"]
    for step in steps:
        result = state.results.get(step.name)
        if result is not None:
            evidence = result.evidence.replace("|", "\\|")
            cells = (step.name, step.title, WORDS[result.verdict], minutes(result.seconds), evidence)
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "What cannot be done here is not proved here: a stack on a cloud has to prove it."]
    return "\n".join(lines) + "\n"

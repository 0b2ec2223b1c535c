"""The time and imports of each stack's program: `python -m bench.preview` writes bench/results/preview.md.

Under mocks it measures the program alone: imports, configuration, declarations. On the engine (`--engine`) it measures
the program's process under `pulumi preview` and the whole command, against a cloud that is a file (tests/standin).
Times of the program are processor time, so neither other programs nor waiting count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import page
from infra.stackfiles import ROOT, stacks

#: What a preview may cost in the program, seconds of processor.
AIM = 2.5
#: Runs of each stack under mocks, after one that writes Python's compiled files.
RUNS = 5
#: The program in a process of its own: what a person waits for, imports included.
PROGRAM = """
import json, sys, time
from review.recording import record_anywhere
stack = record_anywhere(sys.argv[1])
sdks = sorted(name for name in sys.modules if name.startswith("pulumi_") and "." not in name)
print(json.dumps({"seconds": time.process_time(), "resources": len(stack.resources), "sdks": sdks}))
"""
#: Runs the program of a project, and writes its time down.
CLOCK = """
import atexit, json, pathlib, runpy, time
folder = pathlib.Path(__file__).parent
atexit.register(lambda: (folder / "seconds.json").write_text(json.dumps(time.process_time())))
runpy.run_path(str(folder / "program.py"), run_name="__main__")
"""


def under_mocks(stack: str) -> dict[str, Any]:
    """seconds (of processor, all of the process), resources, and the SDKs that were imported."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, stack], cwd=ROOT, env=variables, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def measured(stack: str, runs: int = RUNS) -> dict[str, Any]:
    """The median of several runs."""
    under_mocks(stack)
    found = [under_mocks(stack) for _ in range(runs)]
    return {**found[0], "seconds": statistics.median(run["seconds"] for run in found)}


def on_engine(stack: str) -> tuple[float, float]:
    """Seconds of processor of the program, and of the whole command as a clock on the wall shows them, the better of
    two previews."""
    from tests.conftest import OFFER, write_kubeconfig
    from tests.e2e import cloud_stack
    from tests.standin.aws.account import Account, aws

    with tempfile.TemporaryDirectory() as name, aws() as endpoint:
        folder = Path(name)
        account = Account(endpoint, "500000000098", "us-east-2") if stack.startswith("aws-") else None
        made = cloud_stack.make(stack, folder, account)
        made.environment["KUBECONFIG"] = str(write_kubeconfig(folder / "kubeconfig", "trainyard-local", OFFER))
        (folder / "__main__.py").rename(folder / "program.py")
        (folder / "__main__.py").write_text(CLOCK)
        found = []
        for _ in range(2):
            began = time.monotonic()
            made.pulumi("preview")
            whole = time.monotonic() - began
            found.append((json.loads((folder / "seconds.json").read_text()), whole))
        return min(found)


def lines(names: list[str], engine: bool) -> list[str]:
    """The page."""
    columns = ["stack", "resources", "program under mocks, s", "SDKs imported"]
    columns += ["program on the engine, s", "`pulumi preview`, s"] if engine else []
    rows = []
    for name in names:
        found = measured(name)
        sdks = ", ".join(sdk.removeprefix("pulumi_") for sdk in found["sdks"])
        rows.append([name, found["resources"], f"{found['seconds']:.2f}", sdks])
        if engine:
            program, whole = on_engine(name)
            rows[-1] += [f"{program:.2f}", f"{whole:.1f}"]
    return [
        "# Time of the program at preview",
        "",
        f"`python -m bench.preview{' --engine' if engine else ''}`; {page.describe('pulumi', 'pulumi-kubernetes')}.",
        f"Seconds of processor, median of {RUNS} runs, imports included; aim: {AIM} s.",
        *(["`pulumi preview` is wall time, with plugins that make nothing."] if engine else []),
        "",
        *page.table(columns, rows),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.preview", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--engine", action="store_true", help="also on Pulumi's engine (make e2e builds it)")
    text = lines(stacks(), parser.parse_args().engine)
    page.write(page.results() / "preview.md", text)
    print("\n".join(text))

"""The time and imports of each stack's program: `python -m bench.preview` writes bench/results/preview.md.

Under mocks it measures the program alone: imports, configuration, declarations. Times are CPU time, so neither other
programs nor waiting count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

from bench import page
from infra.stackfiles import ROOT, stacks

#: CPU seconds that the program may take in a preview.
AIM = 2.5
#: Runs of each stack under mocks, after a first one that writes Python's compiled files.
RUNS = 5
#: Runs the program in its own process, so that its imports count, too.
PROGRAM = """
import json, sys, time
from review.recording import record_anywhere
stack = record_anywhere(sys.argv[1])
sdks = sorted(name for name in sys.modules if name.startswith("pulumi_") and "." not in name)
print(json.dumps({"seconds": time.process_time(), "resources": len(stack.resources), "sdks": sdks}))
"""


def under_mocks(stack: str) -> dict[str, Any]:
    """Run a stack's program under mocks. Returns `seconds` of CPU time, `resources` and the imported `sdks`."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, stack], cwd=ROOT, env=variables, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    argparse.ArgumentParser(prog="python -m bench.preview", description=(__doc__ or "").split("\n\n")[0]).parse_args()
    rows = []
    for name in stacks():
        under_mocks(name)
        runs = [under_mocks(name) for _ in range(RUNS)]
        sdks = ", ".join(sdk.removeprefix("pulumi_") for sdk in runs[0]["sdks"])
        rows.append([name, runs[0]["resources"], f"{statistics.median(run['seconds'] for run in runs):.2f}", sdks])
    text = page.write(
        page.results() / "preview.md",
        "# Time of the program at preview",
        f"`python -m bench.preview`; {page.describe('pulumi', 'pulumi-kubernetes')}. Seconds of processor, median of "
        f"{RUNS} runs, imports included; aim: {AIM} s.",
        page.table(["stack", "resources", "program under mocks, s", "SDKs imported"], rows),
    )
    print(text)


if __name__ == "__main__":
    main()

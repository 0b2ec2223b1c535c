"""The pauses of a training when it loses real pods: `trainyard local run -- python -m bench.elastic.pods`.

It uses the real node, the real engine and the trainer's image, takes six minutes and writes
bench/results/chaos-pods.md. chaos/pod_rows.py defines the faults; tests/e2e/test_elastic_pods.py asserts their outcome.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from pathlib import Path

from bench import page
from chaos.pod_rows import ROWS, STACK, difference, play
from chaos.pods import Pods
from chaos.row import HEADER, SAME_LOSS, Result
from chaos.stack import Stack


def main() -> int:
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        stack = Stack("e2e-elastic", Path(folder), dict(os.environ))
        stack.write(**STACK)
        stack.write(job={"name": f"elastic-{uuid.uuid4().hex[:8]}"})
        stack.select()
        try:
            stack.up()
            with Pods(stack) as pods:
                pods.world(1)
                for row in ROWS:
                    results.append(play(row, pods, stack))
                    print(*results[-1].cells, sep="  ", flush=True)
                begin = time.monotonic()
                gone = stack.pulumi("destroy", "--yes")
                destroyed = time.monotonic() - begin
                assert gone.returncode == 0, gone.stdout + gone.stderr
                apart = difference(pods)
        finally:
            stack.remove()
    page.write(
        page.results() / "chaos-pods.md",
        "# Faults of pods",
        f"`python -m bench.elastic.pods`; {page.describe('torch', 'pulumi')}; Kubernetes of the local node, its pods "
        "on the same processors.",
        "One training of the tiny model from its beginning to its destruction; a checkpoint every 20 steps; "
        "keep-alive 5 s x 3, last call 5 s, as shipped. Seconds are the longest pause between two optimizer steps "
        "until all pods train again: detection, the new round and the import of torch in each pod at once; a pod "
        "that comes back costs a round of its own.",
        page.table(HEADER, (result.cells for result in results)),
        f"`pulumi destroy` while it trained took {destroyed:.0f} s. The loss of every step was that of an "
        f"undisturbed training: {apart:.1e} apart at most.",
    )
    return 1 if not apart <= SAME_LOSS or any(result.problem for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())

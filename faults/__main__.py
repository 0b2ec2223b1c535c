"""`python -m faults [FAULT ...]`: break a training in every way, and write the results to bench/results/chaos.md.

With `--on node`, one training on the local Kubernetes node meets the faults of pods one after the other, and is
destroyed while it trains (bench/results/chaos-pods.md). Faults that are not played keep their lines there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.page import busy
from faults.fault import SAME_LOSS, Fault, Place, Result
from faults.node import Node, difference, elastic_stack
from faults.report import COLUMNS, PLAYED, Matrix, cells, merge_page, page_line
from local import toolchain

NEEDED = ("ip", "nsenter", "unshare", "tini", toolchain.program("etcd"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="default: all of the place")
    parser.add_argument("--on", choices=tuple(PLAYED), default="processes", help="where; default: %(default)s")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="keep logs and checkpoints here")
    parser.add_argument("--no-write", action="store_true", help="leave the page in bench/results as it is")
    options = parser.parse_args()
    place: Place = options.on
    names = [fault.name for fault in PLAYED[place]]
    unknown = [name for name in options.faults if name not in names]
    if unknown:
        parser.error(f"no fault {unknown[0]}; allowed: {', '.join(names)}")
    if place == "node" and not os.environ.get("KUBECONFIG"):
        print("error: --on node needs the node: trainyard local run -- python -m faults --on node", file=sys.stderr)
        return 2
    if place == "processes" and os.geteuid() != 0:
        print("error: chaos needs root, for network namespaces; run it with sudo", file=sys.stderr)
        return 2
    if place == "processes" and (missing := [name for name in NEEDED if not shutil.which(name)]):
        print(f"error: missing: {', '.join(missing)}; make chaos builds etcd, apt-get has the rest", file=sys.stderr)
        return 2
    console, results, notes = Console(), list[Result](), list[str]()
    with tempfile.TemporaryDirectory(prefix="trainyard-chaos-") as temporary:
        folder = options.keep or Path(temporary)
        with processes(folder) if place == "processes" else node(folder, notes) as play:
            for fault in PLAYED[place]:
                if not options.faults or fault.name in options.faults:
                    others = busy()
                    result = play(fault)
                    results.append(result)
                    console.print(
                        fault.name, *cells(result)[1:], sep="  ", markup=False, highlight=False, soft_wrap=True
                    )
                    if not options.no_write:  # write after each: all take half an hour
                        merge_page(place, [page_line(result, others)])
    if notes and not options.no_write:
        merge_page(place, (), " ".join(notes))
    table = Table(*COLUMNS[:-1])
    for result in results:
        table.add_row(*cells(result), style="red" if result.problem or result.slow else None)
    console.print(table, *notes)
    return 1 if any(result.problem or result.slow for result in results) else 0


@contextmanager
def processes(folder: Path) -> Iterator[Callable[[Fault], Result]]:
    yield Matrix(folder).play


@contextmanager
def node(folder: Path, notes: list[str]) -> Iterator[Callable[[Fault], Result]]:
    """Play on one stack, which is destroyed while it trains. Adds what that showed to `notes`."""
    with elastic_stack(folder, dict(os.environ)) as stack, Node(stack) as there:
        yield there.play
        there.more_steps()
        begin = time.monotonic()
        stack.destroy()
        seconds, apart = time.monotonic() - begin, difference(there)
        assert apart <= SAME_LOSS, f"the losses are {apart:.1e} off those of an undisturbed training"
        notes.append(
            f"`pulumi destroy` while it trained took {seconds:.0f} s. The loss of every step was that of an "
            f"undisturbed training: {apart:.1e} apart at most."
        )


if __name__ == "__main__":
    sys.exit(main())

"""`python -m chaos [ROW ...]`: break a training in every way, and write the results to bench/results/chaos.md.

Rows that are not played keep their lines there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.page import busy
from chaos.report import COLUMNS, Matrix, cells, merge_page, page_line
from chaos.rows import ROWS
from local import toolchain

NEEDED = ("ip", "nsenter", "unshare", "tini", toolchain.program("etcd"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    names = [row.name for row in ROWS]
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {', '.join(names)}")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="keep logs and checkpoints here")
    parser.add_argument("--no-write", action="store_true", help="leave bench/results/chaos.md as it is")
    options = parser.parse_args()
    unknown = [name for name in options.rows if name not in names]
    if unknown:
        parser.error(f"no row {unknown[0]}; allowed: {', '.join(names)}")
    if os.geteuid() != 0:
        print("error: chaos needs root, for network namespaces; run it with sudo", file=sys.stderr)
        return 2
    if missing := [name for name in NEEDED if not shutil.which(name)]:
        print(f"error: missing: {', '.join(missing)}; make chaos builds etcd, apt-get has the rest", file=sys.stderr)
        return 2
    console, results = Console(), []
    with tempfile.TemporaryDirectory(prefix="trainyard-chaos-") as temporary:
        matrix = Matrix(options.keep or Path(temporary))
        for row in ROWS:
            if not options.rows or row.name in options.rows:
                others = busy()
                result = matrix.play(row)
                results.append(result)
                console.print(row.name, *cells(result)[1:], sep="  ", markup=False, highlight=False, soft_wrap=True)
                if not options.no_write:  # write after each row: all rows take half an hour
                    merge_page([page_line(result, others)])
    table = Table(*COLUMNS)
    for result in results:
        table.add_row(*cells(result), style="red" if result.problem or result.slow else None)
    console.print(table)
    return 1 if any(result.problem or result.slow for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())

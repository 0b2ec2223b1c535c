"""Lines that several workers write to one stream stay whole."""

import os
import subprocess
import sys

WRITERS, LINES = 4, 500


def test_lines_of_workers_that_share_a_stream_stay_whole() -> None:
    """As in a pod: unbuffered Python, one pipe. With print() two lines of several hundred run into each other."""
    reader, writer = os.pipe()
    program = f"from trainer import metrics\nfor n in range({LINES}): metrics.event('round', rank=n)"
    workers = [subprocess.Popen([sys.executable, "-u", "-c", program], stdout=writer) for _ in range(WRITERS)]
    os.close(writer)
    with open(reader, encoding="utf-8") as stream:
        lines = stream.read().splitlines()
    assert [worker.wait(30) for worker in workers] == [0] * WRITERS
    assert sorted(lines) == sorted([f"event=round rank={n}" for n in range(LINES)] * WRITERS)

"""`python -m trainer.store`: the store of the c10d rendezvous, for a pod that outlives the workers.

It keeps nothing on disk: after a restart every member finds that it is in no round, and they form a new one.
"""

import argparse
import signal
import sys
import threading
from datetime import timedelta

from trainer import log
from trainer.contract import EXIT_DONE, EXIT_USAGE, STORE_PORT
from trainer.errors import one_line


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.store", description=__doc__)
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=int, default=STORE_PORT)
    options = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    try:
        server = TCPStore(
            options.host, options.port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30)
        )
    except (RuntimeError, ValueError) as error:
        reason = one_line((str(error).splitlines() or [error])[0])  # C++ frames follow
        print(f"--port {options.port}: cannot listen on it: {reason}", file=sys.stderr)
        return EXIT_USAGE
    log.event("store", port=server.port)
    ended.wait()
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())

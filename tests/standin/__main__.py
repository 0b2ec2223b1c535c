"""Start the stand-in: `python -m tests.standin PACKAGE [ENGINE_ADDRESS]`; a test's launcher does."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from local.plugin_process import import_stubs_only, serve

#: Where the cloud is kept; without it there is none.
VARIABLE = "TRAINYARD_TEST_CLOUD"


def main() -> None:
    package, *arguments = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    notice = f"stand-in for pulumi-resource-{package} (trainyard tests/standin): nothing is created in any cloud"
    if VARIABLE not in os.environ:
        sys.exit(f"error: {notice}; it is for tests, which set {VARIABLE}")
    import_stubs_only()
    from .cloud import Cloud
    from .server import CloudServer

    def make(engine: Any) -> CloudServer:
        cloud = Cloud(Path(os.environ[VARIABLE]))
        return CloudServer(engine, version(f"pulumi-{package}"), package, cloud)

    serve(arguments[0] if arguments else None, notice, make)


if __name__ == "__main__":
    main()

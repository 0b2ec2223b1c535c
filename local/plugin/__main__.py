"""Start the plugin, as Pulumi does: `python -m local.plugin ENGINE_ADDRESS`."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

from local.plugin_process import import_stubs_only, serve

NOTICE = (
    "stand-in for pulumi-resource-kubernetes (trainyard local/plugin), used where the real plugin cannot be downloaded"
)


def main() -> None:
    import_stubs_only()
    from .client import import_kubernetes
    from .server import Server

    def make(engine: Any) -> Server:
        return Server(engine, version("pulumi-kubernetes"))  # the engine warns of a version below the program's

    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    # The official client takes half a second to import: do it in the background.
    serve(arguments[0] if arguments else None, NOTICE, make, started=import_kubernetes)


if __name__ == "__main__":
    main()

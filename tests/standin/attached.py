"""The stand-ins in the test's own process, to which the engine attaches. Separate processes would repeat all imports at
each command of Pulumi."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version

from .aws.account import Account
from .cloud import Cloud
from .protocol import Server, listen

PACKAGES = ("gcp", "aws", "docker-build", "kubernetes")


@contextmanager
def attached(cloud: Cloud, account: Account | None, packages: Sequence[str] = PACKAGES) -> Iterator[str]:
    """Serve the stand-ins. Yields the value of the engine's variable PULUMI_DEBUG_PROVIDERS, "PACKAGE:PORT,..."."""
    with ExitStack() as stack:
        ports = {}
        for package in packages:
            server, ports[package] = listen(Server(version(f"pulumi-{package}"), package, cloud, account))
            stack.callback(lambda server=server: server.stop(grace=None).wait())
        yield ",".join(f"{package}:{port}" for package, port in ports.items())

"""The stand-ins in the test's own process, to which the engine attaches: processes of their own would import the same
again at each command of Pulumi."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from typing import Any

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2_grpc

from local.plugin.engine import Engine

from .aws.account import Account
from .cloud import Cloud
from .server import CloudServer

PACKAGES = ("gcp", "aws", "docker-build", "kubernetes")
#: The engine waits for a server's resources at the same time.
THREADS = 64


class AttachedServer(CloudServer):
    """A server that the engine tells its address, which it gives a plugin that it starts as an argument."""

    def Attach(self, request: Any, context: Any) -> empty_pb2.Empty:
        self._engine = Engine(request.address)
        return empty_pb2.Empty()


@contextmanager
def attached(cloud: Cloud, account: Account | None) -> Iterator[str]:
    """The engine's variable PULUMI_DEBUG_PROVIDERS, "PACKAGE:PORT,...", as long as the context lasts."""
    with ExitStack() as stack:
        ports = {}
        for package in PACKAGES:
            server = grpc.server(stack.enter_context(futures.ThreadPoolExecutor(max_workers=THREADS)))
            servicer = AttachedServer(Engine(None), version(f"pulumi-{package}"), package, cloud, account)
            provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server)
            ports[package] = server.add_insecure_port("127.0.0.1:0")
            server.start()
            stack.callback(lambda server=server: server.stop(grace=None).wait())
        yield ",".join(f"{package}:{port}" for package, port in ports.items())

"""The plugin as the engine sees it: a process that prints its port and answers Pulumi's gRPC calls."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from local.plugin.values import UNKNOWN, Secret, from_struct, to_struct

ROOT = Path(__file__).parents[3]
KUBECONFIG = """
current-context: gone
clusters: [{name: gone, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: gone, user: {token: t}}]
contexts: [{name: gone, context: {cluster: gone, user: gone, namespace: team}}]
"""
URN = "urn:pulumi:dev::project::kubernetes:{}::train"


@contextmanager
def start_plugin(kubeconfig: str, process: list[subprocess.Popen[str]] | None = None) -> Iterator[Any]:
    """A stub of a running, configured plugin, which must exit by itself on SIGTERM."""
    command = [sys.executable, "-m", "local.plugin"]
    plugin = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if process is not None:
        process.append(plugin)
    assert plugin.stdout is not None
    port = int(plugin.stdout.readline())
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = provider_pb2_grpc.ResourceProviderStub(channel)
        response = stub.Configure(
            provider_pb2.ConfigureRequest(variables={"kubernetes:config:kubeconfig": kubeconfig}, acceptSecrets=True)
        )
        assert response.acceptSecrets
        assert response.supportsPreview
        yield stub
    plugin.terminate()
    assert plugin.wait(5) == 0


@pytest.fixture(scope="module")
def plugin() -> Iterator[tuple[Any, subprocess.Popen[str]]]:
    """A running plugin, configured for an API server that does not answer."""
    processes: list[subprocess.Popen[str]] = []
    with start_plugin(KUBECONFIG, processes) as stub:
        yield stub, processes[0]


@pytest.fixture
def stub(plugin: Any) -> Any:
    return plugin[0]


def check(stub: Any, token: str, news: dict[str, Any]) -> Any:
    return stub.Check(provider_pb2.CheckRequest(urn=URN.format(token), news=to_struct(news), randomSeed=b"s"))


def error_of(call: Any, request: Any) -> grpc.Call:
    with pytest.raises(grpc.RpcError) as caught:
        call(request)
    assert isinstance(caught.value, grpc.Call)
    assert "\n" not in (caught.value.details() or "")
    return caught.value


def test_it_says_what_it_is(plugin: Any) -> None:
    _, process = plugin
    assert process.stderr.readline().startswith("stand-in for pulumi-resource-kubernetes")


def test_its_version_is_the_sdks(stub: Any) -> None:
    from importlib.metadata import version

    assert stub.GetPluginInfo(empty_pb2.Empty()).version == version("pulumi-kubernetes")


def test_check_names_and_places_the_object_without_a_cluster(stub: Any) -> None:
    response = check(stub, "batch/v1:Job", {"spec": {"completions": UNKNOWN, "password": Secret("hunter2")}})
    assert not response.failures
    inputs = from_struct(response.inputs)
    assert inputs["kind"] == "Job"
    assert inputs["metadata"]["namespace"] == "team"
    assert inputs["metadata"]["name"].startswith("train-")
    assert inputs["spec"] == {"completions": UNKNOWN, "password": Secret("hunter2")}
    namespace = from_struct(check(stub, "core/v1:Namespace", {}).inputs)
    assert "namespace" not in namespace["metadata"]


def test_check_with_unknown_metadata(stub: Any) -> None:
    inputs = from_struct(check(stub, "core/v1:ConfigMap", {"metadata": UNKNOWN, "data": {}}).inputs)
    assert inputs["metadata"] is UNKNOWN


def test_a_patch_needs_a_name(stub: Any) -> None:
    (failure,) = check(stub, "batch/v1:JobPatch", {}).failures
    assert "metadata.name" in failure.reason


def test_an_unreachable_cluster_is_one_line_and_previews_go_on(stub: Any) -> None:
    inputs = check(stub, "core/v1:ConfigMap", {"data": {"a": "b"}}).inputs
    request = {"urn": URN.format("core/v1:ConfigMap"), "properties": inputs}
    assert stub.Create(provider_pb2.CreateRequest(**request, preview=True)).properties == inputs
    started = time.monotonic()
    for call, message in (
        (stub.Create, provider_pb2.CreateRequest(**request)),
        (stub.Delete, provider_pb2.DeleteRequest(id="team/x", **request)),
        (stub.Read, provider_pb2.ReadRequest(id="team/x", **request)),
    ):
        details = error_of(call, message).details() or ""
        assert "http://127.0.0.1:9 cannot be reached" in details
        assert "refused" in details
    assert time.monotonic() - started < 20, "a refused connection is not tried again"


def test_a_value_that_kubernetes_has_not_is_no_traceback(stub: Any) -> None:
    asset = {"4dabf18193072939515e22adb298388d": "c44067f5952c0a294b673a41bacd8c17", "text": "x"}
    request = provider_pb2.DiffRequest(urn=URN.format("batch/v1:Job"), news=to_struct({"spec": asset}))
    assert "not Kubernetes values" in (error_of(stub.Diff, request).details() or "")


def test_it_does_not_outlive_its_parent() -> None:
    script = """
import subprocess, sys
plugin = subprocess.Popen([sys.executable, "-m", "local.plugin"], stdout=subprocess.PIPE)
plugin.stdout.readline()
print(plugin.pid, flush=True)
"""
    pid = int(subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()

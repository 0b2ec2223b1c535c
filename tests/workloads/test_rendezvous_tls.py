"""The etcd that the stack declares, really started with its certificates: only the client's certificate gets in."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

from infra.stackfiles import stack_file_values
from local import toolchain
from review.recording import Recording, record
from tests.ports import free_port
from trainer.elastic.etcd import Etcd, access
from trainer.errors import UserError
from workloads.certificates import issue

NAMES = {"CACERT": "ca.crt", "CERT": "tls.crt", "KEY": "tls.key"}


@pytest.fixture
def stack(local_kubeconfig: Path) -> Recording:
    return record("local", {**stack_file_values("local"), "rendezvous": {"tls": True}})


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, Path]:
    """Owner -> the folder as which its Secret is mounted."""
    made = issue(["etcd", "etcd.trainyard.svc"])
    folders = {}
    for who in ("server", "client"):
        folder = folders[who] = tmp_path / who
        folder.mkdir()
        (folder / "ca.crt").write_text(made["authority"])
        (folder / "tls.crt").write_text(made[f"{who}Certificate"])
        (folder / "tls.key").write_text(made[f"{who}Key"])
    return folders


@pytest.fixture
def endpoint(stack: Recording, certificates: dict[str, Path], tmp_path: Path) -> Iterator[str]:
    """Run the declared container's command with folders and ports of this machine; yield its address."""
    container = stack.one("StatefulSet", "etcd").inputs["spec"]["template"]["spec"]["containers"][0]
    ports = {port: str(free_port()) for port in ("2379", "2380", "2381")}
    arguments = []
    for argument in container["args"]:
        text = argument.replace("/etc/rendezvous", str(certificates["server"])).replace("/var/lib/etcd", str(tmp_path))
        for port, free in ports.items():
            text = text.replace(f":{port}", f":{free}")
        arguments.append(text.replace("0.0.0.0", "127.0.0.1"))
    environment = {**os.environ, **{each["name"]: each["value"] for each in container["env"]}}
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen([toolchain.program("etcd"), *arguments], env=environment, stdout=log, stderr=log)
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{ports['2381']}/health", timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
                time.sleep(0.1)
        yield f"https://localhost:{ports['2379']}"
    finally:
        process.kill()
        process.wait()


def test_the_declared_etcd_lets_trainers_in_and_nobody_else(
    stack: Recording, endpoint: str, certificates: dict[str, Path]
) -> None:
    trainer = stack.one("Job", "training").inputs["spec"]["template"]["spec"]["containers"][0]
    declared = {each["name"]: each["value"] for each in trainer["env"] if each["name"].startswith("ETCDCTL_")}
    mounted = {name: value.replace("/etc/rendezvous", str(certificates["client"])) for name, value in declared.items()}
    assert sorted(mounted) == sorted(f"ETCDCTL_{name}" for name in NAMES)
    client = Etcd(access(endpoint, {}, mounted), retry_seconds=5)
    client.put("/trainyard/x", b"1")
    assert client.get("/trainyard/x") is not None

    without = {"ETCDCTL_CACERT": mounted["ETCDCTL_CACERT"]}
    with pytest.raises(RendezvousConnectionError):
        Etcd(access(endpoint, {}, without), retry_seconds=0.5).get("/trainyard/x")
    with pytest.raises(UserError, match="untrusted"):
        Etcd(access(endpoint, {}, {})).get("/trainyard/x")


def test_certificates_of_another_stack_do_not_get_in(
    endpoint: str, certificates: dict[str, Path], tmp_path: Path
) -> None:
    other = issue(["etcd"])
    for name, text in (("tls.crt", other["clientCertificate"]), ("tls.key", other["clientKey"])):
        (certificates["client"] / name).write_text(text)
    files = {f"ETCDCTL_{name}": str(certificates["client"] / file) for name, file in NAMES.items()}
    with pytest.raises(RendezvousConnectionError):
        Etcd(access(endpoint, {}, files), retry_seconds=0.5).get("/trainyard/x")


def test_the_certificates_have_all_that_newer_verifiers_ask_for(certificates: dict[str, Path]) -> None:
    for folder in certificates.values():
        verify = ["openssl", "verify", "-x509_strict", "-CAfile", str(folder / "ca.crt"), str(folder / "tls.crt")]
        subprocess.run(verify, check=True)


def test_each_side_has_its_own_certificate_alone(stack: Recording) -> None:
    """The server's key in a trainer's pod would let it pass for the server."""
    mounted = {
        name: {
            volume["secret"]["secretName"]
            for volume in stack.one(kind, name).inputs["spec"]["template"]["spec"]["volumes"]
            if "secret" in volume
        }
        for kind, name in (("StatefulSet", "etcd"), ("Job", "training"))
    }
    assert mounted == {"etcd": {"etcd-server"}, "training": {"etcd-client"}}

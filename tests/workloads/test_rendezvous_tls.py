"""The etcd that the stack declares, really started with its certificates: only the client's certificate gets in."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

from local import toolchain
from review.recording import Recording
from tests.infra.recorded import recorded
from tests.ports import free_port
from trainer.elastic.etcd import Etcd, access
from trainer.errors import UserError
from workloads.certificates import CertificateProvider, issue

NAMES = {"CACERT": "ca.crt", "CERT": "tls.crt", "KEY": "tls.key"}


@pytest.fixture
def stack() -> Recording:
    return recorded("local", rendezvous={"tls": True})


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
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{ports['2381']}/health", timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
                time.sleep(0.05)
        yield f"https://localhost:{ports['2379']}"
    finally:
        process.kill()
        process.wait()


def test_the_declared_etcd_lets_its_stacks_trainers_in_and_nobody_else(
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
    other = issue(["etcd"])  # another stack's
    for name, text in (("tls.crt", other["clientCertificate"]), ("tls.key", other["clientKey"])):
        (certificates["client"] / name).write_text(text)
    with pytest.raises(RendezvousConnectionError):
        Etcd(access(endpoint, {}, mounted), retry_seconds=0.5).get("/trainyard/x")


@pytest.mark.parametrize(
    ("who", "purpose", "passes"),
    [
        ("server", "-purpose sslserver -verify_hostname etcd.trainyard.svc", True),
        ("server", "-purpose sslserver -verify_hostname etcd.other.svc", False),
        ("client", "-purpose sslclient", True),
        ("client", "-purpose sslserver", False),
    ],
)
def test_a_certificate_is_good_for_its_names_and_its_side_alone(
    certificates: dict[str, Path], who: str, purpose: str, passes: bool
) -> None:
    """With all that newer verifiers ask for."""
    folder = certificates[who]
    verify = ["openssl", "verify", "-x509_strict", *purpose.split(), "-CAfile", str(folder / "ca.crt")]
    done = subprocess.run([*verify, str(folder / "tls.crt")], capture_output=True, text=True)
    assert (done.returncode == 0) is passes, done.stderr


def test_each_side_mounts_its_own_certificate_alone_for_its_group(stack: Recording) -> None:
    """The server's key in a trainer's pod would let it pass for the server; none of the pods runs as root."""
    for kind, name, secret in (("StatefulSet", "etcd", "etcd-server"), ("Job", "training", "etcd-client")):
        pod = stack.one(kind, name).inputs["spec"]["template"]["spec"]
        (mounted,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        assert mounted == {"secretName": secret, "defaultMode": 0o440}
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"] != 0


def test_certificates_are_kept_until_their_names_change_or_their_end_is_near() -> None:
    provider = CertificateProvider()
    made = provider.create({"names": ["etcd", "etcd.trainyard.svc"]}).outs
    assert made is not None
    assert not provider.diff("etcd", made, {"names": ["etcd", "etcd.trainyard.svc"]}).changes
    assert provider.diff("etcd", made, {"names": ["etcd", "etcd.other.svc"]}).replaces
    for days, replaces in ((31, False), (29, True)):
        old = {**made, "until": (datetime.now(UTC) + timedelta(days=days)).isoformat()}
        assert bool(provider.diff("etcd", old, {"names": ["etcd", "etcd.trainyard.svc"]}).replaces) == replaces

"""The etcd client: certificates, passwords, versions, and its messages when etcd refuses it."""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import ssl
import struct
import threading
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousStateError

from tests.trainer.conftest import EtcdServer
from trainer.elastic import etcd
from trainer.elastic.etcd import Etcd, access
from trainer.errors import UserError

Start = Callable[..., EtcdServer]


@pytest.fixture
def start(etcd_binary: str, tmp_path: Path) -> Iterator[Start]:
    servers: list[EtcdServer] = []

    def make(binary: str = etcd_binary, **options: Any) -> EtcdServer:
        servers.append(EtcdServer(binary, tmp_path / f"etcd-{len(servers)}", **options))
        servers[-1].start()
        return servers[-1]

    yield make
    for server in servers:
        server.kill()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca, server and client: NAME.crt and NAME.key."""
    folder = tmp_path_factory.mktemp("certificates")
    now = datetime.datetime.now(datetime.UTC)
    authority = ec.generate_private_key(ec.SECP256R1())
    for name in ("ca", "server", "client"):
        key = authority if name == "ca" else ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(name == "ca", None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
            .add_extension(x509.ExtendedKeyUsage(usages), False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False)
            .sign(authority, hashes.SHA256())
        )
        (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (folder / f"{name}.key").write_bytes(key.private_bytes(*pem))
    return folder


@pytest.fixture
def python_313(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts with the default flags of Python 3.13, which refuse an authority like ours here."""
    create = ssl.create_default_context

    def strict(**given: Any) -> ssl.SSLContext:
        context = create(**given)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


@pytest.mark.usefixtures("python_313")
def test_only_who_has_a_certificate_of_the_authority_gets_in(start: Start, certificates: Path) -> None:
    options = ["--client-cert-auth", "--trusted-ca-file", str(certificates / "ca.crt")]
    options += ["--cert-file", str(certificates / "server.crt"), "--key-file", str(certificates / "server.key")]
    server = start(options=options, scheme="https")
    files = {"cacert": "ca.crt", "cert": "client.crt", "key": "client.key"}
    settings = {name: str(certificates / file) for name, file in files.items()}
    client = Etcd(access(server.endpoint, settings, {}), retry_seconds=10)
    client.put("/trainyard/x", b"secret")
    server.kill()
    threading.Timer(1, server.start).start()
    found = client.get("/trainyard/x")  # through a restart, as without TLS
    assert found is not None
    assert found.data == b"secret"

    environment = {"ETCDCTL_CACERT": settings["cacert"], "ETCDCTL_CERT": settings["cert"]}
    environment["ETCDCTL_KEY"] = settings["key"]
    assert Etcd(access(server.endpoint, {}, environment)).get("/trainyard/x") is not None

    stranger = Etcd(access(f"https://{server.endpoint}", {"cacert": settings["cacert"]}, {}), retry_seconds=0.5)
    with pytest.raises(RendezvousConnectionError):
        stranger.get("/trainyard/x")
    with pytest.raises(UserError, match=r"has an untrusted certificate .* cacert"):
        Etcd(access(f"https://{server.endpoint}", {}, {})).get("/trainyard/x")


def post(server: EtcdServer, path: str, token: str = "", **body: Any) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": token} if token else {})}
    request = urllib.request.Request(f"http://{server.endpoint}/v3{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.load(reply)


def with_password(server: EtcdServer) -> None:
    post(server, "/auth/user/add", name="root", password="r")
    post(server, "/auth/user/grant", user="root", role="root") if post(server, "/auth/role/add", name="root") else None
    post(server, "/auth/user/add", name="trainer", password="good")
    post(server, "/auth/role/add", name="rendezvous")
    ours = {"key": b64encode(b"/trainyard/").decode(), "range_end": b64encode(b"/trainyard0").decode()}
    post(server, "/auth/role/grant", name="rendezvous", perm={"permType": "READWRITE", **ours})
    post(server, "/auth/user/grant", user="trainer", role="rendezvous")
    post(server, "/auth/enable")


def test_a_password_is_asked_for_renewed_and_told_when_wrong(start: Start) -> None:
    server = start()
    with_password(server)
    client = Etcd(access(server.endpoint, {}, {"ETCDCTL_USER": "trainer:good"}), retry_seconds=10)
    client.put("/trainyard/x", b"1")
    # pyrefly: ignore[missing-attribute]
    assert client.swap("/trainyard/x", b"2", client.get("/trainyard/x").revision)[0]
    server.kill()
    server.start()  # the tokens that it gave are void now
    assert client.get("/trainyard/x").data == b"2"  # pyrefly: ignore[missing-attribute]
    with pytest.raises(UserError, match="permission denied"):
        client.put("/others/x", b"1")
    with pytest.raises(UserError, match="refuses user trainer: wrong name or password"):
        Etcd(access(server.endpoint, {"username": "trainer", "password": "bad"}, {})).get("/trainyard/x")
    with pytest.raises(UserError, match=r"refuses our credentials.*ETCDCTL_USER"):
        Etcd(access(server.endpoint, {}, {})).get("/trainyard/x")
    server.lose_data()
    server.start()  # an empty etcd has no users, and asks for no password
    client.put("/trainyard/x", b"3")


@pytest.mark.parametrize(
    ("endpoint", "settings", "said"),
    [
        ("etcd", {"protocol": "ftp"}, "'ftp'; allowed: http, https"),
        ("http://etcd", {"cacert": "ca.crt"}, "cacert given for a plain http etcd"),
        ("etcd", {"cert": "a.crt"}, "needs both cert and key"),
        ("etcd", {"cacert": "/nowhere/ca.crt"}, "/nowhere/ca.crt.*cannot be used"),
        ("etcd", {"username": "me"}, "without a password"),
    ],
)
def test_settings_that_cannot_work_are_told_at_once(endpoint: str, settings: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        access(endpoint, settings, {})


def test_a_write_whose_answer_was_lost_counts_once(
    shared_etcd: EtcdServer, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd dies between writing and answering."""
    client = Etcd(access(shared_etcd.endpoint, {}, {}), retry_seconds=10)
    _, first = client.swap(run_id, b"1", 0)
    assert first is not None
    real, lost = client._post, []

    def post_and_lose(path: str, content: bytes) -> tuple[int, str]:
        answer = real(path, content)
        if path == "/kv/txn" and not lost:
            lost.append(answer)
            raise ConnectionResetError("lost")
        return answer

    monkeypatch.setattr(client, "_post", post_and_lose)
    written, now = client.swap(run_id, b"2", first.revision)
    assert lost
    assert written
    assert now is not None
    assert now.data == b"2"


def test_a_connection_that_etcd_ended_is_made_anew_though_nobody_waits() -> None:
    """With a reset, as from the address of a replaced pod; a plain close would show before the request."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answers in (1, 9):
                connection, _ = server.accept()
                while received := connection.recv(65536):
                    if b"}" not in received:  # the headers
                        continue
                    if not answers:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        break
                    answers -= 1
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        client = Etcd(access(f"127.0.0.1:{server.getsockname()[1]}", {}, {}))
        client.patient(False)
        assert [client.get("/trainyard/x") for _ in range(3)] == [None] * 3


def test_an_etcd_that_is_silent_delays_nobody_who_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine is gone: nothing refuses the connection."""
    monkeypatch.setattr(etcd, "GLANCE_SECONDS", 0.1)
    monkeypatch.setattr(etcd, "REQUEST_SECONDS", 3600)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        client = Etcd(access(f"127.0.0.1:{deaf.getsockname()[1]}", {}, {}))
        client.patient(False)
        with pytest.raises(RendezvousConnectionError):
            client.get("/trainyard/x")


def fill(server: EtcdServer) -> None:
    """Write one key anew until the store takes no more."""

    def write_on() -> None:
        for _ in range(100):
            post(server, "/kv/put", key="eA==", value="eHh4" * 250_000)

    with pytest.raises(urllib.error.HTTPError, match="429"):
        write_on()


def test_a_full_store_takes_the_next_write_and_keeps_what_it_holds(start: Start) -> None:
    server = start(options=["--quota-backend-bytes", str(16 << 20)])
    clients = [Etcd(access(server.endpoint, {}, {}), retry_seconds=20) for _ in range(4)]
    clients[0].put("/trainyard/x", b"1")
    fill(server)
    with ThreadPoolExecutor() as pool:  # one grants its lease anew, the others for the first time
        list(pool.map(lambda client: client.put("/trainyard/y", b"2"), clients))
    assert clients[0].get("/trainyard/x").data == b"1"  # pyrefly: ignore[missing-attribute]
    assert not post(server, "/maintenance/alarm", alarm="NOSPACE").get("alarms")
    fill(server)
    clients[0].patient(False)  # as a heartbeat, which waits for no store
    clients[0].put("/trainyard/y", b"3")


def test_a_lease_that_etcd_did_not_grant_as_asked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway leaves out fields that it does not know, and answers 200."""
    client = Etcd(access("127.0.0.1:1", {}, {}), retry_seconds=0)
    monkeypatch.setattr(client, "_post", lambda *_: (200, '{"ID": "7", "TTL": "3"}'))
    with pytest.raises(RendezvousStateError, match="grants no lease of 300 s"):
        client.put("/trainyard/x", b"1")

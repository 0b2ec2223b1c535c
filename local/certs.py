"""The certificate authority of the node and every key pair that its parts identify themselves with.

Kubernetes reads who somebody is from a client certificate: the common name is the user, each organisation a group.
https://kubernetes.io/docs/setup/best-practices/certificates/ lists the names that it has rights for.
"""

import datetime
import ipaddress
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from local import network, paths

VALID = datetime.timedelta(days=365)
RENEW_BEFORE = datetime.timedelta(days=30)
NODE_NAME = "trainyard"


@dataclass(frozen=True)
class Identity:
    """One key pair: NAME.crt and NAME.key."""

    name: str
    user: str
    groups: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()  # host names and addresses when it is a server's


IDENTITIES = (
    Identity(
        "apiserver",
        "kube-apiserver",
        serves=(
            network.NODE_ADDRESS,
            network.API_SERVICE_ADDRESS,
            "127.0.0.1",
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            f"kubernetes.default.svc.{network.DNS_DOMAIN}",
        ),
    ),
    Identity("admin", "trainyard-admin", ("system:masters",)),
    # What the API server shows the kubelet for logs, exec and port-forward.
    Identity("apiserver-kubelet-client", "kube-apiserver-kubelet-client", ("system:masters",)),
    Identity("kube-controller-manager", "system:kube-controller-manager"),
    Identity("kube-scheduler", "system:kube-scheduler"),
    Identity("kube-proxy", "system:kube-proxy"),
    Identity("coredns", "trainyard:coredns"),
    Identity("kube-router", "trainyard:kube-router"),
    Identity("kubelet", f"system:node:{NODE_NAME}", ("system:nodes",)),
    Identity("kubelet-server", NODE_NAME, serves=(network.NODE_ADDRESS, NODE_NAME)),
)


def certificate(name: str) -> Path:
    return paths.CERTIFICATES / f"{name}.crt"


def key(name: str) -> Path:
    return paths.CERTIFICATES / f"{name}.key"


CA = paths.CERTIFICATES / "ca.crt"
SERVICE_ACCOUNT_KEY = paths.CERTIFICATES / "service-account.key"
SERVICE_ACCOUNT_PUBLIC = paths.CERTIFICATES / "service-account.pub"
# Written last: names what the others were made for. Without it everything is made anew.
MANIFEST = paths.CERTIFICATES / "manifest.json"


def ensure() -> bool:
    """Makes all of them when one is missing, was made for other names or ends within a month. Returns whether it did.

    All or none: every part trusts the one authority, whose key is thrown away after it signed.
    """
    wanted = [asdict(identity) for identity in IDENTITIES]
    now = datetime.datetime.now(datetime.UTC)
    try:
        manifest = json.loads(MANIFEST.read_text())
        same = manifest["identities"] == json.loads(json.dumps(wanted))
        lasts = datetime.datetime.fromisoformat(manifest["until"]) - now > RENEW_BEFORE
        there = all(path(name).exists() for name in (i.name for i in IDENTITIES) for path in (certificate, key))
        if same and lasts and there and CA.exists() and SERVICE_ACCOUNT_KEY.exists():
            return False
    except (OSError, ValueError, KeyError):
        pass
    MANIFEST.unlink(missing_ok=True)
    paths.CERTIFICATES.mkdir(parents=True, exist_ok=True)
    paths.CERTIFICATES.chmod(0o700)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trainyard local CA")])
    ca = _certificate(ca_name, ca_name, ca_key.public_key(), now)
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(ca_key, hashes.SHA256())
    CA.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    for identity in IDENTITIES:
        pair = ec.generate_private_key(ec.SECP256R1())
        signed = _leaf(identity, ca_name, pair.public_key(), now).sign(ca_key, hashes.SHA256())
        _write_key(key(identity.name), pair)
        certificate(identity.name).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    # Kept over a renewal: tokens that pods hold stay valid.
    if not SERVICE_ACCOUNT_KEY.exists():
        pair = ec.generate_private_key(ec.SECP256R1())
        _write_key(SERVICE_ACCOUNT_KEY, pair)
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        SERVICE_ACCOUNT_PUBLIC.write_bytes(pair.public_key().public_bytes(serialization.Encoding.PEM, form))
    MANIFEST.write_text(json.dumps({"identities": wanted, "until": (now + VALID).isoformat()}))
    return True


def _certificate(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # a clock that is set back a little is no failure
        .not_valid_after(now + VALID)
    )


def _leaf(
    identity: Identity, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    subject = x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in identity.groups),
            x509.NameAttribute(NameOID.COMMON_NAME, identity.user),
        ]
    )
    builder = _certificate(subject, issuer, public, now)
    usage = ExtendedKeyUsageOID.SERVER_AUTH if identity.serves else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if identity.serves:
        names = x509.SubjectAlternativeName([_general_name(name) for name in identity.serves])
        builder = builder.add_extension(names, critical=False)
    return builder


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_key(path: Path, pair: ec.EllipticCurvePrivateKey) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(pair.private_bytes(serialization.Encoding.PEM, form, encryption))

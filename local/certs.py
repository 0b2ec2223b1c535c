"""The node's certificate authority and the key pair of each component.

Kubernetes takes the identity from the client certificate: the common name is the user, each organisation is a group.
https://kubernetes.io/docs/setup/best-practices/certificates/ lists the names that have rights by default.
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
AUTHORITY = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trainyard local CA")])


@dataclass(frozen=True)
class Identity:
    """One key pair: NAME.crt and NAME.key."""

    name: str
    user: str
    groups: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()  # a server's host names and addresses


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
    # The API server's client certificate towards the kubelet, for logs, exec and port-forward.
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
# Written last. Lists the identities that the certificates were made for; without it all of them are made again.
MANIFEST = paths.CERTIFICATES / "manifest.json"


def ensure() -> bool:
    """Make all certificates if one is missing, has other names or expires within a month. Returns whether it did.

    All or none: every component trusts the one authority, whose key is thrown away after signing.
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
    authority = ec.generate_private_key(ec.SECP256R1())
    # key_cert_sign and crl_sign: Python 3.13 and newer ask for them, and for the identifiers (ssl.VERIFY_X509_STRICT).
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    signs = x509.BasicConstraints(ca=True, path_length=0)
    CA.write_bytes(_signed(AUTHORITY, authority, authority, [(signs, True), (usage, True)]))
    for identity in IDENTITIES:
        pair = ec.generate_private_key(ec.SECP256R1())
        _write_key(key(identity.name), pair)
        certificate(identity.name).write_bytes(_signed(_subject(identity), pair, authority, _uses(identity)))
    # Keep this key over a renewal, so that the tokens of running pods stay valid.
    if not SERVICE_ACCOUNT_KEY.exists():
        pair = ec.generate_private_key(ec.SECP256R1())
        _write_key(SERVICE_ACCOUNT_KEY, pair)
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        SERVICE_ACCOUNT_PUBLIC.write_bytes(pair.public_key().public_bytes(serialization.Encoding.PEM, form))
    MANIFEST.write_text(json.dumps({"identities": wanted, "until": (now + VALID).isoformat()}))
    return True


def _signed(
    subject: x509.Name,
    pair: ec.EllipticCurvePrivateKey,
    authority: ec.EllipticCurvePrivateKey,
    extensions: list[tuple[x509.ExtensionType, bool]],
) -> bytes:
    """Return a certificate in PEM. `extensions`: (extension, whether it is critical)."""
    now = datetime.datetime.now(datetime.UTC)
    begin = now - datetime.timedelta(hours=1)  # still valid after the clock is set back a little
    serial = x509.random_serial_number()
    builder = (
        x509.CertificateBuilder(AUTHORITY, subject, pair.public_key(), serial, begin, now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(pair.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _subject(identity: Identity) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in identity.groups]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, identity.user)])


def _uses(identity: Identity) -> list[tuple[x509.ExtensionType, bool]]:
    if not identity.serves:
        return [(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False)]
    names = x509.SubjectAlternativeName([_general_name(name) for name in identity.serves])
    return [(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False), (names, False)]


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_key(path: Path, pair: ec.EllipticCurvePrivateKey) -> None:
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    write_private(path, pair.private_bytes(serialization.Encoding.PEM, form, encryption))


def write_private(path: Path, content: bytes) -> None:
    """Replace a file atomically by one that its owner alone may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o600)
    temporary.write_bytes(content)
    temporary.replace(path)

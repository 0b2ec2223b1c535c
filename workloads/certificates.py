"""Pulumi dynamic provider for the rendezvous certificates.

They are made once and kept as secrets in the stack's state. A private authority signs one certificate for the server
and one for the trainers; its key is then discarded, so nobody can sign a third. All are replaced when the names change
or a month before they expire.

The provider's methods run in a process of Pulumi's own, which finds this module by name.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider

VALID = datetime.timedelta(days=365)
RENEW_BEFORE = datetime.timedelta(days=30)
SECRETS = ("serverKey", "clientKey")


class RendezvousCertificates(Resource, module="trainyard", name="RendezvousCertificates"):
    """PEM texts of the authority, the server (for `names`) and its clients."""

    authority: pulumi.Output[str]
    serverCertificate: pulumi.Output[str]
    serverKey: pulumi.Output[str]
    clientCertificate: pulumi.Output[str]
    clientKey: pulumi.Output[str]

    def __init__(self, name: str, names: Sequence[pulumi.Input[str]], opts: pulumi.ResourceOptions):
        made = dict.fromkeys(("authority", "serverCertificate", "serverKey", "clientCertificate", "clientKey", "until"))
        secret = pulumi.ResourceOptions(additional_secret_outputs=list(SECRETS))
        super().__init__(
            CertificateProvider(), name, {"names": names, **made}, pulumi.ResourceOptions.merge(opts, secret)
        )


class CertificateProvider(ResourceProvider):
    def create(self, props: dict[str, Any]) -> CreateResult:
        names = [str(name) for name in props["names"]]
        return CreateResult(id_=names[0], outs={**props, **issue(names)})

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        now = datetime.datetime.now(datetime.UTC)
        late = now + RENEW_BEFORE > datetime.datetime.fromisoformat(olds["until"])
        replaces = ["names"] if late or list(olds["names"]) != list(news["names"]) else []
        return DiffResult(changes=bool(replaces), replaces=replaces, delete_before_replace=False)


def issue(names: list[str]) -> dict[str, str]:
    """Issue an authority, a server certificate for `names` and a client certificate; `until` is when they expire."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)
    # The clocks of the nodes differ a little.
    begin, until = now - datetime.timedelta(minutes=5), now + VALID

    def subject(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def sign(
        name: str, key: ec.EllipticCurvePrivateKey, authority: ec.EllipticCurvePrivateKey, serves: list[str]
    ) -> str:
        public = authority.public_key()
        builder = (
            x509.CertificateBuilder(subject("trainyard rendezvous"), subject(name), key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(until)
            .add_extension(x509.BasicConstraints(ca=key is authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        )
        if key is authority:
            # key_cert_sign and crl_sign: Python 3.13 and newer ask for them (ssl.VERIFY_X509_STRICT).
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
        else:
            # etcd's JSON gateway dials etcd with the server's certificate, so it must allow client authentication too.
            usages = [ExtendedKeyUsageOID.SERVER_AUTH] if serves else []
            usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if serves:
            alternatives = x509.SubjectAlternativeName([x509.DNSName(each) for each in serves])
            builder = builder.add_extension(alternatives, critical=False)
        return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def pem(key: ec.EllipticCurvePrivateKey) -> str:
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return key.private_bytes(*form).decode()

    authority, server, client = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    return {
        "authority": sign("trainyard rendezvous", authority, authority, []),
        "serverCertificate": sign("etcd", server, authority, [*names, "localhost"]),
        "serverKey": pem(server),
        "clientCertificate": sign("trainer", client, authority, []),
        "clientKey": pem(client),
        "until": until.isoformat(),
    }

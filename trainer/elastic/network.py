"""Addresses, names and interfaces from the operating system. The launcher needs them before it loads torch."""

import contextlib
import fcntl
import ipaddress
import socket
import ssl
import struct
import time

from trainer.errors import UserError, one_line

_SIOCGIFADDR = 0x8915
"""ioctl that asks an interface for its IPv4 address (linux/sockios.h)."""


def split_endpoint(endpoint: str, default_port: int, option: str = "--rdzv-endpoint") -> tuple[str, int]:
    """Host and port of HOST[:PORT], with or without http:// before it. Raises UserError, which names `option`."""
    host, _, port = endpoint.rpartition("://")[2].rstrip("/").rpartition(":")
    if not host:
        host, port = port, str(default_port)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"{option} {endpoint}: write HOST:PORT, such as 10.0.0.5:{default_port}")
    return host.strip("[]"), int(port)


def wait_reachable(host: str, port: int, seconds: float) -> str | None:
    """Wait until `host` answers on `port`; the reason if it does not in time.

    The name of a new Service or pod may not exist yet, and a resolver caches that for up to 30 s.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return None
        except OSError as error:
            if time.monotonic() > deadline:
                return one_line(error.strerror or error)
        time.sleep(1)


def trust(authority: str | None) -> ssl.SSLContext:
    """A context that trusts a file's authority, or this machine's, as kubectl and etcdctl do.

    Python 3.13 began to refuse authorities without every extension of RFC 5280 (VERIFY_X509_STRICT), as EKS's is, and
    as openssl makes them (kubernetes-client/python issue 2394, 2026-11-27). Raises OSError.
    """
    context = ssl.create_default_context(cafile=authority)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def address_towards(host: str) -> str | None:
    """This machine's address on the way to `host`; no packet is sent."""
    with contextlib.suppress(OSError):
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return probe.getsockname()[0]
    return None


def interface_towards(host: str) -> str | None:
    """The network interface on the way to `host`.

    gloo otherwise takes the address of the host name, which in containers is often 127.0.0.1.
    """
    address = address_towards(host)
    if address is None or ":" in address:
        return None
    if ipaddress.ip_address(address).is_loopback:
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(reply[20:24]) == address:
                    return name
    return None

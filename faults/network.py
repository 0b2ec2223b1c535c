"""The machines of a laboratory: network namespaces on one bridge, which has its own namespace. The host's network does
not change.

`python -m faults.network ADDRESS NAME=ADDRESS ...` is their name server: it answers A queries for its names.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

SUBNET = "10.77.0"
_number = itertools.count()


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


@dataclass
class Network:
    """Machines that reach each other and nothing else. Several networks may exist at once."""

    prefix: str = field(default_factory=lambda: f"chaos{os.getpid()}-{next(_number)}")
    machines: dict[str, str] = field(default_factory=dict)
    """Machine -> address."""

    @property
    def _hub(self) -> str:
        return f"{self.prefix}-hub"

    def __enter__(self) -> Network:
        run("ip", "netns", "add", self._hub)
        run("ip", "-n", self._hub, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self._hub, "link", "set", "br0", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for machine in [*self.machines, "hub"]:
            subprocess.run(["ip", "netns", "del", f"{self.prefix}-{machine}"], capture_output=True, check=False)

    def add(self, machine: str, number: int) -> str:
        """Add a machine with the address 10.77.0.NUMBER."""
        space, address = f"{self.prefix}-{machine}", f"{SUBNET}.{number}"
        run("ip", "netns", "add", space)
        run("ip", "-n", self._hub, "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
        run("ip", "-n", self._hub, "link", "set", f"v{number}", "master", "br0", "up")
        run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            run("ip", "-n", space, "link", "set", device, "up")
        self.machines[machine] = address
        return address

    def cut(self, machine: str) -> None:
        """Drop every packet of a machine, as in a power loss: no FIN, no RST."""
        number = self.machines[machine].rpartition(".")[2]
        run("ip", "-n", self._hub, "link", "set", f"v{number}", "down")

    def enter(self, machine: str, resolv: Path | None = None) -> list[str]:
        """Return the command prefix that runs a command on a machine, with its own resolv.conf if given."""
        command = ["nsenter", f"--net=/run/netns/{self.prefix}-{machine}", "--"]
        if resolv is not None:
            mount = f'mount --bind {resolv} /etc/resolv.conf && exec "$@"'
            command += ["unshare", "--mount", "--", "sh", "-c", mount, "sh"]
        return command


def answer(question: bytes, names: dict[str, str]) -> bytes:
    """Reply to one query (RFC 1035) with an address, or that the name or the record type does not exist."""
    labels, position = [], 12
    while length := question[position]:
        labels.append(question[position + 1 : position + 1 + length].decode())
        position += 1 + length
    (kind,) = struct.unpack("!H", question[position + 1 : position + 3])
    address = names.get(".".join(labels).lower())
    found = address is not None and kind == 1
    code = 0x8180 if address is not None else 0x8183  # a response; code 3: NXDOMAIN
    head = question[:2] + struct.pack("!HHHHH", code, 1, int(found), 0, 0)
    body = question[12 : position + 5]
    if found:
        assert address is not None
        body += struct.pack("!HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(address)  # TTL: one second
    return head + body


def serve_names() -> None:
    names = dict(item.split("=", 1) for item in sys.argv[2:])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((sys.argv[1], 53))
        while True:
            question, client = server.recvfrom(512)
            server.sendto(answer(question, names), client)


if __name__ == "__main__":
    serve_names()

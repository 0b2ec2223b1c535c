"""The machines of a laboratory: network namespaces on one bridge, which has its own namespace. The host's network does
not change."""

from __future__ import annotations

import secrets
import subprocess

HUB = "hub"


class Network:
    """Machines that reach each other and nothing else. Several networks may exist at once."""

    def __init__(self) -> None:
        self.prefix = f"chaos-{secrets.token_hex(4)}"
        self.addresses: dict[str, str] = {}
        """By machine."""

    def make(self) -> None:
        _ip("netns", "add", self._space(HUB))
        self._set(HUB, "add", "br0", "type", "bridge")
        self._set(HUB, "set", "br0", "up")

    def remove(self) -> None:
        """Also what is half made."""
        for machine in (*self.addresses, HUB):
            subprocess.run(["ip", "netns", "del", self._space(machine)], capture_output=True, check=False)

    def add(self, machine: str, number: int) -> None:
        """Add a machine with the address 10.77.0.NUMBER."""
        space, self.addresses[machine] = self._space(machine), f"10.77.0.{number}"
        _ip("netns", "add", space)
        self._set(HUB, "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
        self._set(HUB, "set", f"v{number}", "master", "br0", "up")
        _ip("-n", space, "addr", "add", f"{self.addresses[machine]}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            self._set(machine, "set", device, "up")

    def cut(self, machine: str) -> None:
        """Drop every packet of a machine, as in a power loss: no FIN, no RST."""
        self._set(HUB, "set", f"v{self.addresses[machine].rpartition('.')[2]}", "down")

    def enter(self, machine: str) -> list[str]:
        """Return the command prefix that runs a command on a machine."""
        return ["nsenter", f"--net=/run/netns/{self._space(machine)}", "--"]

    def _space(self, machine: str) -> str:
        return f"{self.prefix}-{machine}"

    def _set(self, machine: str, *link: str) -> None:
        _ip("-n", self._space(machine), "link", *link)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

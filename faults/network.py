"""The machines of a laboratory: network namespaces on one bridge, which has its own namespace. The host's network does
not change."""

from __future__ import annotations

import itertools
import os
import subprocess
from dataclasses import dataclass, field

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

    def enter(self, machine: str) -> list[str]:
        """Return the command prefix that runs a command on a machine."""
        return ["nsenter", f"--net=/run/netns/{self.prefix}-{machine}", "--"]

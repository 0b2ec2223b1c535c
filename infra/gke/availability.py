"""Asks Google at preview whether the zones have the workers' machine type: one request for each zone.

Without credentials, without an answer within PATIENCE, and without an engine (tests, snapshots) nothing is refused; the
doctor says what it could not ask.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pulumi.runtime import mocks, settings

from infra.config import StackConfig
from infra.gke.keys import FILE, TOKEN, GkeConfig, GkeNodes, zones

#: Seconds to connect, and to answer: a preview that cannot reach Google reports that by itself, a little later.
PATIENCE = (2, 4)


def has_credentials() -> bool:
    """Whether this machine has Google credentials. Does not ask the metadata server, whose absence takes seconds."""
    folder = os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud"
    found = Path(os.environ.get(FILE) or Path(folder) / "application_default_credentials.json")
    return bool(os.environ.get(TOKEN)) or found.is_file()


def problems(config: StackConfig) -> Iterator[str]:
    """One line for each zone that lacks the machine type."""
    if isinstance(settings.get_monitor(), mocks.MockMonitor) or not has_credentials():
        return
    project, machine = config.section(GkeConfig).project, config.machine.name
    key = "nodes.zones" if config.section(GkeNodes).zones else "gke.zone"
    for zone in zones(config):
        if _lacks(project, zone, machine):
            yield (
                f"{key}: Google offers no {machine} in {zone} to project {project}; "
                f"`gcloud compute machine-types list --filter name={machine}` lists the zones that have it"
            )


def _lacks(project: str, zone: str, machine_type: str) -> bool:
    """Whether Google says that the zone does not have the machine type."""
    from infra.gke.doctor.google_client import connect

    try:
        connect(patience=PATIENCE).get("compute", f"projects/{project}/zones/{zone}/machineTypes/{machine_type}")
    except Exception as reason:  # whatever else fails, credentials or network, `pulumi up` tells
        return getattr(reason, "status", 0) == 404
    return False

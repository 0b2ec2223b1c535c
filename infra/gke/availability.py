"""Checks that the zones have the machine types: asks Google where there are credentials, else reads zones.yaml.

The program sends one request for compute.machineTypes per zone. Without credentials, without an answer within PATIENCE,
and without an engine (tests, snapshots), the dated table decides.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from infra.config import StackConfig
from infra.gke.keys import FILE, TOKEN, GkeConfig, GkeNodes, zones
from infra.gke.machines import zones_date

#: Seconds to connect, and to answer: a preview that cannot reach Google reports that by itself, a little later.
PATIENCE = (2, 4)


def has_credentials() -> bool:
    """Whether this machine has Google credentials. Does not ask the metadata server, whose absence takes seconds."""
    folder = os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud"
    found = Path(os.environ.get(FILE) or Path(folder) / "application_default_credentials.json")
    return bool(os.environ.get(TOKEN)) or found.is_file()


def by_table(config: StackConfig) -> Iterator[str]:
    """One line for each zone that lacks the machine type, by zones.yaml."""
    machine = config.machine
    for zone in zones(config):
        if machine.zones is None or zone in machine.zones:
            continue
        region = zone.rsplit("-", 1)[0]
        near = sorted(each for each in machine.zones if each.startswith(f"{region}-")) or sorted(machine.zones)
        said = f"{machine.name} is not offered in {zone} (as of {zones_date()})"
        yield f"{_key(config)}: {said}; allowed: {', '.join(near)}"


def problems(config: StackConfig) -> list[str]:
    """One line for each zone that lacks the machine type."""
    if not _engine_runs() or not has_credentials():
        return list(by_table(config))
    project, machine = config.section(GkeConfig).project, config.machine.name
    answers = [_offers(project, zone, machine) for zone in zones(config)]
    if None in answers:
        return list(by_table(config))
    return [
        f"{_key(config)}: Google offers no {machine} in {zone} to project {project}; "
        f"`gcloud compute machine-types list --filter name={machine}` lists the zones that have it"
        for zone, offered in zip(zones(config), answers, strict=True)
        if not offered
    ]


def _key(config: StackConfig) -> str:
    return "nodes.zones" if config.section(GkeNodes).zones else "gke.zone"


def _engine_runs() -> bool:
    """Whether this is a run of Pulumi, not a recording."""
    from pulumi.runtime import mocks, settings

    return not isinstance(settings.get_monitor(), mocks.MockMonitor)


def _offers(project: str, zone: str, machine_type: str) -> bool | None:
    """Whether Google offers the machine type in the zone; None: no answer."""
    from infra.gke.doctor.google_client import connect

    try:
        connect(patience=PATIENCE).get("compute", f"projects/{project}/zones/{zone}/machineTypes/{machine_type}")
    except Exception as reason:  # Whatever fails, credentials or network, the table answers instead.
        return False if getattr(reason, "status", 0) == 404 else None
    return True

"""Asks Google whether the zones have the types of machines, disks and accelerators that a stack names: the doctor, and
every preview.

Without credentials, without an answer within PATIENCE, and without an engine (tests, snapshots) a preview refuses
nothing; the doctor says what it could not ask.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pulumi.runtime import mocks, settings

from infra.config import StackConfig
from infra.finding import NoAnswer
from infra.gke.keys import FILE, TOKEN, GkeConfig, GkeNodes, zones

if TYPE_CHECKING:
    from infra.gke.doctor.google_client import Google

#: Seconds to connect, and to answer: a preview that cannot reach Google reports that by itself, a little later.
PATIENCE = (2, 4)


def lacking(google: Google, config: StackConfig) -> Iterator[tuple[str, str, str]]:
    """(kind, name, zone) of each type that a zone does not offer to the project. Raises NoAnswer."""
    gke, nodes, accelerator = config.section(GkeConfig), config.section(GkeNodes), config.machine.accelerator
    wanted = [("machine", gke.system_machine_type, gke.zone)]
    for zone in zones(config):
        wanted += [("machine", nodes.machine_type, zone), ("disk", nodes.disk_type, zone)]
        wanted += [("accelerator", accelerator, zone)] if accelerator else []
    for kind, name, zone in wanted:
        try:
            google.get("compute", f"projects/{gke.project}/zones/{zone}/{kind}Types/{name}")
        except NoAnswer as reason:
            if getattr(reason, "status", 0) != 404:
                raise
            yield kind, name, zone


def has_credentials() -> bool:
    """Whether this machine has Google credentials. Does not ask the metadata server, whose absence takes seconds."""
    folder = os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud"
    found = Path(os.environ.get(FILE) or Path(folder) / "application_default_credentials.json")
    return bool(os.environ.get(TOKEN)) or found.is_file()


def problems(config: StackConfig) -> list[str]:
    """One line for each type that a zone lacks."""
    if isinstance(settings.get_monitor(), mocks.MockMonitor) or not has_credentials():
        return []
    from infra.gke.doctor.google_client import connect

    found = []
    with suppress(NoAnswer):  # `pulumi up` tells
        for each in lacking(connect(patience=PATIENCE), config):
            found.append(each)
    key, project = "nodes.zones" if config.section(GkeNodes).zones else "gke.zone", config.section(GkeConfig).project
    return [
        f"{key}: Google offers no {name} in {zone} to project {project}; "
        f"`gcloud compute {kind}-types list --filter name={name}` lists the zones that have it"
        for kind, name, zone in found
    ]

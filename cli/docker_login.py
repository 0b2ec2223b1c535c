"""Let Docker push to a stack's registry.

Google's needs gcloud as a credential helper; the program itself logs into AWS's.
"""

from __future__ import annotations

import subprocess

from cli.target import StackName, configuration
from infra.gke.section import GkeConfig


def docker_login(stack: StackName) -> int:
    gke = configuration(stack).cloud
    if not isinstance(gke, GkeConfig):
        return 0
    return subprocess.run(["gcloud", "auth", "configure-docker", "--quiet", f"{gke.region}-docker.pkg.dev"]).returncode

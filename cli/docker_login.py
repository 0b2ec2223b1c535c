"""Let Docker push to a stack's registry.

Google's needs gcloud as a credential helper; the program itself logs into AWS's.
"""

from __future__ import annotations

import subprocess

from cli.target import StackName, configuration


def docker_login(stack: StackName) -> int:
    gke = configuration(stack).gke
    if gke is None:
        return 0
    region = gke.zone.rsplit("-", 1)[0]
    return subprocess.run(["gcloud", "auth", "configure-docker", "--quiet", f"{region}-docker.pkg.dev"]).returncode

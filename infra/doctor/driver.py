"""Whether nodes have a driver for the image's torch; the check Job (trainer/gpu_check.py) asks the nodes themselves."""

from __future__ import annotations

import re

from infra.config import StackConfig
from infra.doctor.finding import Finding, ok, problem
from infra.stackfiles import ROOT
from trainer.config.drivers import needed_branch, too_old

SUBJECT = "accelerators' driver"
#: Its packages of CUDA are those of torch's build.
LOCK = ROOT / "requirements" / "trainer.txt"


def image_cuda(config: StackConfig) -> str | None:
    """Version of CUDA of torch in the image that a stack builds, such as 13.2; None: no accelerators, or another's
    image."""
    if config.image.builder == "prebuilt" or not config.workers.gpus:
        return None
    found = re.search(r"^cuda-toolkit==(\d+\.\d+)", LOCK.read_text(), re.MULTILINE)
    return found[1] if found else None


def judge(where: str, driver: str, cuda: str, fix: str) -> Finding:
    """Compare a driver with what programs for this version of CUDA need. `where`: what has or installs it."""
    need = f"torch in the image, for CUDA {cuda}, needs {needed_branch(cuda)} or newer"
    if too_old(driver, cuda):
        return problem(SUBJECT, f"{where} {driver}; {need}", fix)
    return ok(SUBJECT, f"{where} {driver}; {need}")

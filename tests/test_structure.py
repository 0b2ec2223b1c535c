"""The layout: imports go one way, a stack imports only what it needs, and a preview shows every resource."""

from __future__ import annotations

import re
import subprocess
import sys

from infra.clouds import CLOUDS
from infra.parse import cluster_kind
from infra.stackfiles import ROOT, stack_file_values, stacks


def test_the_program_needs_what_makes_a_cluster_and_what_runs_on_it_alone() -> None:
    imported = re.findall(r"^(?:from|import) (\w+)", (ROOT / "__main__.py").read_text(), re.MULTILINE)
    assert set(imported) - sys.stdlib_module_names == {"pulumi", "infra", "workloads"}


#: Records a stack, and each other one in a copy of the process that has recorded the first.
PROGRAM = """import os, sys
from review.recording import record_anywhere
for at, stack in enumerate(sys.argv[1:]):
    if at == 0 or os.fork() == 0:
        try:
            record_anywhere(stack)
            print(*(name for name in sys.modules if name.startswith("pulumi_") and "." not in name), flush=True)
        finally:
            if at:
                os._exit(0)
    else:
        os.wait()"""


def test_a_stack_imports_the_sdks_that_it_uses() -> None:
    """Each SDK costs half a second or more at every preview. After one that has none, another shows its own."""
    kinds = ("existing", "gke", "eks")
    one_of_each = {cluster_kind(stack_file_values(name)): name for name in stacks()}
    command = [sys.executable, "-c", PROGRAM, *(one_of_each[kind] for kind in kinds)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for kind, names in zip(kinds, told, strict=True):
        own = CLOUDS[kind].sdk.replace("-", "_")
        assert set(names.split()) == {"pulumi_kubernetes", *([own, "pulumi_docker_build"] if own else [])}

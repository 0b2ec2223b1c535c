"""Ties OpenMP's threads to cores on a node whose cores belong to the training (TRAINYARD_BIND_CORES=1).

Two threads that share a core share its matrix unit. OpenMP ties a thread when it makes it, and the main thread when
the library is loaded: whatever that thread starts later (gloo's, a checkpoint's writer, another process) would stay on
its one core. So the launcher hands the setting to its worker without following it itself, and the worker's main thread
takes its freedom back.
"""

import contextlib
import os

SWITCH = "TRAINYARD_BIND_CORES"
OPENMP = {"OMP_PLACES": "cores", "OMP_PROC_BIND": "close"}


def bind_workers(workers: int) -> None:
    """Let this process's children tie their threads. To be called after torch was imported.

    Several workers on a node would all begin with the first core; they are left to the scheduler.
    """
    if os.environ.get(SWITCH) == "1" and workers == 1:
        for name, value in OPENMP.items():
            os.environ.setdefault(name, value)


def free_main_thread() -> None:
    """Let this process's main thread run anywhere that its parent may; OpenMP's other threads stay where they are."""
    if os.environ.get(SWITCH) == "1" and "OMP_PROC_BIND" in os.environ:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))

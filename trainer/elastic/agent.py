"""torch's elastic agent, with exit codes that mean something.

torchrun counts restarts and ends every failure with 1. This agent asks why its workers ended: bad input ends the job,
lost peers begin a new round, and rounds go on as long as they make progress.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from trainer import log, record
from trainer.checkpoint.format import is_writing, list_checkpoints, step_of
from trainer.checkpoint.saver import LAST_SECONDS
from trainer.contract import DONE, EXIT_BROKEN, EXIT_DONE, EXIT_FATAL, EXIT_RESTART, EXIT_TERMINATED, STATUS
from trainer.elastic.rendezvous import Handler, RoundOver
from trainer.errors import Stop
from trainer.files import read_record

MONITOR_SECONDS = 0.5
EXIT_BARRIER_SECONDS = 30
"""The workers have met after the last checkpoint, so agents end within seconds of each other."""
HUNG_SECONDS = 3
"""When a member is gone, workers hang in a collective that SIGTERM cannot interrupt: only a checkpoint in progress is
worth waiting for."""
POLL_SECONDS = 0.05
CALM_SECONDS = 1.0
"""So much longer is the pause before each further round in a row without a step: storage that is away for half a minute
must not use them all up."""
STOPPED_SECONDS = 10
"""A worker that something stopped (SIGSTOP, a debugger) holds up all others; after this long it is replaced."""


class Agent(LocalElasticAgent):
    """Starts, watches and restarts the workers of this node for one run."""

    def __init__(
        self,
        handler: Handler,
        workers: int,
        command: list[str],
        run: Path,
        log_directory: str,
        grace: int,
        patience: int,
    ) -> None:
        spec = WorkerSpec(
            role="trainer",
            local_world_size=workers,
            rdzv_handler=handler,
            entrypoint=command[0],
            args=tuple(command[1:]),
            max_restarts=1_000_000,  # not the limit: `patience` is
            monitor_interval=MONITOR_SECONDS,
        )
        super().__init__(
            spec,
            DefaultLogsSpecs(log_dir=log_directory),
            exit_barrier_timeout=EXIT_BARRIER_SECONDS,
            shutdown_timeout=grace,
        )
        self._handler, self._run, self._patience = handler, run, patience
        self._best = progress(run)
        self._fruitless = 0
        self._unclear = ""
        """Why this node's workers ended, where none of them said so."""
        self._stopped: dict[int, float] = {}
        """Process id of a stopped worker -> since when."""

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """Begin a round; if a member is lost before all know their ranks, the next one."""
        while True:
            try:
                super()._initialize_workers(worker_group)
                break
            except RoundOver:
                self._tell_end()
        self._handler.forming = False

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._end_stopped()
        if len(self._running()) < len(worker_group.workers):
            self._wait(worker_group, 0)  # for a checkpoint: once one has ended, torch gives the others 30 s
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed():
            self._judge(list(result.failures.values()))
        return result

    def _end_stopped(self) -> None:
        """Kill workers that have been stopped for STOPPED_SECONDS, so that the round ends before its timeout."""
        now = time.monotonic()
        stopped = [pid for pid in self._running() if process_state(pid) in ("T", "t")]
        self._stopped = {pid: self._stopped.get(pid, now) for pid in stopped}
        for pid, since in self._stopped.items():
            if now - since > STOPPED_SECONDS:
                log.event("worker_stopped", pid=pid, seconds=round(now - since))
                record.note(f"a process stood still for {now - since:.0f} s, and was killed", self._handler.round)
                os.kill(pid, signal.SIGKILL)

    def _tell_end(self) -> None:
        """Say why the round ends, and note it for the record."""
        after, lost, why = self._handler.round, self._handler.lost_members(), self._handler.changed()
        log.event("new_round", after=after, lost_members=lost, reason=repr(why))
        if cause := why or self._unclear:
            record.note(cause, after)
        self._unclear = ""

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._tell_end()
        for pid in self._running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGTERM)
        self._wait(worker_group, HUNG_SECONDS if self._handler.left_members() else self._shutdown_timeout)
        self._shutdown(signal.SIGKILL)

    def _wait(self, worker_group: WorkerGroup, seconds: float) -> None:
        """Wait this long for the workers to end; LAST_SECONDS while rank 0 writes a checkpoint."""
        first = [worker.id for worker in worker_group.workers if worker.global_rank == 0]
        begin = time.monotonic()
        while running := self._running():
            # Check the rank too: a worker of another pod may have the same process id.
            writing = any(pid in first and is_writing(self._run, pid) for pid in running)
            if time.monotonic() - begin > (max(seconds, LAST_SECONDS) if writing else seconds):
                return
            time.sleep(POLL_SECONDS)

    def _running(self) -> list[int]:
        """Process ids of the workers that have not ended."""
        pids = self._pcontext.pids().values() if self._pcontext is not None else ()
        return [pid for pid in pids if process_state(pid) not in ("", "Z")]

    def _judge(self, failures: list[ProcessFailure]) -> None:
        """Raise Stop where another round cannot help; return where it can."""
        if read_record(self._run / DONE):
            raise Stop(EXIT_DONE, "a worker was lost after the run was done")
        codes = {failure.exitcode for failure in failures}
        for failure in failures:
            if EXIT_FATAL in (failure.exitcode, told_code(failure)):
                raise Stop(EXIT_FATAL, message_of(failure))
            if told_code(failure) == EXIT_BROKEN:  # not by its exit code, which a traceback also has
                raise Stop(EXIT_BROKEN, message_of(failure))
        if codes == {EXIT_TERMINATED}:
            raise Stop(EXIT_TERMINATED, "the workers were asked to end")
        telling = [failure for failure in failures if told_code(failure) is not None]
        first = min(telling or failures, key=lambda failure: failure.timestamp)
        if not telling and codes <= {EXIT_RESTART, EXIT_TERMINATED}:
            reason = self._unclear = "the workers left together after a save, or lost a peer"
        else:
            reason = " ".join(message_of(first).split())[:300]
        reached = progress(self._run)
        if reached > self._best:
            self._best, self._fruitless = reached, 0
        else:
            self._fruitless += 1
        log.event("workers_ended", codes=",".join(map(str, sorted(codes))), reason=repr(reason), step=reached)
        if not self._unclear:
            record.note(record.ended(codes, reason, reached), self._handler.round)
        if self._fruitless >= self._patience:
            rounds = "1 round" if self._fruitless == 1 else f"{self._fruitless} rounds in a row"
            raise Stop(
                EXIT_FATAL,
                f"{rounds} ended without a step beyond {self._best}; the last with exit code "
                f"{first.exitcode}: {reason}",
            )
        time.sleep(CALM_SECONDS * max(0, self._fruitless - 1))


def process_state(pid: int) -> str:
    """The state in proc(5): T or t if stopped, Z if it has ended; empty if the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]  # the state follows the name in parentheses


def message_of(failure: ProcessFailure) -> str:
    """The worker's reason: the text of its error file, which torch passes on unchanged."""
    message: object = failure.message
    return str(message.get("message", message)) if isinstance(message, dict) else str(message)


def told_code(failure: ProcessFailure) -> int | None:
    """The exit code in the worker's error file, which it writes before the other workers can notice its end."""
    message = failure.error_file_data.get("message")
    extra = message.get("extraInfo", {}) if isinstance(message, dict) else {}
    return extra.get("exit_code")


def progress(run: Path) -> int:
    """The last step that this run is known to have reached."""
    saved = [step_of(path) for path in list_checkpoints(run)]
    told = read_record(run / STATUS).get("step")
    return max([0, *saved, *([told] if isinstance(told, int) else [])])

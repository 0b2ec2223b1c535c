"""One worker of a training run: `python -m trainer.train [--config FILE.yaml] [section.key=value ...]`.

From the configuration to the work (work.py), into the loop (loop.py), and out with an exit code (errors.py).
"""

import importlib
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from trainer import log
from trainer.config import schema as configuration
from trainer.config.schema import Config
from trainer.contract import EXIT_DONE, EXIT_FATAL, EXIT_RESTART, EXIT_TERMINATED
from trainer.errors import Retry, Stopped, TrainingError, UserError
from trainer.files import write_json

TASKS = {
    "language_model": "trainer.tasks.pretrain",
    "distillation": "trainer.tasks.distill",
    "question_answering": "trainer.tasks.squad",
}
"""The module whose build(config) makes the Work of a task; each loads libraries that the others do not need."""


class Notice:
    """Whether this worker was asked to end (SIGTERM: a spot machine's notice, a scale-in, a new member)."""

    def __init__(self) -> None:
        self.given = False

    def listen(self) -> None:
        """From here on SIGTERM only sets a flag; before, it ends the process at once, as there is nothing to save."""
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.given = True


def main(arguments: list[str]) -> int:
    """The exit code of this worker; see errors.py."""
    notice = Notice()
    try:
        config = configuration.load(arguments)
        run = configuration.run_directory(config)
        train(config, run, notice)
    except Stopped:
        return EXIT_TERMINATED if notice.given else EXIT_RESTART
    except (UserError, TrainingError) as error:
        report_failure(str(error), EXIT_FATAL)
        return EXIT_FATAL
    except Retry as error:
        report_failure(str(error), EXIT_RESTART)
        return EXIT_RESTART
    return EXIT_DONE


def train(config: Config, run: Path, notice: Notice) -> None:
    """Train to config.steps. Raises Stopped, UserError and TrainingError as loop.train does."""
    from trainer.checkpoint.format import list_checkpoints
    from trainer.elastic import ahead, cores
    from trainer.parallel import world as distributed
    from trainer.train import loop

    distributed.require_device(begun=bool(list_checkpoints(run)))
    cores.free_main_thread()
    task = importlib.import_module(TASKS[config.task])
    ahead.wait_for_place()
    work = task.build(config)
    world = distributed.join(config.run.collective_timeout_seconds)
    log.event("round", round=world.round, world_size=world.size, rank=world.rank)
    loop.train(work, config, run, world, notice)
    distributed.leave()


def report_failure(message: str, code: int) -> None:
    """Tell people on stderr, and the launcher through the error file that torch's agent names.

    With the exit code: the other workers of this node may be gone before this one is.
    """
    log.say(message, sys.stderr)
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        extra = {"py_callstack": "", "timestamp": str(int(time.time())), "exit_code": code}
        content = {"message": message, "extraInfo": extra}
        write_json(Path(path), {"message": content}, durable=False)


def leave(code: int) -> None:
    """End this process; at once where others wait for that.

    Taking down an interpreter with torch in it costs 1.2 s of processor time, of the few that a notice leaves. All is
    written and closed when the workers leave together.
    """
    if code in (EXIT_TERMINATED, EXIT_RESTART):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))

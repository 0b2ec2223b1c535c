"""One worker of a training run: `python -m trainer.train [--config FILE.yaml] [section.key=value ...]`.

Read the configuration, build the Work (work.py), run the loop (loop.py) and leave with an exit code (contract.py).
"""

import gc
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from trainer import log, tasks
from trainer.config.schema import Config, load, run_directory, with_steps
from trainer.contract import EXIT_BROKEN, EXIT_DONE, EXIT_FATAL, EXIT_RESTART, EXIT_TERMINATED
from trainer.errors import BrokenNode, Retry, Stopped, TrainingError, UserError, forbidden, panic
from trainer.files import write_json

if TYPE_CHECKING:
    from trainer.parallel.world import World
    from trainer.tasks.work import Work


def main(arguments: list[str]) -> int:
    """Train, and return the exit code of this worker; see contract.py."""
    try:
        config = load(arguments)
        train(config, run_directory(config))
    except Stopped as end:
        return EXIT_TERMINATED if end.asked else EXIT_RESTART
    except (UserError, TrainingError) as error:
        return report_failure(error, EXIT_FATAL)
    except PermissionError as error:
        return report_failure(forbidden(error), EXIT_FATAL)
    except Retry as error:
        return report_failure(error, EXIT_RESTART)
    except BrokenNode as error:
        return report_failure(error, EXIT_BROKEN)
    except BaseException as error:
        if (told := panic(error, "the data")) is None:
            raise
        return report_failure(told, EXIT_FATAL)
    return EXIT_DONE


def imports(task: str) -> ModuleType:
    """Import what a worker needs from the start; return the task's module."""
    from trainer.train import loop  # noqa: F401

    return tasks.load(task)


def train(config: Config, run: Path) -> None:
    """Train to config.steps or config.epochs. Raises BrokenNode, and what loop.train raises."""
    # None of the million objects that imports make is garbage: looking for it took 1 s of the 4 s of a worker's start.
    gc.disable()
    from trainer.checkpoint.format import list_checkpoints
    from trainer.elastic import processor
    from trainer.models import attention
    from trainer.parallel.world import join, leave_group, require_device
    from trainer.train import loop

    processor.free_main_thread()
    processor.keep_memory()
    processor.own_compile_cache()
    task = imports(config.task)
    gc.freeze()
    gc.enable()
    require_device(begun=bool(list_checkpoints(run)))
    world = join(config.run.collective_timeout_seconds)
    log.event("round", round=world.round, world_size=world.size, rank=world.rank)
    work = agreed_work(task, config, run, world)
    known = with_steps(config, part := work.batches.epoch(1))
    if config.epochs and world.first:
        log.event("epochs", epochs=config.epochs, steps=known.steps, steps_per_epoch=round(1 / part, 1))
    with attention.preferred(world.device):
        loop.train(work, known, run, world)
    leave_group()


def agreed_work(task: "ModuleType", config: Config, run: Path, world: "World") -> "Work":
    """The work of this worker, with the micro-batch of the worker whose memory allows the least."""
    from trainer.train import failures

    most = failures.largest(run, config, world.device)
    # A new node reads the model's gigabytes from cold storage, while other nodes have them cached.
    work = world.together(lambda: task.make_work(config, most))
    sizes, data = zip(*world.gather([work.windows, work.data]), strict=True)
    if len(set(data)) > 1:
        raise UserError(
            "data.directory: the workers see different data there; put it on storage that all of them mount, or copy "
            "it to each of them again"
        )
    return work if len(set(sizes)) == 1 else world.together(lambda: task.make_work(config, min(sizes)))


def report_failure(error: Exception, code: int) -> int:
    """Print the error on stderr, tell the launcher through the error file that torch's agent names; return the code.

    The file has it, too: another worker of this node may exit first.
    """
    message = str(error)
    log.say(message, sys.stderr)
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        extra = {"py_callstack": "", "timestamp": str(int(time.time())), "exit_code": code}
        content = {"message": message, "extraInfo": extra}
        write_json(Path(path), {"message": content}, durable=False)
    return code


if __name__ == "__main__":
    log.leave(main(sys.argv[1:]))

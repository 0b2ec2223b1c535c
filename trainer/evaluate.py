"""The loss of a model on held-out text: `python -m trainer.evaluate --run DIR`, or `--model FOLDER --data DIR`.

With `--tasks hellaswag,...` it runs benchmarks instead (harness.py) and keeps the results in the run's folder, for its
report.
"""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from trainer import log, tasks
from trainer.config import schema
from trainer.config.paths import folder
from trainer.config.settings import MOST
from trainer.data.batches import open_dataset
from trainer.errors import UserError, usage
from trainer.export import evaluations
from trainer.files import read_text
from trainer.models import adapters, capacity, loading
from trainer.parallel.world import join, leave_group, require_device
from trainer.tasks.pretrain import Validation
from trainer.train.precision import TYPES, choose, hardware

if TYPE_CHECKING:
    from trainer.tasks import work

WINDOW = 2048
"""Most tokens in a window by default: Llama 3.1 has 131,072 positions, too many for the memory."""

SLOWEST_SECONDS = 3600
"""Timeout of the collectives: workers that share a benchmark's texts wait for the slowest one."""


@usage
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.evaluate", description="The loss of a model on held-out text."
    )
    loading.add_options(parser)
    parser.add_argument("--data", metavar="DIR", help="folder written by trainer.prepare; default: the data of --run")
    parser.add_argument(
        "--batches", type=int, help="validation micro-batches; 0: the whole split; default: as in training"
    )
    parser.add_argument(
        "--precision", choices=("auto", "fp32", "bf16", "fp16"), help="default: as in training, or fp32"
    )
    parser.add_argument(
        "--sequence-length", type=int, help="tokens in a window, with --model; default: all positions, up to 2048"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    group = parser.add_argument_group("benchmarks", "of lm-evaluation-harness, instead of the loss")
    group.add_argument("--tasks", metavar="NAME,...", help="such as hellaswag,lambada_openai")
    group.add_argument("--include", type=folder, metavar="DIR", help="a folder of further tasks: YAML without Python")
    group.add_argument("--limit", type=int, metavar="N", help="only the first N examples of each task")
    group.add_argument("--shots", type=int, metavar="N", help="examples before each question; default: the task's")
    options = parser.parse_args(arguments)
    if options.tasks is not None:
        return _judge(options)
    if options.batches is not None and options.batches < 0:
        raise UserError(f"--batches {options.batches}: give 0 or more")
    with contextlib.redirect_stdout(sys.stderr):  # a task's messages about its data are not part of the result
        shown = evaluate(options)
    if shown is None:
        return 0
    if options.json:
        print(json.dumps(shown))
    else:
        for name, value in shown.items():
            if value is not None:
                text = f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if isinstance(value, float) else value
                print(f"{'loss (nats)' if name == 'loss' else name:14} {text}")
    return 0


def _judge(options: argparse.Namespace) -> int:
    """Run the benchmarks, store their results with the run and print them. Raises UserError."""
    names = [name.strip() for name in options.tasks.split(",") if name.strip()]
    if not names:
        raise UserError("--tasks: empty; give names such as hellaswag,lambada_openai")
    if options.data is not None or options.batches is not None:
        raise UserError("--tasks: benchmarks have data of their own; leave out --data and --batches")
    for name in ("limit", "shots", "sequence_length"):
        if getattr(options, name) is not None and getattr(options, name) < (name != "shots"):
            raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)}: give a positive number")
    source = loading.from_options(options)
    require_device(begun=False)
    world = join(timeout_seconds=SLOWEST_SECONDS)
    asked = options.precision or "fp32"
    if source.checkpoint is not None and options.precision is None:
        asked = str(schema.stored(read_text(source.checkpoint / "config.yaml")).get("precision", "fp32"))
    precision = choose(asked, hardware(world.device))[0]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            from trainer import harness  # takes seconds

            found = harness.judge(
                source,
                names,
                world,
                (precision, TYPES[precision]),
                include=options.include,
                limit=options.limit,
                shots=options.shots,
                length=options.sequence_length,
            )
    finally:
        leave_group()
    if not world.first:
        return 0
    if source.run is not None and source.step is not None:
        try:
            path = evaluations.record(source.run, source.step, found)
        except OSError as error:
            raise UserError(f"{source.run}: the results cannot be written there ({error.strerror})") from None
        print(f"wrote {path}", file=sys.stderr)
    shown = {"model": source.model, "step": source.step, "tasks": found}
    print(json.dumps(shown) if options.json else evaluations.text(evaluations.rows(found, source.step)))
    return 0


def evaluate(options: argparse.Namespace) -> dict[str, Any] | None:
    """Evaluate a run on the validation set that its training uses, or a model on windows of --data.

    Returns the figures by name: the loss in nats, a mean over the tokens or the examples; perplexity and tokens of what
    continues text; and a task's own, such as exact match and F1. None on all workers but the first.
    """
    source = loading.from_options(options)
    begin = time.monotonic()
    world = join(timeout_seconds=120)
    if source.checkpoint is not None:
        module, validation, settings, figures = _of_checkpoint(source, source.checkpoint, options)
    else:
        module, validation, settings, figures = _of_model(source, options)
    dtype = TYPES[choose(options.precision or settings.precision, hardware(world.device))[0]]
    adapters.hold_frozen(getattr(module, "net", None), dtype)
    module.to(world.device)
    loss = validation.loss(module, world, dtype)
    tokens = validation.tokens if isinstance(validation, Validation) else None
    perplexity = evaluations.perplexity(loss) if tokens is not None else None
    if not world.first:
        return None
    seconds = round(time.monotonic() - begin, 3)
    shown = {"model": source.model, "step": source.step, "loss": loss, "perplexity": perplexity, "tokens": tokens}
    return {**shown, "seconds": seconds, **figures()}


Parts = tuple[nn.Module, "work.Validation", schema.Config, Callable[[], dict[str, float]]]


def _of_checkpoint(source: loading.Source, path: Path, options: argparse.Namespace) -> Parts:
    """Build the task that the checkpoint's configuration describes, and load the checkpoint's weights."""
    # Use only the checkpoint: the hub may no longer serve the run's initial weights or its teacher. Distillation
    # validates the student's plain loss, so the student is evaluated as a language model.
    given = schema.stored(read_text(path / "config.yaml"))
    adapted = adapters.is_folder(path / "model")
    named = loading.base_of(source) if adapted else path / "model"
    given |= {"model.name": named, "model.preset": "", "model.config": "", "recipe": "gpt2"}
    given |= {"engine.name": "ddp", "engine.deepspeed_config": ""}  # the stored settings include that file's
    arguments = [f"{key}={value}" for key, value in given.items()]
    if schema.load(arguments).task == "distillation":
        arguments.append("task=language_model")
    if options.data is not None:
        arguments.append(f"data.directory={options.data}")
    if options.batches is not None:
        arguments.append(f"evaluation.batches={options.batches or MOST}")
    if options.sequence_length is not None:
        raise UserError("--sequence-length belongs to --model; a run is evaluated as it was trained")
    settings = schema.load(arguments)
    built = tasks.load(settings.task).make_work(settings)
    built.load_model(path / "model")
    return built.module, built.validation, settings, built.validation_figures


def _of_model(source: loading.Source, options: argparse.Namespace) -> Parts:
    from trainer.models import networks

    if options.data is None:
        raise UserError("--data is missing; with --model give the folder that trainer.prepare wrote")
    dataset = open_dataset(options.data)
    net = loading.load_language_model(source)
    words, most = net.config.get_text_config().vocab_size, networks.positions(net.config)
    if dataset.largest >= words:
        raise UserError(
            f"--data {options.data}: its largest token is {dataset.largest}, the model has {words}; "
            "prepare the text with the model's tokenizer (trainer.prepare --tokenizer)"
        )
    length = options.sequence_length or min(most or WINDOW, WINDOW)
    if not 0 < length <= (most or length):
        allowed = f"number from 1 to {most}, the positions of the model" if most else "positive number"
        raise UserError(f"--sequence-length {length}: give a {allowed}")
    settings = schema.Config(precision="fp32")
    batches = settings.evaluation.batches if options.batches is None else options.batches or MOST
    tokenizer = dataset.directory / "tokenizer.json"
    validation = Validation(dataset.validation, length, capacity.UNIT, batches, tokenizer=tokenizer)
    return networks.module(net), validation, settings, validation.figures


if __name__ == "__main__":
    log.leave(main())

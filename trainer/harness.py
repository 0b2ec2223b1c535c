"""Benchmarks by lm-evaluation-harness, for `python -m trainer.evaluate --tasks`: tasks by name, results as plain data.

The harness brings its tasks' programs with it, in the locked package. What comes from elsewhere is data alone: data
sets have no scripts, a metric that the hub would send as a program is refused, tasks that run what a model writes are
refused, and a task of one's own (--include) is YAML without Python.
"""

import contextlib
import difflib
import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TextIO, cast

import torch
import yaml

os.environ.setdefault("DISABLE_MULTIPROC", "1")  # resampling on all cores would fork a process that uses threads

import lm_eval.evaluator
import lm_eval.utils
from jinja2.sandbox import SandboxedEnvironment
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from trainer.errors import UserError, one_line
from trainer.models import sources
from trainer.parallel.world import World

RESAMPLES = 1000
"""For the standard errors of figures that are no means, such as perplexity: exact to 2 %."""
BATCH = 8
"""Texts at a time on a CPU; an accelerator tries what its memory holds."""


_refused: list[str] = []
"""Metrics that were asked for: the harness goes on without what raises."""


def _refuse(name: str, *_: Any, **__: Any) -> Any:
    _refused.append(name)
    raise UserError(f"the metric {name} is a program of the hub, which is not run")


# In place of the package that fetches metrics as programs, and takes seconds to import.
sys.modules["evaluate"] = cast("ModuleType", SimpleNamespace(load=_refuse))
# Both start programs (pip, git), for what nobody reads here.
lm_eval.evaluator.add_env_info = lambda storage: None
lm_eval.evaluator.get_git_commit_hash = lambda: None
logging.getLogger("lm_eval").setLevel(logging.ERROR)


class Model(HFLM):
    """A loaded model as the harness asks it; its texts are dealt to the workers."""

    def __init__(self, net: Any, tokenizer: Any, world: World, dtype: torch.dtype, length: int | None) -> None:
        start: Any = super().__init__
        start(
            pretrained=net,
            backend="causal",
            tokenizer=tokenizer,
            max_length=length,
            batch_size="auto" if world.device.type == "cuda" else BATCH,
            mixed_precision_dtype=None if dtype == torch.float32 else dtype,
            softmax_dtype=torch.float32,
            trust_remote_code=False,
        )
        self._world, self._rank, self._world_size = world, world.rank, world.size

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self._world.gather(tensor.tolist())).flatten()

    def gather_object(self, obj: dict[str, dict[tuple[str, str], list[Any]]], dst: int = 0) -> list[Any]:
        """Every worker's figures of each example. As JSON: the harness's own way would unpickle them."""
        flat = [[task, *key, values] for task, found in obj.items() for key, values in found.items()]
        plain = json.loads(json.dumps(flat, default=lambda value: value.item()))
        gathered: list[Any] = []
        for part in self._world.gather(plain):
            gathered.append({})
            for task, metric, kind, values in part:
                gathered[-1].setdefault(task, {})[metric, kind] = values
        return gathered

    def barrier(self) -> None:
        self._world.barrier()


class Lines(io.TextIOBase):
    """For a log, which shows whole lines alone: a bar that tqdm would redraw becomes a line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(f"{text.strip()}\n" if text.startswith("\r") else text)

    def flush(self) -> None:
        self._stream.flush()


def judge(
    source: sources.Source,
    names: list[str],
    world: World,
    precision: tuple[str, torch.dtype],
    *,
    include: Path | None = None,
    limit: int | None = None,
    shots: int | None = None,
    length: int | None = None,
) -> dict[str, Any]:
    """The results of some tasks, by task, as evaluations.py keeps them; empty on a worker that is not the first.

    Raises UserError for a task that does not exist, that is refused, or whose data cannot be had.
    """
    with contextlib.redirect_stderr(sys.stderr if sys.stderr.isatty() else Lines(sys.stderr)):
        tasks = load_tasks(names, include)
        _check_shares(tasks, limit, world.size)
        net = sources.load_language_model(source).to(world.device)
        build, run = cast("tuple[Any, Any]", (Model, simple_evaluate))  # their decorators have no types
        model = build(net, _tokenizer(source), world, precision[1], length)
        found = run(model, tasks=tasks, num_fewshot=shots, limit=limit, bootstrap_iters=RESAMPLES, log_samples=False)
    if found is None:
        return {}
    about = {"limit": limit, "harness": f"lm-eval {version('lm_eval')}", "precision": precision[0]}
    results: dict[str, Any] = {}
    for name, figures in found["results"].items():
        counted = found["n-samples"].get(name, {})
        results[name] = {
            "version": found["versions"].get(name),
            "shots": found["n-shot"].get(name),
            "samples": counted.get("effective") or figures.get("sample_len"),
            **about,
            "metrics": _metrics(figures),
        }
    return results


def load_tasks(names: list[str], include: Path | None) -> list[Any]:
    """Tasks and groups with their data. Raises UserError."""
    if include is not None:
        _check_data_alone(include)
    # The harness's own index takes half a minute to read: left out where the user's tasks are all that is wanted.
    manager: Any = TaskManager(include_path=include, include_defaults=False) if include else None
    if manager is None or any(name not in manager.task_index for name in names):
        manager = TaskManager(include_path=include)
    for name in names:
        if name not in manager.task_index:
            near = difflib.get_close_matches(name, manager.all_tasks, 5, 0.5)
            advice = f"similar ones: {', '.join(near)}" if near else "see `lm_eval ls tasks`"
            raise UserError(f"--tasks {name}: no such task; {advice}")
        for entry in _entries(manager.task_index, name):
            if entry.cfg.get("unsafe_code"):
                raise UserError(f"--tasks {name}: {entry.name} runs programs that the model writes, which is refused")
    chosen: list[Any] = []
    for name in dict.fromkeys(names):
        problem, loaded = "", {}
        try:
            loaded = manager.load([name])
        except Exception as error:  # data sets, the hub and each task's own program raise what they like
            problem = _unavailable(name, manager.task_index, error)
        if _refused:
            problem = f"its metric {_refused[0]} is a program of the hub, which is not run"
            _refused.clear()
        if problem:
            raise UserError(f"--tasks {name}: {problem}")
        chosen += [loaded["groups"][name]] if name in loaded["groups"] else loaded["tasks"].values()
    return chosen


def _entries(index: dict[str, Any], name: str) -> Iterator[Any]:
    """The tasks that a name stands for: itself, or those of a group or a tag."""
    entry = index.get(name)
    if entry is None:
        return
    if entry.kind.name == "TAG":
        children: list[Any] = sorted(entry.tags)
    elif entry.kind.name == "GROUP":
        children = entry.cfg["task"] if isinstance(entry.cfg["task"], list) else [entry.cfg["task"]]
    else:
        yield entry
        return
    for child in children:
        yield from _entries(index, child if isinstance(child, str) else child.get("task") or child.get("group"))


def _check_shares(tasks: list[Any], limit: int | None, workers: int) -> None:
    """The harness needs an example for each worker."""
    alone = [each for task in tasks for each in (task.get_all_tasks() if hasattr(task, "get_all_tasks") else [task])]
    fewest, name = min((min(len(each.eval_docs), limit or sys.maxsize), each.task_name) for each in alone)
    if fewest < workers:
        raise UserError(f"--tasks: {workers} workers share the examples, {name} has {fewest}; raise --limit")


def _check_data_alone(folder: Path) -> None:
    """Raises UserError where a task of the folder would run Python. Its templates run in a sandbox."""
    files = sorted(folder.rglob("*.yaml")) if folder.is_dir() else []
    if not files:
        raise UserError(f"--include {folder}: holds no task, a file NAME.yaml")
    for file in files:
        try:
            plain = yaml.safe_load(file.read_text("utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError):
            plain = None
        if not isinstance(plain, dict) or plain.keys() & {"class", "include"}:
            raise UserError(
                f"--include {folder}: {file.name} is not YAML alone: !function, class and include may run Python; a "
                "task of your own is one file with templates"
            )
    shared = lm_eval.utils.env
    sandbox = SandboxedEnvironment(loader=shared.loader, undefined=shared.undefined, keep_trailing_newline=True)
    sandbox.filters.update(shared.filters)
    lm_eval.utils.env = sandbox


def _unavailable(name: str, index: dict[str, Any], error: Exception) -> str:
    data = {str(entry.cfg["dataset_path"]) for entry in _entries(index, name) if entry.cfg.get("dataset_path")}
    offline = "; unset HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE", "0") != "0" else ""
    return f"its data ({', '.join(sorted(data)[:3]) or 'none'}) cannot be had: {one_line(error)}{offline}"


def _tokenizer(source: sources.Source) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source.model, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{source.model}: no tokenizer can be read there ({one_line(error)})") from None


def _metrics(figures: dict[str, Any]) -> dict[str, Any]:
    """The harness names a figure `acc,none` and its error `acc_stderr,none`; the filter is told where there is one."""
    found: dict[str, Any] = {}
    for key, value in figures.items():
        metric, comma, kind = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = figures.get(f"{metric}_stderr,{kind}")
        found[metric if kind == "none" else f"{metric} ({kind})"] = {
            "value": float(value),
            "stderr": float(error) if isinstance(error, int | float) else None,
        }
    return found

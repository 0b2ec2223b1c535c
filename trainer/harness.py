"""Benchmarks by lm-evaluation-harness, for `python -m trainer.evaluate --tasks`: tasks by name, results as plain data.

Only the task programs in the harness's locked package run. Everything from elsewhere is data: data sets have no
scripts, a metric that the hub serves as a program is refused, tasks that execute what a model writes are refused, and a
user's own task (--include) is YAML without Python.
"""

import contextlib
import difflib
import io
import json
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO, cast

import torch
import yaml

os.environ.setdefault("DISABLE_MULTIPROC", "1")  # else resampling on all cores forks this multi-threaded process

import lm_eval.evaluator
import lm_eval.utils
from jinja2.sandbox import SandboxedEnvironment
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer

from trainer import patches
from trainer.data.tokenizer import remove_chance
from trainer.errors import UserError, offline, one_line
from trainer.models import loading
from trainer.parallel.world import World

RESAMPLES = 1000
"""Bootstrap resamples for the standard errors of figures that are not means, such as perplexity: exact to 2 %."""
BATCH = 8
"""Texts in a batch on a CPU; on an accelerator the harness tries what fits the memory."""


REFUSED = "is a program on the hub; such metrics are refused"
_refused: list[str] = []
"""Refused metrics: the harness swallows the exception and goes on without the metric."""


def _refuse(name: str, *_: Any, **__: Any) -> Any:
    _refused.append(name)
    raise UserError(f"the metric {name} {REFUSED}")


patches.harness_without_programs(_refuse)


class Model(HFLM):
    """A loaded model behind the harness's interface; the workers share the texts."""

    _scores_whole_texts = False

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
            # One behind a text, as trainer.prepare leaves it out: it would stand before what is scored or generated.
            add_bos_token=None if _ends_as_text(tokenizer) else False,
        )
        self._world, self._rank, self._world_size = world, world.rank, world.size

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """As the harness's, which puts a begin token before each text: one that the tokenizer puts too would be scored
        as if it were text."""
        self._scores_whole_texts = True
        try:
            return super().loglikelihood_rolling(requests, disable_tqdm)
        finally:
            self._scores_whole_texts = False

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, *given: Any, **options: Any) -> list[int]:
        added = False if self._scores_whole_texts else add_special_tokens
        return super().tok_encode(string, added, *given, **options)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self._world.gather(tensor.tolist())).flatten()

    def gather_object(self, obj: dict[str, dict[tuple[str, str], list[Any]]], dst: int = 0) -> list[Any]:
        """Gather every worker's figures of each example as JSON: the harness's own method would unpickle them."""
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
    """A stream for logs, which show only whole lines: each redraw of a tqdm bar becomes a line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(f"{text.strip()}\n" if text.startswith("\r") else text)

    def flush(self) -> None:
        self._stream.flush()


def judge(
    source: loading.Source,
    names: list[str],
    world: World,
    precision: tuple[str, torch.dtype],
    *,
    include: Path | None = None,
    limit: int | None = None,
    shots: int | None = None,
    length: int | None = None,
) -> dict[str, Any]:
    """Run tasks and return their results by task, in the form of evaluations.py; empty on all workers but the first.

    Raises UserError for a task that does not exist, that is refused, or whose data cannot be loaded.
    """
    with contextlib.redirect_stderr(sys.stderr if sys.stderr.isatty() else Lines(sys.stderr)):
        tasks = load_tasks(names, include)
        _check_shares(tasks, limit, world.size)
        net = loading.load_language_model(source).to(world.device)
        build, run = cast("tuple[Any, Any]", (Model, simple_evaluate))  # their decorators are untyped
        model = build(net, _tokenizer(source), world, precision[1], length)
        found = run(model, tasks=tasks, num_fewshot=shots, limit=limit, bootstrap_iters=RESAMPLES, log_samples=False)
    if found is None:
        return {}
    about = {"limit": limit, "harness": f"lm-eval {version('lm_eval')}", "precision": precision[0]}
    asked = {each.task_name: list(getattr(each, "_metric_fn_list", None) or ()) for each in _each(tasks)}
    results: dict[str, Any] = {}
    for name, figures in found["results"].items():
        counted = found["n-samples"].get(name, {})
        results[name] = {
            "version": found["versions"].get(name),
            "shots": found["n-shot"].get(name),
            "samples": counted.get("effective") or figures.get("sample_len"),
            **about,
            "metrics": _metrics(figures, asked.get(name, [])),
        }
    return results


def load_tasks(names: list[str], include: Path | None) -> list[Any]:
    """Load tasks and groups with their data. Raises UserError."""
    if include is not None:
        _check_data_alone(include)
    # The harness takes half a minute to index its own tasks: skip that when only the user's tasks are wanted.
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
        except Exception as error:  # data sets, the hub and each task's own program raise any exception
            problem = _unavailable(name, manager.task_index, error)
        if _refused:
            problem = f"its metric {_refused[0]} {REFUSED}"
            _refused.clear()
        if problem:
            raise UserError(f"--tasks {name}: {problem}")
        chosen += [loaded["groups"][name]] if name in loaded["groups"] else loaded["tasks"].values()
    return chosen


def _entries(index: dict[str, Any], name: str) -> Iterator[Any]:
    """Yield the tasks that a name stands for: the task itself, or those of a group or a tag."""
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


def _each(tasks: list[Any]) -> list[Any]:
    """The tasks, and those of the groups among them."""
    return [each for task in tasks for each in (task.get_all_tasks() if hasattr(task, "get_all_tasks") else [task])]


def _check_shares(tasks: list[Any], limit: int | None, workers: int) -> None:
    """Raise UserError where a task has fewer examples than workers: the harness needs one for each."""
    fewest, name = min((min(len(each.eval_docs), limit or sys.maxsize), each.task_name) for each in _each(tasks))
    if fewest < workers:
        advice = "use fewer workers or raise --limit" if limit else "use fewer workers"
        raise UserError(f"--tasks {name}: has {fewest} examples for {workers} workers; {advice}")


def _check_data_alone(folder: Path) -> None:
    """Raise UserError where a task of the folder would run Python, and sandbox the tasks' templates."""
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
                f"--include {folder}: {file.name} is no YAML mapping, or uses !function, class or include, which may "
                "run Python; write each task as one YAML file with templates"
            )
    shared = lm_eval.utils.env
    sandbox = SandboxedEnvironment(loader=shared.loader, undefined=shared.undefined, keep_trailing_newline=True)
    sandbox.filters.update(shared.filters)
    lm_eval.utils.env = sandbox


def _unavailable(name: str, index: dict[str, Any], error: Exception) -> str:
    data = {str(entry.cfg["dataset_path"]) for entry in _entries(index, name) if entry.cfg.get("dataset_path")}
    hint = "; unset HF_HUB_OFFLINE" if offline() else ""
    return f"cannot load its data ({', '.join(sorted(data)[:3]) or 'none'}): {one_line(error)}{hint}"


def _tokenizer(source: loading.Source) -> Any:
    try:
        found: Any = AutoTokenizer.from_pretrained(source.model, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{source.model}: has no readable tokenizer ({one_line(error)}); add its files") from None
    if found.is_fast:
        remove_chance(found.backend_tokenizer)
    return found


def _ends_as_text(tokenizer: Any) -> bool:
    """Whether a tokenizer adds no token behind a text."""
    whole, text = (tokenizer.encode("a", add_special_tokens=added) for added in (True, False))
    return whole[-len(text) :] == text


def _metrics(figures: dict[str, Any], asked: list[str]) -> dict[str, Any]:
    """Rename the harness's `acc,none` and `acc_stderr,none` to acc with value and stderr; keep the name of a filter.

    asked: the task's metrics. One that does not fit the task's kind, which the harness leaves out, has no value.
    """
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
    given = {key.partition(",")[0] for key in figures}
    return found | {name: {"value": None, "stderr": None} for name in asked if name not in given}

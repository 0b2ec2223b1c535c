"""Every setting of a training run with its default: `training:` of a stack, and the trainer's file and arguments.

Read from an optional YAML file, then from arguments (`steps=200`), so that one file serves several runs. All problems
are reported together: a person corrects them in one go, and no accelerator is rented to find the second. It imports
only pydantic and YAML, so that the same code validates a stack and the pod's arguments.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trainer.config import base, deepspeed_json, rules
from trainer.config.base import Problems, keys_of, merge, named, nested, validated
from trainer.config.base import mathematics as mathematics
from trainer.config.paths import expanded
from trainer.config.settings import Config
from trainer.config.values import Plain, kind, read_yaml, typed, why_not_yaml
from trainer.errors import UserError, one_line

EXAMPLES = Path(__file__).parent / "examples"
"""Files for --config that are installed with the package, usable by name."""


def flat(config: Config) -> dict[str, Any]:
    """Every setting by its dotted key."""
    return base.flat(config.model_dump())


def checked(given: Any, problems: Problems) -> Config:
    """Validate `given` and report its problems; defaults replace wrong values. The rules wait until there is none."""
    config = validated(Config, given, problems)
    assert config is not None, "every key has a default"
    for key, text in () if problems.lines else rules.broken(config, problems.spell):
        problems.add(tuple(key.split(".")), text)
    return config


def load(arguments: list[str]) -> Config:
    """The configuration from the arguments of `python -m trainer.train`.

    Raises UserError naming every problem, one a line.
    """
    problems = Problems(keys=lambda: keys_of(Config))
    given: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--config" or argument.startswith("--config="):
            path = argument.partition("=")[2] or (rest.pop(0) if rest else "")
            given = merge(given, named(Config, nested(_read(path, problems)), problems))
        elif "=" in argument and not argument.startswith("-"):
            key, _, text = argument.partition("=")
            given = merge(given, named(Config, nested({key: text}), problems))
        else:
            problems.lines.append(f"{argument}: not an argument; write --config FILE.yaml or key=value")
    given = with_deepspeed_file(given, problems)
    config = checked(given, problems)
    for key, directory in (("data.directory", config.data.directory), ("run.directory", config.run.directory)):
        if not directory and not (key == "data.directory" and config.task == "question_answering"):
            problems.add(tuple(key.split(".")), f"missing; give a folder, as in {key}=/data/...")
    if problems.lines:
        raise UserError("\n".join(problems.lines))
    return config


def with_deepspeed_file(given: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """Merge the DeepSpeed file that `given` names into `given`; report settings that contradict it."""
    path = given.get("engine", {}).get("deepspeed_config")
    if not path or not isinstance(path, str):
        return given
    theirs = deepspeed_json.read(path, problems.lines, problems.path(("engine", "deepspeed_config"))).settings
    both = merge(given, nested(theirs))
    ours, final = (flat(checked(values, Problems())) for values in (given, both))
    for key in theirs.keys() & base.flat(given).keys():
        if ours[key] != final[key]:
            text = f"{typed(ours[key])} was given, but {deepspeed_json.display_path(path)} says {typed(final[key])}"
            text += "; make them equal or give only one"
            problems.add(tuple(key.split(".")), text)
    return both


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """A copy of the configuration with other values under some dotted keys."""
    return Config.model_validate(merge(config.model_dump(), nested(changes)))


def allowed(config: Config, changes: Mapping[str, Any]) -> Config | None:
    """The configuration with other values under some dotted keys; None if a rule forbids it or nothing changes."""
    before, chosen = set(rules.broken(config, str)), changed(config, changes)
    return chosen if set(rules.broken(chosen, str)) <= before and chosen != config else None


def with_steps(config: Config, epochs_a_step: float) -> Config:
    """The configuration with steps in place of epochs, once it is known how much of the data a step takes.

    Raises UserError when the warm-up would take all of them, as infra/training_rules.py refuses it for known steps.
    """
    if not config.epochs:
        return config
    # Rounded to the nearest millionth first: 3 epochs of 10 steps are 30, even where 3 / 0.1 is a little more.
    steps = max(1, math.ceil(round(config.epochs / epochs_a_step, 6)))
    if (warmup := config.optimizer.warmup_steps) >= steps:
        raise UserError(
            f"optimizer.warmup_steps: {warmup} leaves nothing of {steps} steps, which epochs={config.epochs:g} makes "
            f"of this data; allowed: 0 to {steps - 1}"
        )
    return changed(config, {"steps": steps, "epochs": 0})


def resolved(config: Config) -> str:
    """The whole configuration as YAML, as the pods of a stack get it, and as stored in each checkpoint."""
    return yaml.safe_dump(config.model_dump(), sort_keys=False)


def stored(text: str) -> dict[str, Any]:
    """The settings that `resolved` wrote, by dotted key."""
    return base.flat(read_yaml(text, Plain))


def _read(path: str, problems: Problems) -> dict[str, Any]:
    """Read a file of settings, or an example by its name."""
    try:
        path = expanded(path)
    except ValueError as error:
        problems.lines.append(f"--config: {error}")
        return {}
    example = EXAMPLES / f"{path.removesuffix('.yaml')}.yaml"
    shipped = not os.path.exists(path) and "/" not in path and example.exists()
    try:
        document = read_yaml(Path(example if shipped else path).read_bytes()) or {}
    except OSError as error:
        names = ", ".join(sorted(item.stem for item in EXAMPLES.glob("*.yaml")))
        said = f"--config {path or '(nothing)'}: cannot be read ({error.strerror})"
        problems.lines.append(f"{said}; give a YAML file, or one of the examples: {names}")
        return {}
    except yaml.YAMLError as error:
        problems.lines.append(f"--config {path}: is not YAML: {one_line(why_not_yaml(error), 500)}")
        return {}
    if isinstance(document, dict):
        return {str(key): value for key, value in document.items()}
    problems.lines.append(f"--config {path}: holds {kind(document)}, not settings; write such as `steps: 10`")
    return {}


def run_directory(config: Config) -> Path:
    """The run directory, made if missing. Raises UserError when it cannot be written."""
    path = Path(config.run.directory)
    try:
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"run.directory: {path} cannot be made ({error.strerror}); give a writable folder") from None
    for folder in (path, path / "checkpoints"):
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise UserError(
                f"run.directory: {folder} cannot be read and written by user {os.getuid()}; give a writable folder"
            )
    return path

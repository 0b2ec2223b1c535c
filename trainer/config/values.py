"""Settings as people write them, in YAML or as text, and as values of the right type.

What is wrong is appended to a list of problems, one line each, so that all of them are told together.
"""

import difflib
import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

Switch = Literal["auto", "true", "false"]
"""A setting that is on or off, or chosen by the hardware."""

Size = Annotated[int, "0 or auto"]
"""A number, or 0 where it is chosen by the hardware."""

EXAMPLES = Path(__file__).parent / "examples"
"""Files for --config that are installed with the package, usable by name."""


def from_yaml(path: str, problems: list[str]) -> dict[str, Any]:
    """The file's settings by dotted key."""
    example = EXAMPLES / f"{path.removesuffix('.yaml')}.yaml"
    shipped = not os.path.exists(path) and "/" not in path and example.exists()
    try:
        with open(example if shipped else path, encoding="utf-8") as file:
            document = yaml.safe_load(file) or {}
    except OSError as error:
        names = ", ".join(sorted(item.stem for item in EXAMPLES.glob("*.yaml")))
        said = f"--config {path or '(nothing)'}: cannot be read ({error.strerror})"
        problems.append(f"{said}; give a YAML file, or one of the examples: {names}")
        return {}
    except yaml.YAMLError as error:
        problems.append(f"--config {path}: not YAML: {' '.join(str(error).split())}")
        return {}
    flat: dict[str, Any] = {}
    if not isinstance(document, dict):
        problems.append(f"--config {path}: holds a {type(document).__name__}; write settings such as `steps: 10`")
        return {}
    for section, content in document.items():
        if isinstance(content, dict):
            flat.update({f"{section}.{key}": value for key, value in content.items()})
        else:
            flat[str(section)] = content
    return flat


def parse(
    values: dict[str, Any], known: dict[str, tuple[Any, Any]], renamed: dict[str, str], problems: list[str]
) -> dict[str, Any]:
    """The well-formed settings among the `known` ones (each with its type); a problem for each other one."""
    parsed: dict[str, Any] = {}
    for key, given in values.items():
        if key in renamed:
            problems.append(f"{key}: renamed to {renamed[key]}")
            continue
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            sections = dict.fromkeys(name.partition(".")[0] for name in known if "." in name)
            hint = f"did you mean {near[0]}?" if near else f"known sections: {', '.join(sections)}"
            problems.append(f"{key}: no such setting; {hint}")
            continue
        try:
            parsed[key] = _convert(given, known[key][0])
        except ValueError:
            words: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
            words |= {Switch: "auto, true or false", Size: "a whole number or auto"}
            problems.append(f"{key}: {given!r} is not {words[known[key][0]]}")
    return parsed


def _convert(given: Any, kind: Any) -> Any:
    """`given` as `kind`. YAML reads 1e-3 as text and the command line gives text only: both end up here."""
    if kind in (Switch, Size) and str(given).lower() == "auto":
        return "auto" if kind == Switch else 0
    if kind == Size:
        kind = int
    if kind in (bool, Switch):
        words = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
        if str(given).lower() not in words:
            raise ValueError
        return words[str(given).lower()] if kind is bool else str(words[str(given).lower()]).lower()
    if kind is str:
        if isinstance(given, dict | list) or given is None:
            raise ValueError
        return str(given)
    if isinstance(given, bool | dict | list) or given is None:
        raise ValueError
    number = float(given)
    if not math.isfinite(number) or (kind is int and number != int(number)):
        raise ValueError
    return kind(number)

"""Show what a change to the program would change in the cloud, without credentials.

Compares the stack that the working tree declares with the reviewed snapshot of a git ref (tests/snapshots/STACK.yaml),
and prints a Markdown table: what is added, changed, replaced and deleted, and how the cost per hour changes. The
providers' own schemas say which changes replace a resource (review/replaces.py). The pull request of a fork shows this
table, since `pulumi preview` has no credentials there (docs/operations.md).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer
import yaml

from cli import CommandError
from cli.target import AnyStackNames
from infra.stackfiles import ROOT, stacks
from review import replaces
from review.computed import ANEW
from review.recording import Moves, Recorded, record_anywhere
from review.snapshot import FOLDER, content, entry

Entry = Mapping[str, Any]
Path = tuple[str | int, ...]

ADDED, CHANGED, REPLACED, DELETED = "added", "changed", "replaced", "deleted"
SIGNS = {ADDED: "+", CHANGED: "~", REPLACED: "±", DELETED: "−"}
REPLACES, ROLLS = " (replaces)", " (rolls its nodes)"
#: Characters of a value, and lines of one resource, that the table shows.
SHOWN, LINES = 60, 8
#: Inputs of a provider that name its cluster, project or region.
PLACE = ("clusterIdentifier", "project", "region")
NOT_COMPARED = "What enters an image, the values of secrets and what the cloud itself has changed are not compared."


@dataclass(frozen=True)
class Change:
    operation: str
    resource: str
    """Type and name."""
    details: tuple[str, ...] = ()


def compare(old: Entry, new: Entry) -> list[Change]:
    """The changes from one snapshot's content to another's, in the order of the new one, deletions last."""
    before, after = _resources(old), _resources(new)
    found = []
    for title in after:
        if title not in before:
            found.append(Change(ADDED, title))
        elif change := _change(title, before, after):
            found.append(change)
    return [*found, *(Change(DELETED, title) for title in before if title not in after)]


def follow(old: Entry, declare: Callable[[Moves], Entry]) -> tuple[Entry, list[Change]]:
    """The new content, and the changes from the old one to it with their consequences.

    `declare` runs the program and asks for each resource, after its dependencies, whether it moves: a replaced resource
    has a new id, which changes, and may replace, the resources that use it.
    """
    before = _resources(old)
    after: dict[str, Entry] = {}
    by_urn: dict[str, Recorded] = {}

    def moves(item: Recorded) -> bool | None:
        by_urn[item.urn] = item
        title = f"{item.type} {item.name}"
        if title not in before:
            return None
        # The order moves nothing, and is not known until all resources are registered.
        after[title] = entry(item, by_urn, before[title].get("after") or [])
        change = _change(title, before, after)
        return change.operation == REPLACED if change and _moves(change) else None

    new = declare(moves)
    return new, compare(old, new)


def _moves(change: Change) -> bool:
    """Whether a change gives a resource new values that others use."""
    counts = change.operation == CHANGED and replaces.counted(change.resource.partition(" ")[0])
    return change.operation == REPLACED or bool(counts)


def _resources(content: Entry) -> dict[str, Entry]:
    """Resources by type and name, without components, which no provider makes."""
    items = (content.get("resources") or {}).items()
    return {title: entry for title, entry in items if not title.startswith("trainyard:")}


def _moves_all(old: Entry, new: Entry) -> bool:
    """Whether a provider's cluster, project or region changes, so that all its resources are replaced."""
    before, after = old.get("inputs") or {}, new.get("inputs") or {}
    return any(before.get(key) != after.get(key) for key in PLACE)


def _change(title: str, resources: Mapping[str, Entry], others: Mapping[str, Entry]) -> Change | None:
    """How a resource that both sides have differs; None: it does not."""
    type_, old, new = title.partition(" ")[0], resources[title], others[title]
    provider = (new.get("options") or {}).get("provider", "")
    if provider in resources and _moves_all(resources[provider], others[provider]):
        return Change(REPLACED, title, (f"the cluster, project or region of its provider changes{REPLACES}",))
    before, after = old.get("inputs") or {}, new.get("inputs") or {}
    ignored = [_path(text) for text in (new.get("options") or {}).get("ignoreChanges", [])]
    force_new = [*_force_new(type_, before, after), *map(_path, (new.get("options") or {}).get("replaceOnChanges", []))]
    replaced, details = False, []
    for path, was, now in differences(before, after):
        if any(replaces.matches(path, [pattern]) and len(pattern) <= len(path) for pattern in ignored):
            continue
        forced = replaces.matches(path, force_new)
        replaced |= forced
        rolled = replaces.matches(path, replaces.rolls(type_))
        effect = REPLACES if forced else ROLLS if rolled else ""
        details.append(f"{_written(path)}: {_value(was)} → {_value(now)}{effect}")
    if (old.get("parent") or "").partition(" ")[0] != (new.get("parent") or "").partition(" ")[0]:
        # The types of a resource's parents are part of its URN.
        replaced = True
        details.append(f"parent: {old.get('parent') or 'the stack'} → {new.get('parent') or 'the stack'}{REPLACES}")
    for path, was, now in differences(old.get("options") or {}, new.get("options") or {}):
        details.append(f"option {_written(path)}: {_value(was)} → {_value(now)}")
    if details and not replaced and not _is_known(type_):
        details.append("pulumi preview shows whether this replaces it")
    details += _order(old.get("after") or [], new.get("after") or [])
    return Change(REPLACED if replaced else CHANGED, title, tuple(details)) if details else None


def _force_new(type_: str, old: Entry, new: Entry) -> list[tuple[str, ...]]:
    if type_.startswith("kubernetes:"):
        # A patch changes fields in place whose change would replace the object itself.
        is_patch = type_.endswith("Patch") or "kind" not in new
        return replaces.IDENTITY if is_patch else replaces.of_object(new)
    if type_.startswith("pulumi:providers:"):
        return [(key,) for key in PLACE]
    return replaces.paths(type_, old, new) if replaces.is_known(type_) else []


def _is_known(type_: str) -> bool:
    return replaces.is_known(type_) or type_.startswith(("kubernetes:", "pulumi:", "pulumi-python:"))


def _path(text: str) -> tuple[str, ...]:
    return tuple(text.replace("[", ".").replace("]", "").split("."))


def _order(old: list[str], new: list[str]) -> list[str]:
    lines = [f"after {title}" for title in new if title not in old]
    return [*lines, *(f"no longer after {title}" for title in old if title not in new)]


def differences(old: Any, new: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """(path, old value, new value) wherever two values differ; null and missing are the same.

    List items are compared by `name` where they all have one, as containers and variables do, else by position.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), (*path, key))
    elif isinstance(old, list) and isinstance(new, list):
        before, after = _by_name(old), _by_name(new)
        if before is None or after is None:
            before, after = dict(enumerate(old)), dict(enumerate(new))
        for key in [*before, *(key for key in after if key not in before)]:
            yield from differences(before.get(key), after.get(key), (*path, key))
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield path, old, new


def _by_name(items: list[Any]) -> dict[Any, Any] | None:
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    return dict(zip(names, items, strict=True)) if all(names) and len(set(names)) == len(names) else None


def _written(path: Path) -> str:
    """A path in readable form: spec.template.spec.containers[train].image."""
    parts = [f"[{part}]" if isinstance(part, int) else str(part) for part in path]
    return ".".join(parts).replace(".[", "[")


def _value(value: Any) -> str:
    if value is None:
        return "nothing"
    if ANEW in str(value):
        return "known after up"
    text = str(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def report(stack: str, ref: str, old: Entry, new: Entry, changes: list[Change]) -> str:
    """The change of one stack as Markdown; empty for a stack that one side does not have."""
    counts = ", ".join(f"{sum(change.operation == name for change in changes)} {name}" for name in SIGNS)
    lines = [f"### {stack} against {ref}", "", f"{counts}. {_cost(old, new)}"]
    if changes:
        lines += ["", "| | resource | what |", "|---|---|---|"]
        # Losses first.
        ranked = sorted(changes, key=lambda change: [DELETED, REPLACED, CHANGED, ADDED].index(change.operation))
        lines += [
            f"| {SIGNS[item.operation]} | {_cell([item.resource])} | {_cell(_details(item))} |" for item in ranked
        ]
    return "\n".join([*lines, "", NOT_COMPARED])


def _details(change: Change) -> list[str]:
    more = len(change.details) - LINES
    shown = list(change.details[: LINES if more > 0 else None])
    return [*shown, f"and {more} more"] if more > 0 else shown or [change.operation]


def _cell(lines: list[str]) -> str:
    """Lines as one table cell, with Markdown and HTML escaped."""
    escaped = [line.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ") for line in lines]
    return "<br>".join("".join(f"\\{sign}" if sign in "|`*_[]~\\" else sign for sign in line) for line in escaped)


def _cost(old: Entry, new: Entry) -> str:
    """How the cost estimate in the stack's outputs changes."""
    before, after = (side.get("outputs", {}).get("costPerHour") for side in (old, new))
    if not before and not after:
        return "It uses an existing cluster: its owner pays."
    parts = [
        f"{what} {_dollars(before, key)} → {_dollars(after, key)}{_by(before, after, key)}"
        for what, key in (("at rest", "atRest"), ("at full size", "atFullSize"))
    ]
    return f"USD per hour by list prices: {', '.join(parts)}."


def _dollars(cost: Entry | None, key: str) -> str:
    value = (cost or {}).get(key, "nothing")
    return f"{value:.2f}" if isinstance(value, int | float) else str(value)


def _by(old: Entry | None, new: Entry | None, key: str) -> str:
    before, after = (side.get(key) if side else 0 for side in (old, new))
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return ""
    return f" ({after - before:+.2f})" if round(after - before, 2) else ""


def at_ref(stack: str, ref: str) -> Entry | None:
    """The reviewed snapshot of a stack in a commit; None: the commit has no such stack.

    Raises:
        LookupError: git knows no such commit.
    """
    if _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}") is None:
        raise LookupError(f"git knows no commit '{ref}'; give a branch, a tag or a hash, and fetch it first")
    text = _git("show", f"{ref}:{FOLDER.relative_to(ROOT)}/{stack}.yaml")
    return yaml.safe_load(text) if text else None


def _declared(stack: str, moves: Moves) -> Entry:
    return content(record_anywhere(stack, moves=moves)) if stack in stacks() else {}


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def plan(
    names: AnyStackNames = None,
    against: Annotated[str, typer.Option(metavar="REF", help="The git ref to compare with.")] = "HEAD",
) -> None:
    for stack in names or stacks():
        try:
            old = at_ref(stack, against)
            if old is None and stack not in stacks():
                there = ", ".join(stacks())
                raise LookupError(f"no stack '{stack}' here or in {against}; there are: {there}")
            new, changes = follow(old or {}, partial(_declared, stack))
        except LookupError as error:
            raise CommandError(str(error), code=2) from None
        print(report(stack, against, old or {}, new, changes), end="\n\n")

"""Compare what each stack declares with its reviewed snapshot.

tests/snapshots/NAME.yaml holds the types, names, inputs, dependencies and options of everything that a stack declares:
its diff shows what a change to the program would change in the cloud, without credentials. Prints the differences;
without `--update` it fails when there are any.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import typer
import yaml

from cli import CommandError
from cli.target import StackNames
from infra.stackfiles import ROOT, ours, stack_file_values, stacks
from review.recording import SECRET, SIGNATURE, Recorded, Recording, closure, record_anywhere
from trainer.config.base import flat
from trainer.config.values import StackReader, read_yaml

FOLDER = ROOT / "tests" / "snapshots"
HEADER = """\
# What stack {stack} declares: `make snapshots` writes this file, and a test fails when it is stale.
# after: what must exist before (what follows from others is left out); a parent comes first as well.
"""
#: A list or mapping of at most so many characters is written on one line.
SHORT = 80
#: Least number of resources of one type that are named together.
GROUPED = 3
#: Digests of contents, in image references. Hashes of configurations in names stay: one that changes makes a new Job.
_HASHES = (
    (re.compile(r"sha256:[0-9a-f]{64}"), "sha256:[digest]"),
    (re.compile(r":[0-9a-f]{12}$"), ":[content]"),
    (re.compile(r"^(\.local/contexts/[a-z-]+)-[0-9a-f]{12}"), r"\1-[content]"),
    (re.compile(r"/\S*/kubeconfig\b"), "[kubeconfig]"),
)


def snapshot(stack: Recording, name: str) -> str:
    """The text of a recorded stack; the same graph gives the same text."""
    by_urn = {item.urn: item for item in stack.resources}
    before = closure({urn: item.dependencies for urn, item in by_urn.items()})
    # Sort components with their children, by name: the order of registration differs from run to run.
    ordered = sorted(stack.resources, key=lambda item: (item.urn.split("::")[2], item.name))
    entries = {_title(item): entry(item, by_urn, _after(item, by_urn, before)) for item in ordered}
    content = {"resources": entries, "outputs": _plain(stack.outputs)}
    return HEADER.format(stack=name) + yaml.dump(content, Dumper=_Dumper, width=120, sort_keys=False)


class _Dumper(yaml.SafeDumper):
    """Writes short leaves on one line ({cpu: 500m}) and all else one item per line: short files, readable diffs."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        return super().represent_sequence(tag, sequence, flow_style=_is_short(list(sequence)))

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        return super().represent_mapping(tag, mapping, flow_style=_is_short([*mapping, *mapping.values()]))


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _is_short(items: list[Any]) -> bool:
    return not any(isinstance(item, (dict, list)) and item for item in items) and len(str(items)) <= SHORT


def _title(item: Recorded) -> str:
    return f"{item.type} {item.plain_name}"


def _after(item: Recorded, by_urn: Mapping[str, Recorded], before: dict[str, set[str]]) -> list[str]:
    direct = {urn for urn in item.dependencies if urn in by_urn and by_urn[urn].custom}
    implied = set().union(*(before[urn] for urn in direct)) if direct else set()
    return _grouped(sorted((by_urn[urn] for urn in direct - implied), key=_title), by_urn)


def entry(item: Recorded, by_urn: Mapping[str, Recorded], after: list[str]) -> dict[str, Any]:
    """A resource's entry in the snapshot. `by_urn` has at least the resources that it refers to."""
    options = {
        "deletedWith": _reference(item.deleted_with, by_urn),
        "deleteBeforeReplace": item.delete_before_replace,
        "ignoreChanges": list(item.ignore_changes),
        "replaceOnChanges": list(item.replace_on_changes),
        "protect": item.protect,
        "retainOnDelete": item.retain_on_delete,
        "timeouts": dict(item.timeouts),
        "provider": _reference(item.provider.rsplit("::", 1)[0], by_urn) if item.provider else "",
    }
    said = {
        "parent": _reference(item.parent, by_urn),
        "after": after,
        "options": {key: value for key, value in options.items() if value},
        "inputs": _plain(item.inputs),
    }
    return {key: value for key, value in said.items() if value}


def _grouped(items: list[Recorded], by_urn: Mapping[str, Recorded]) -> list[str]:
    """Titles of resources; if all of one type are there, such as the enabled APIs, they share a line."""
    lines: list[str] = []
    for type_ in dict.fromkeys(item.type for item in items):
        of_type = [item for item in items if item.type == type_]
        everywhere = [item for item in by_urn.values() if item.type == type_]
        if len(of_type) == len(everywhere) >= GROUPED:
            lines.append(f"every {type_}")
        else:
            lines += [_title(item) for item in of_type]
    return lines


def _reference(urn: str, by_urn: Mapping[str, Recorded]) -> str:
    return _title(by_urn[urn]) if urn in by_urn else ""


def _plain(value: Any) -> Any:
    """Values for YAML: without secrets and hashes, whole numbers without a decimal point."""
    if isinstance(value, dict):
        if value.get(SIGNATURE) == SECRET:
            return "[secret]"
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        for pattern, shown in _HASHES:
            value = pattern.sub(shown, value)
    return value


def declared(stack: str, values: Mapping[str, Any] | None = None) -> str:
    """The snapshot of a stack now, as if the trainer's code were always the same: it is in the names of Jobs too.

    `values`: by default those of its file.
    """
    with patch("infra.image.content_hash", lambda *_: "0" * 12):
        return snapshot(record_anywhere(stack, values), stack)


def difference(stack: str, now: str) -> str:
    """The difference of a snapshot from the reviewed one as a unified diff; empty: none."""
    path = FOLDER / f"{stack}.yaml"
    reviewed = path.read_text() if path.exists() else ""
    lines = difflib.unified_diff(
        reviewed.splitlines(), now.splitlines(), f"reviewed {path.name}", "what the program declares", lineterm=""
    )
    return "\n".join(lines)


def summary(stack: str, ref: str) -> str:
    """What a stack declares now against what it declared in the commit `ref`, as Markdown: the keys of its file that
    differ, the resources that are added, changed and deleted, and the cost. `pulumi preview` sees the cloud too.

    Raises:
        CommandError: git knows no such commit, or the program refuses the stack's file.
    """
    given = _given(ref, stack), stack_file_values(stack) if stack in stacks() else {}
    old, new = _at(ref, stack, given[0]), yaml.safe_load(declared(stack)) if given[1] else {}
    before, after = (side.get("resources") or {} for side in (old, new))
    rows = {
        "added": after.keys() - before.keys(),
        "deleted": before.keys() - after.keys(),
        "changed": {title for title in after.keys() & before.keys() if after[title] != before[title]},
    }
    costs = [(side.get("outputs") or {}).get("costPerHour") or {} for side in (old, new)]
    lines = [f"### {stack} against {ref}", "", ", ".join(f"{len(titles)} {what}" for what, titles in rows.items())]
    for key, words in (("atRest", "at rest"), ("atFullSize", "at full size")):
        was, now = (cost.get(key, 0) for cost in costs)
        if was != now:
            lines.append(f"USD an hour {words} by list prices: {was} → {now}")
    if all(given):  # a snapshot has neither digests nor secrets, and keys such as cluster.ttlHours change no resource
        was, now = map(flat, given)
        rows[f"other in Pulumi.{stack}.yaml:"] = {key for key in was | now if was.get(key) != now.get(key)}
    # Code spans: a fork's change must not act as markup on our page.
    titles = [
        f"- {what} `{' '.join(title.replace('`', ' ').split())}`"
        for what, found in rows.items()
        for title in sorted(found)
    ]
    return "\n".join([*lines, "", *titles])


def _given(ref: str, stack: str) -> dict[str, Any]:
    """The values of a stack's file in a commit; empty: it had none there."""
    try:
        content = read_yaml(_git("show", f"{ref}:Pulumi.{stack}.yaml") or "", StackReader) or {}
    except yaml.YAMLError as error:
        raise CommandError(f"Pulumi.{stack}.yaml in {ref} cannot be compared: {error}", code=2) from None
    return ours(content.get("config") or {})


def _at(ref: str, stack: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a stack declared in a commit, where its file gave these values; empty: it had none there.

    The commit's reviewed snapshot tells; where it has none, as of one's own stacks, this program records that file.
    """
    text = _git("show", f"{ref}:{(FOLDER / f'{stack}.yaml').relative_to(ROOT)}")
    if text is None and given:
        try:
            text = declared(stack, given)
        except CommandError as error:
            raise CommandError(f"Pulumi.{stack}.yaml in {ref} cannot be compared: {error}", code=2) from None
    return yaml.safe_load(text) if text and given else {}


def _since(ref: str, names: list[str]) -> list[str]:
    """These stacks; where they are all, also those whose files have gone since a commit. Raises CommandError."""
    if _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}") is None:
        advice = "give a branch, a tag or a hash, and fetch it first"
        raise CommandError(f"git knows no commit '{ref}'; {advice}", code=2)
    there = (_git("ls-tree", "--name-only", ref) or "").splitlines()
    files = [
        Path(file).stem.removeprefix("Pulumi.") for file in there if re.fullmatch(r"Pulumi\.(?!e2e).+\.yaml", file)
    ]
    return sorted({*names, *files}) if names == stacks() else names


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def review(
    names: StackNames = None,
    update: Annotated[bool, typer.Option("--update", help="Rewrite the snapshots.")] = False,
    against: Annotated[
        str | None, typer.Option(metavar="REF", help="Only sum up what the stacks declare otherwise than in a commit.")
    ] = None,
) -> int:
    if against:
        print("\n\n".join(summary(name, against) for name in _since(against, names or [])))
        return 0
    changed = []
    for stack in names or []:
        now = declared(stack)
        if text := difference(stack, now):
            changed.append(stack)
            print(text)
            if update:
                FOLDER.mkdir(parents=True, exist_ok=True)
                (FOLDER / f"{stack}.yaml").write_text(now)
    if changed and not update:
        print(f"\nThe program no longer matches the reviewed snapshots ({', '.join(changed)}).", file=sys.stderr)
        print("If you mean the change, run `make snapshots` and commit the files with it.", file=sys.stderr)
        return 1
    return 0

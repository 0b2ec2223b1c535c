"""Values as people type them: YAML's scalars as text where Python's form would lose some of it, and in messages.

YAML reads 1.30 as 1.3, 010 as 8, `on` as true and 2026-11-01 as a date, and its versions differ (Pulumi's engine has
YAML 1.2's words, PyYAML 1.1's). The type of a key decides what its text means, as on a command line.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"


def typed(value: Any) -> str:
    """A scalar as YAML and JSON write it: true for Python's True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown(value: Any) -> str:
    """A value in a message: text in quotes, all else as YAML writes it; never Python's own form."""
    return f"'{value}'" if isinstance(value, str) else _flow(value)


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_flow(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, (list, tuple, set)):
        return f"[{', '.join(map(_flow, value))}]"
    return "nothing" if value is None else typed(value)


def kind(value: Any) -> str:
    """What a value is, in words."""
    kinds = {bool: "true or false", str: "text", type(None): "nothing", int: "a number", float: "a number"}
    return kinds.get(type(value), "an object" if isinstance(value, Mapping) else "a list")


def in_words(text: str) -> str:
    """An error's message with Python's names of kinds in words."""
    return re.sub(
        r"['\"]?\b(NoneType|None|dict|str|int|float|bool)\b(?: object)?['\"]?", lambda found: _WORDS[found[1]], text
    )


_WORDS = {"NoneType": "nothing", "None": "nothing", "dict": "an object", "str": "text"}
_WORDS |= dict.fromkeys(("int", "float"), "a number") | {"bool": "true or false"}


def encrypted(value: Any) -> bool:
    """Whether this is what `pulumi config set --secret` writes into a stack file."""
    return isinstance(value, Mapping) and list(value) == ["secure"] and isinstance(value["secure"], str)


class Bare(str):
    """Text without quotes that Pulumi reads as a number, a date or a switch, and does not spell as it was typed."""


yaml.SafeDumper.add_representer(Bare, lambda dumper, text: dumper.represent_str(str(text)))
#: What Pulumi's YAML (gopkg.in/yaml.v3) takes for a number or a switch, besides dates.
_BARE = re.compile(
    r"[-+]?(0x[0-9a-f_]+|0b[01_]+|0o?[0-7_]+|[0-9][0-9_]*|(\.[0-9]+|[0-9]+(\.[0-9]*)?)(e[-+]?[0-9]+)?)|true|false", re.I
)


class Reader(yaml.SafeLoader):
    """YAML in which a scalar that Python would write in another way stays text; a key that stands twice is refused."""

    bare: type[str] = str

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value} stands twice", problem_mark=key.start_mark)
            seen.add(key.value)
            key.tag, key.style = "tag:yaml.org,2002:str", "'"
        return node

    def scalar(self, node: Any) -> Any:
        value: Any = None
        with suppress(ValueError, OverflowError):  # such as month 13 in a date
            value = yaml.SafeLoader.yaml_constructors[node.tag](self, node)
        if isinstance(value, (int, float)) and typed(value) == node.value and abs(value) < 2**63:
            return value
        bare = node.style is None and (_BARE.fullmatch(node.value) or hasattr(value, "year"))
        return self.bare(node.value) if bare else node.value


for _kind in ("int", "float", "bool", "timestamp", "str"):
    Reader.add_constructor(f"tag:yaml.org,2002:{_kind}", Reader.scalar)


class StackReader(Reader):
    """The same for a stack file, which Pulumi rewrites at each `pulumi config set`: 1.30 becomes 1.3 for ever."""

    bare = Bare


def read_yaml(text: Any, reader: type[Reader] = Reader) -> Any:
    """The document in a text or file. Raises yaml.YAMLError."""
    return reader(text).get_single_data()


#: A date as Go prints it, and as Pulumi passes it and writes it back (sdk/go/common/resource/config/object.go).
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)( \d\d:\d\d:\d\d(\.\d+)?) [-+]\d{4} \w+")


def as_text(value: Any) -> Any:
    """A scalar where text is wanted. Raises ValueError where Pulumi does not keep what was typed."""
    if isinstance(value, Bare):
        raise ValueError(f"{value} is no text without quotes, and Pulumi spells it in its own way; write '{value}'")
    if isinstance(value, str) and (date := _DATE.fullmatch(value)):
        raise ValueError(f"'{value}' is what Pulumi made of a date without quotes; write it in them, as '{date[1]}'")
    return typed(value) if isinstance(value, (bool, int, float)) else value


def as_typed(value: Any, text: Any) -> Any:
    """A value that Pulumi's engine read, with each scalar, and the order of keys, as the stack file has them in `text`.

    The engine's scalar stays where the file says something else, such as for what is encrypted there.
    """
    if isinstance(value, dict) and isinstance(text, dict):
        keys = [*(key for key in text if key in value), *(key for key in value if key not in text)]
        return {key: as_typed(value[key], text.get(key)) for key in keys}
    if isinstance(value, list) and isinstance(text, list) and len(value) == len(text):
        return [as_typed(*pair) for pair in zip(value, text, strict=True)]
    return text if isinstance(text, (str, int)) and value is not None and _means(text, value) else value


def _means(text: str | int, value: Any) -> bool:
    """Whether YAML, of either version, reads this text as the value."""
    if isinstance(value, str):
        found: Any = None
        with suppress(ValueError, yaml.YAMLError):
            found = yaml.safe_load(str(text))
        return value == text or (hasattr(found, "year") and value[:10] == str(found)[:10])
    if isinstance(value, bool):
        return typed(text).lower() == typed(value)
    if not isinstance(value, (int, float)):
        return False
    plain = str(text).replace("_", "")
    for read in (float, lambda digits: int(digits, 0), lambda digits: int(digits, 8)):
        with suppress(ValueError, OverflowError):
            if read(plain) == value:
                return True
    return False

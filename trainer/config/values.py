"""Values as people type them: YAML's scalars as text where Python's form would lose some of it, and in messages.

YAML reads 1.30 as 1.3, 010 as 8, `on` as true and digits as a date, and its versions differ (Pulumi's engine has YAML
1.2's words, PyYAML 1.1's). The type of a key decides what its text means, as on a command line.
"""

import codecs
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"
#: Characters of a value that a message shows.
MOST_SHOWN = 400


def typed(value: Any) -> str:
    """A scalar as YAML and JSON write it: true for Python's True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown(value: Any) -> str:
    """A value in a message: text in quotes, all else as YAML writes it; never Python's own form, and never pages."""
    text = f"'{value}'" if isinstance(value, str) else _flow(value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 100]}... ({len(text):,} characters)"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_flow(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, (list, tuple, set)):
        return f"[{', '.join(map(_flow, value))}]"
    return "nothing" if value is None else typed(value)


def kind(value: Any) -> str:
    """What a value is, in words."""
    kinds = {
        dict: "an object",
        list: "a list",
        bool: "true or false",
        str: "text",
        bytes: "bytes that are not UTF-8",
        type(None): "nothing",
        int: "a number",
        float: "a number",
    }
    return kinds.get(type(value), f"a {type(value).__name__}")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For json.loads(object_pairs_hook=...): an object; of a key that it has twice, Python would keep the last.

    Raises ValueError.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"has {twice} twice in one object")
    return found


def encrypted(value: Any) -> bool:
    """Whether this is what `pulumi config set --secret` writes into a stack file."""
    return isinstance(value, Mapping) and list(value) == ["secure"] and isinstance(value["secure"], str)


class Bare(str):
    """Text without quotes that Pulumi reads as a number, a date or a switch, and does not spell as it was typed."""


yaml.SafeDumper.add_representer(Bare, lambda dumper, text: dumper.represent_str(str(text)))
#: What Pulumi's YAML (gopkg.in/yaml.v3) takes for a number or a switch, besides dates.
_BARE = re.compile(
    r"[-+]?(0x[0-9a-f_]+|0b[01_]+|0o?[0-7_]+|[0-9][0-9_]*|(\.[0-9]+|[0-9]+(\.[0-9]*)?)(e[-+]?[0-9]+)?|\.inf)|\.nan|true|false",
    re.I,
)


#: Values that aliases may make of a document: our longest files have some hundred in all.
MOST_VALUES = 20_000


class Plain(yaml.SafeLoader):
    """YAML whose aliases expand to at most MOST_VALUES values."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.values = self.written = 0
        """Values with all aliases expanded, and those that stand there."""
        self._sizes: dict[str, int] = {}
        self._open: set[str] = set()

    def fetch_flow_collection_start(self, token: Any) -> None:
        if self.flow_level > 100:  # PyYAML takes seconds for a thousand
            raise RecursionError
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        mark: Any = event.start_mark
        before = self.values
        anchor = event.anchor or ""
        if isinstance(event, yaml.AliasEvent):
            self.values += self._sizes.get(anchor, 0)
            if anchor in self._open:
                raise yaml.MarkedYAMLError(problem=f"*{anchor} contains itself", problem_mark=mark)
            if self.values - self.written > MOST_VALUES:
                problem = f"aliases such as *{anchor} make more than {MOST_VALUES:,} values"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
            return super().compose_node(parent, index)
        # Of a long text each 100 characters count as one, so that not a few values are gigabytes.
        count = 1 + len(getattr(event, "value", "")) // 100
        self.values, self.written = self.values + count, self.written + count
        self.anchors.pop(anchor, None)  # an anchor may be given anew
        self._open.add(anchor)
        node = super().compose_node(parent, index)
        self._open.discard(anchor)
        self._sizes[anchor] = self.values - before
        return node


for _kind in ("set", "omap", "pairs"):  # which Pulumi reads as something else, and a set has no order
    Plain.add_constructor(f"tag:yaml.org,2002:{_kind}", Plain.construct_undefined)


class Reader(Plain):
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
    """The same for a stack file, which Pulumi rewrites at each `pulumi config set`: 1.30 becomes 1.3 for ever.

    It refuses what Pulumi's parser does (gopkg.in/yaml.v3, as in Pulumi 3.200): a version but 1.1, and a document of
    which aliases make nearly all.
    """

    bare = Bare

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        made = self.values - self.written
        if made > 100 and self.values > 1000 and made / self.values > 0.99:
            raise yaml.YAMLError(f"aliases make {made:,} of its {self.values:,} values, which Pulumi refuses")
        if getattr(self, "yaml_version", None) not in (None, (1, 1)):
            raise yaml.YAMLError("begins with %YAML, and Pulumi reads version 1.1 alone; remove the line")
        return node


def read_yaml(text: str | bytes, reader: type[Plain] = Reader) -> Any:
    """The document in a text, or in a file's bytes of UTF-8 or UTF-16. Raises yaml.YAMLError."""
    if isinstance(text, bytes):
        utf16 = text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        try:
            text = text.decode("utf-16" if utf16 else "utf-8-sig")
        except UnicodeDecodeError as error:
            line = text[: error.start].count(b"\n") + 1
            raise yaml.YAMLError(f"line {line} has a byte that is not UTF-8; save it as UTF-8") from None
    try:
        return reader(text).get_single_data()
    except RecursionError:
        raise yaml.YAMLError("sections stand too deep in each other") from None


_OPENED = {
    "while scanning a quoted scalar": "quote",
    "while parsing a flow mapping": "{",
    "while parsing a flow sequence": "[",
}
"""PyYAML's context of an error -> what may lack its end."""


def why_not_yaml(error: yaml.YAMLError) -> str:
    """What is wrong with a document that `read_yaml` refused, and in which line, for the person who wrote it."""
    if isinstance(error, yaml.reader.ReaderError):
        return f"has the character U+{int(error.character):04X}, which YAML does not allow; remove it"
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        return str(error)
    problem, keyless = str(error.problem), "has no ': ' behind its key; write KEY: VALUE"
    if error.context == "while scanning a simple key" and error.context_mark:
        return f"line {error.context_mark.line + 1} {keyless}"
    lines = (mark.buffer or "").rstrip("\0").splitlines()
    line, here = (lines[mark.line] if mark.line < len(lines) else ""), f"line {mark.line + 1}"
    last, open_at = _open_blocks(lines[: mark.line])
    indent = len(line) - len(line.lstrip(" "))
    if problem.startswith("found character") and mark.column < len(line):
        character = line[mark.column]
        if character == "\t":
            if line[: mark.column].strip():
                return f"{here} has a tab behind its text; write spaces"
            return f"{here} has a tab before its text; indent with spaces"
        return f"{here} has a value that begins with {character}; put it in quotes"
    if problem.startswith("mapping values"):
        if ": " in line[: mark.column]:
            return f"{here} has ': ' twice; put a value that has it in quotes"
        if ": " not in lines[last - 1]:
            return f"line {last} {keyless}"
        return f"{here} is indented by {indent}, below line {last}, which has its value already; give both one indent"
    if problem.startswith("expected <block end>") and line.strip() and indent not in open_at:
        columns = " or ".join(map(str, open_at))
        return f"{here} is indented by {indent}, out of step with the lines above it; indent it by {columns}"
    if "another document" in problem:
        return f"{here} begins a second document, which nothing reads; remove it"
    opened, begun = _OPENED.get(str(error.context)), error.context_mark
    if opened and begun and begun.line != mark.line:
        return f"line {begun.line + 1} has a {opened} that nothing closes before {here}"
    return f"{here}: {problem}"


def _open_blocks(lines: list[str]) -> tuple[int, list[int]]:
    """Number of the last of these lines that says something, and the indents of what is open there, innermost first."""
    last, found = 1, list[int]()
    for number in range(len(lines), 0, -1):
        text = lines[number - 1].lstrip(" ")
        if not text.strip() or text.startswith("#"):
            continue
        indent = len(lines[number - 1]) - len(text)
        last = last if found else number
        if not found or indent < found[-1]:
            found.append(indent)
    return last, found


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

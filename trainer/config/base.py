"""Read configuration sections and report every problem at once: `path: what was given; what is allowed`.

Keys are camelCase in a stack file and snake_case in the trainer's files and arguments; either works in both.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from trainer.config.values import as_text, encrypted, shown, typed


class Section(BaseModel):
    """Keys with defaults; the sentence under each is its documentation."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        loc_by_alias=False,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


@dataclass(frozen=True)
class Effect:
    """Marks a key, or a section for its keys without a mark, by what another value does to a run in progress."""

    text: str = ""
    """What is said where a run resumes with another value; empty: nothing."""
    mathematical: bool = True
    """Whether another value makes another run, in a folder of its own; so it is of a key without a mark."""


#: Another value changes speed, limits or output: a run that ran out of memory continues in its folder with a smaller
#: micro-batch.
NO_MATHEMATICS = Effect(mathematical=False)


S = TypeVar("S", bound=Section)


def section_of(annotation: Any) -> type[Section] | None:
    """The section class of a field, which may be optional; None for a plain value."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def keys_of(section: type[Section], spell: Callable[[str], str] = str, path: str = "") -> dict[str, FieldInfo]:
    """Every key of a section and its subsections, such as optimizer.learning_rate."""
    found: dict[str, FieldInfo] = {}
    for name, field in section.model_fields.items():
        key, inner = f"{path}{spell(name)}", section_of(field.annotation)
        found |= keys_of(inner, spell, f"{key}.") if inner else {key: field}
    return found


def effects_of(section: type[Section], path: str = "", above: Effect = Effect()) -> dict[str, Effect]:
    """The effect of every key of a section and its subsections."""
    found: dict[str, Effect] = {}
    for name, field in section.model_fields.items():
        own = next((mark for mark in field.metadata if isinstance(mark, Effect)), above)
        inner = section_of(field.annotation)
        found |= effects_of(inner, f"{path}{name}.", own) if inner else {f"{path}{name}": own}
    return found


def flat(values: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """Nested values by dotted key."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{start}{key}.") if isinstance(value, Mapping) else {f"{start}{key}": value}
    return found


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key as nested sections."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        found = merge(found, value)
    return found


def mathematics(section: Section) -> dict[str, Any]:
    """The values that make a run what it is, defaults included, by dotted key."""
    effects = effects_of(type(section))
    return {key: value for key, value in flat(section.model_dump(mode="json")).items() if effects[key].mathematical}


class Problems:
    """One line for each problem, with keys spelled as the reader spells them."""

    def __init__(
        self,
        spell: Callable[[str], str] = str,
        prefix: str = "",
        forms: Mapping[str, str] | None = None,
        keys: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`forms`: key -> what to say about text of the wrong form; `keys`: all keys of the configuration, to find the
        right section of a misplaced one."""
        self.spell, self.forms, self._all = spell, forms or {}, keys
        self.lines: list[str] = []
        self.keys: set[str] = set()
        """Keys that have a problem, by field name."""
        self.inner: set[str] = set()
        """Those of them within a list or a mapping, whose values stay."""
        self._prefix = [prefix] if prefix else []
        self.typed: dict[tuple[str, ...], str] = {}
        """Path of a key -> the spelling in which it was first given."""

    def path(self, path: Iterable[object]) -> str:
        """A key as the reader wrote it, else in the spelling of this configuration."""
        parts = tuple(map(str, path))
        shown = (self.typed.get(parts[: at + 1]) or self._spelled(part) for at, part in enumerate(parts))
        return ".".join([*self._prefix, *shown])

    def add(self, path: tuple[str | int, ...], text: str) -> None:
        self.keys.add(".".join(map(str, path)))
        self.lines.append(f"{self.path(path)}: {text}")

    def tell_unknown(self, path: tuple[str, ...], known: list[str]) -> None:
        spelled = self._spelled(path[-1])
        near, far = (difflib.get_close_matches(spelled, known, n=1, cutoff=cutoff) for cutoff in (0.7, 0.6))
        close = near or self._elsewhere(path) or far
        hint = f"did you mean {' or '.join(close)}?" if close else f"allowed: {', '.join(known)}"
        self.add(path, f"unknown key; {hint}")
        # The key that was meant has not its value: no rule may read its default.
        self.keys.update(".".join((*path[:-1], name)) for key in close for name in (key, snake(key)))

    def _elsewhere(self, path: tuple[str, ...]) -> list[str]:
        """Keys and sections of this name in the nearest other sections; none if there are more than three, or if the
        key is right for another kind of cluster."""
        here = [*self._prefix, *map(self._spelled, path)]
        if ".".join(here) in self._all():
            return []

        def shared(key: str) -> int:
            return sum(one == other for one, other in zip(key.split("."), here[:-1], strict=False))

        beyond = [key[: key.index(f".{here[-1]}.")] for key in self._all() if f".{here[-1]}." in key]
        found = [f"{section}.{here[-1]}" for section in dict.fromkeys(beyond)]
        found += [key for key in self._all() if key.rpartition(".")[2] == here[-1]]
        nearest = max(map(shared, found), default=0)
        found = [key for key in found if shared(key) == nearest]
        return found if len(found) <= 3 else []

    def _spelled(self, part: str) -> str:
        return self.spell(part) if re.fullmatch("[a-z]+(_[a-z]+)+", part) else part


def snake(key: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key)


def validated(section: type[S], given: Any, problems: Problems) -> S | None:
    """Validate `given` and report its problems; defaults replace wrong values. None without a required key."""
    values = named(section, given, problems)
    while True:
        try:
            return section.model_validate(values)
        except ValidationError as error:
            details = error.errors(include_url=False)
            for detail in details:
                if detail["type"] == "too_short" and len(detail["input"]) >= detail.get("ctx", {})["min_length"]:
                    continue  # an item of the list is wrong, which is reported
                key = ".".join(map(str, detail["loc"]))
                # A wrong value that was dropped below is not missing, and one of a list is told once.
                if key not in problems.inner and (detail["type"] != "missing" or key not in problems.keys):
                    problems.add(detail["loc"], _described(section, detail, problems))
            # Drop wrong values: defaults replace them until all problems are found.
            if not all([_drop(values, detail["loc"]) for detail in details]):
                return None


def named(section: type[Section], given: Any, problems: Problems, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """The given values by field name; reports unknown and repeated keys and leaves them out."""
    found: dict[str, Any] = {}
    written: dict[str, str] = {}
    if given is None:  # all its keys are commented out
        return found
    if not isinstance(given, Mapping):
        told = "(secret)" if _is_secret(section) else shown(given)
        problems.add(path, f"{told} is not a section; give it as keys and values")
        return found
    names = {to_camel(name): name for name in section.model_fields} | {name: name for name in section.model_fields}
    for key, value in given.items():
        inner_path = (*path, names.get(str(key), str(key)))
        problems.typed.setdefault(inner_path, str(key))
        if inner_path[-1] in written:
            problems.add(inner_path, f"given twice, as {written[inner_path[-1]]} and {key}; keep one")
            continue
        written[inner_path[-1]] = str(key)
        inner = section_of(section.model_fields[names[key]].annotation) if key in names else None
        if key not in names:
            problems.tell_unknown(inner_path, [problems.spell(name) for name in section.model_fields])
        elif inner is not None:
            found[names[key]] = named(inner, value, problems, inner_path)
        else:
            fitted = _fitted(value, section.model_fields[names[key]], problems, inner_path)
            if fitted is not _WRONG:
                found[names[key]] = fitted
    return found


def _kinds(annotation: Any) -> set[Any]:
    """The plain types that a field's annotation is made of."""
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return set(map(type, inner))
    if get_origin(annotation) is Annotated:
        return _kinds(inner[0])
    return set().union(*map(_kinds, inner)) if inner else {annotation} - {None, type(None), Ellipsis}


_WRONG = object()


class Free:
    """Marks text that may be blank, or whose own check says so."""


def _fitted(value: Any, field: FieldInfo, problems: Problems, path: tuple[str, ...], within: type | None = None) -> Any:
    """A value as its key wants it: as text what was typed, as a number what people write for one. _WRONG: reported;
    a wrong one of a list or a mapping stays, so that pydantic says what is wrong with the others."""

    def item(at: Any, each: Any, kind: type) -> Any:
        fitted = _fitted(each, field, problems, inner := (*path, str(at)), kind)
        if fitted is _WRONG:
            problems.inner.add(".".join(inner))
        return each if fitted is _WRONG else fitted

    if isinstance(value, (list, tuple)):
        return [item(at, each, list) for at, each in enumerate(value)]
    if isinstance(value, Mapping) and not encrypted(value):
        return {key: item(key, each, dict) for key, each in value.items()}
    try:
        fitted = _scalar(value, _kinds(field.annotation))
        if within is not dict:
            _refuse_blank(fitted, field, within is list)
        return fitted
    except ValueError as error:
        problems.add(path, str(error))
        return _WRONG


def _refuse_blank(text: Any, field: FieldInfo, listed: bool) -> None:
    """Raises ValueError for blank text, unless the key's default is none either."""
    free = any(isinstance(mark, Free) for mark in field.metadata) or (text == field.default == "")
    if isinstance(text, str) and not text.strip() and not free:
        hint = "give a value" if listed or field.is_required() else "give a value, or remove the key"
        raise ValueError(f"is {'blank' if text else 'empty'}; {hint}")


def _scalar(value: Any, kinds: set[Any]) -> Any:
    """A value that is neither list nor mapping, as `_fitted`."""
    if encrypted(value):
        if SecretStr in kinds:
            return "encrypted:value"
        raise ValueError("is encrypted, and only `pulumi` can read it; set it again without --secret")
    if kinds <= {str, SecretStr}:
        return as_text(value)
    if not kinds <= {int, float}:
        return value
    if isinstance(value, bool):
        raise ValueError(f"{typed(value)} is not a number")
    if not isinstance(value, str) or not value.isascii():
        return value
    if re.fullmatch(r"[-+]?0[0-9_]+", value):
        raise ValueError(f"{value} is one number to some readers and octal to others; write it without the leading 0")
    with suppress(ValueError):
        return int(value)
    with suppress(ValueError, OverflowError):
        number = float(value)
        if math.isfinite(number):
            return int(number) if "e" in value.lower() and number.is_integer() else number
    return value


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested values; those of `above` win."""
    found = dict(below)
    for key, value in above.items():
        under = found.get(key)
        found[key] = merge(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return found


def _drop(values: dict[str, Any], path: tuple[str | int, ...]) -> bool:
    """Remove the key, or the whole list that the path leads into; False if it is not there."""
    name, *rest = path
    inner = values.get(str(name))
    if rest and isinstance(inner, dict):
        return _drop(inner, tuple(rest))
    given = name in values
    values.pop(str(name), None)
    return given


#: pydantic's types in the words of messages.
WORDS = {"int": "a whole number", "float": "a number", "finite": "a number", "bool": "true or false", "string": "text"}


def _described(section: type[Section], detail: ErrorDetails, problems: Problems) -> str:
    """What is wrong with one value."""
    value, context = detail.get("input"), detail.get("ctx", {})
    given = "(secret)" if _is_secret(section) else shown(value)
    kind, path = detail["type"].partition("_")[0], problems.path(detail["loc"])
    match detail["type"]:
        case "missing":
            return f"missing; set it with `pulumi config set --path {path} VALUE`"
        case "value_error":
            return str(context["error"])
        case "too_short" | "string_too_short":
            return "is empty; give a value"
        case _ if value is None or value == "":
            return "is empty; give a value, or remove the key"
        case "literal_error":
            return f"{given} is not known; allowed: {context['expected'].replace(' or ', ', ')}"
        case "string_pattern_mismatch":
            key = ".".join(part for part in path.split(".") if not part.isdigit())
            return f"{given} {problems.forms.get(key) or problems.forms.get('', 'has another form')}"
        case "tuple_type":
            return f"{given} is not a list; give it as [{value if isinstance(value, str) else '...'}]"
        case "dict_type":
            return f"{given} is not a section; give it as keys and values"
        case "too_long":
            return f"{context['actual_length']} values given; allowed: at most {context['max_length']}"
        case "string_too_long":
            return f"{given} has {len(str(value))} characters; allowed: at most {context['max_length']}"
        case text if kind in WORDS and text.endswith(("_parsing", "_type", "_number", "_float", "_size")):
            return f"{given} is not {WORDS[kind]}"
    rule = detail["msg"].removeprefix("Input ").removeprefix("should be ")
    return f"{given} is not allowed; must be {rule[:1].lower()}{rule[1:]}"


def _is_secret(section: type[Section]) -> bool:
    return any(SecretStr in _kinds(field.annotation) for field in section.model_fields.values())

"""The chat template of a tokenizer and its tokenizer_config.json, which others wrote: read, or refused by file."""

import json
import os
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trainer.config.values import kind
from trainer.data.tokenizer import COMPANIONS, end_of_text, find_folder
from trainer.errors import UserError, one_line
from trainer.files import TEMPLATES, open_regular

CONFIG, TOKENS, TEMPLATE = COMPANIONS
KINDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""Special tokens that transformers knows by name."""


def described(spec: str, tokenizer: Tokenizer) -> tuple[dict[str, Any], str]:
    """tokenizer_config.json and chat template of the tokenizer that `spec` names; empty without one.

    Several templates stay in the former, by name, as transformers reads them where there is no other file.
    """
    folder = find_folder(spec)
    given = _mapping(spec, folder, CONFIG)
    _mapping(spec, folder, TOKENS)  # which stays as it is
    named = _templates(spec, given.pop("chat_template", None) or {})
    beside = sorted((folder / TEMPLATES).glob("*.jinja")) if folder is not None else []
    files = {path.stem: _beside(spec, folder, f"{TEMPLATES}/{path.name}") for path in beside}
    if default := _beside(spec, folder, TEMPLATE):
        files["default"] = default
    if isinstance(named := files or named, dict):
        if set(named) > {"default"} or (named and "default" not in named):
            given["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
        named = "" if "chat_template" in given else named.get("default", "")
    given.pop("auto_map", None)  # code
    end = tokenizer.id_to_token(end_of_text(tokenizer, folder)) if not given.get("eos_token") else None
    return {**given, **({"eos_token": end} if end else {})}, named


def _beside(spec: str, folder: Path | None, name: str) -> str:
    """The text of a file beside a tokenizer's own; empty without one. Raises UserError."""
    if folder is None or not os.path.lexists(folder / name):
        return ""
    try:
        with open_regular(folder / name, folder) as file:
            return file.read().decode("utf-8")
    except OSError as error:
        raise UserError(f"--tokenizer {spec}: its {name} {error.strerror or one_line(error)}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"--tokenizer {spec}: its {name} is not UTF-8 ({error}); save it as UTF-8") from None


def _mapping(spec: str, folder: Path | None, name: str) -> dict[str, Any]:
    """The object in a file beside a tokenizer's own, whose special tokens are texts. Raises UserError."""
    text = _beside(spec, folder, name)
    try:
        given = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise UserError(f"--tokenizer {spec}: its {name} is not JSON ({one_line(error)}); mend it") from None
    if not isinstance(given, dict):
        raise UserError(f"--tokenizer {spec}: its {name} holds {kind(given)}, not an object; mend it")
    for key in given.keys() & {f"{each}_token" for each in KINDS}:
        if not isinstance(_word(given[key]), str):
            raise UserError(
                f"--tokenizer {spec}: its {name} has {one_line(json.dumps(given[key]), 80)} as {key}; give text, or "
                "an object with the text as content"
            )
    if not isinstance(given.get("added_tokens_decoder", {}), dict):
        raise UserError(
            f"--tokenizer {spec}: its {name} has no object as added_tokens_decoder; give one, from id to token"
        )
    return given


def _templates(spec: str, given: Any) -> dict[str, str] | str:
    """The templates in tokenizer_config.json: a text, or several by name. Raises UserError."""
    pairs: Any = given.items() if isinstance(given, dict) else [("", given)]
    if isinstance(given, list):
        pairs = [(item.get("name"), item.get("template")) if isinstance(item, dict) else (0, 0) for item in given]
    if not all(isinstance(name, str) and isinstance(text, str) for name, text in pairs):
        raise UserError(
            f"--tokenizer {spec}: its {CONFIG} has {one_line(json.dumps(given), 80)} as chat_template; give text, or "
            "a list of objects with name and template, both text"
        )
    return given if isinstance(given, str) else dict(pairs)


def plain_template(tokenizer: Tokenizer, config: dict[str, Any]) -> str:
    """A template for a tokenizer without one: headings in plain words that every text model knows."""
    begin = begins(tokenizer, _word(config.get("bos_token")))
    return (
        ("{{ bos_token }}" if begin else "")
        + "{% for message in messages %}"
        + "{{ '### ' + message['role'] | capitalize + ':\\n' + message['content'] }}"
        + "{% if message['role'] == 'assistant' %}{{ eos_token + '\\n' }}{% else %}{{ '\\n\\n' }}{% endif %}"
        + "{% endfor %}"
        + "{% if add_generation_prompt %}{{ '### Assistant:\\n' }}{% endif %}"
    )


def _word(token: Any) -> str:
    """The text of a special token, which tokenizer_config.json holds as text or with attributes."""
    return (token.get("content") if isinstance(token, dict) else token) or ""


def begins(tokenizer: Tokenizer, begin: str) -> str:
    """`begin`, if the tokenizer puts it before a text; else empty."""
    return begin if begin and tokenizer.encode("").ids[:1] == [tokenizer.token_to_id(begin)] else ""

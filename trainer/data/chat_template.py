"""The chat template of a tokenizer and its tokenizer_config.json, which others wrote, as transformers reads them."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trainer.config.values import kind
from trainer.data.tokenizer import COMPANIONS, end_of_text
from trainer.errors import UserError, one_line
from trainer.files import TEMPLATES, read_json
from trainer.log import event

CONFIG, _, TEMPLATE = COMPANIONS


def known(folder: Path, tokenizer: Tokenizer) -> Any:
    """What transformers makes of a tokenizer and the files beside it. Raises UserError."""
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(folder, tokenizer_object=tokenizer)
    except Exception as error:  # whatever follows from a key of a wrong kind
        raise UserError(
            f"--tokenizer {folder}: transformers does not read its {', '.join(COMPANIONS)} or {TEMPLATES} "
            f"({one_line(error)}); mend them"
        ) from None


def chat_files(folder: Path | None, tokenizer: Tokenizer, chosen: Path | None) -> dict[str, bytes]:
    """tokenizer_config.json and chat template of a dataset, of the tokenizer in a folder. Raises UserError.

    chosen: a file instead of its own template. Several templates stay in tokenizer_config.json, by name, as
    transformers reads them where there is no other file.
    """
    config = (read_json(folder / CONFIG) or {}) if folder is not None else {}
    config.pop("auto_map", None)  # code
    config.pop("chat_template", None)
    if not config.get("eos_token"):
        config["eos_token"] = tokenizer.id_to_token(end_of_text(tokenizer, folder))
    template: Any = ""
    if chosen is not None:
        try:
            template = chosen.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--chat-template {chosen}: cannot be read ({error})") from None
    elif folder is not None and any((folder / name).exists() for name in (*COMPANIONS, TEMPLATES)):
        template = known(folder, tokenizer).chat_template or ""
    for text in template.values() if isinstance(template, dict) else [template]:
        if not isinstance(text, str):
            raise UserError(f"--tokenizer {folder}: its {CONFIG} has {kind(text)} as chat_template, not text; mend it")
    if isinstance(template, dict):
        config["chat_template"] = [{"name": name, "template": text} for name, text in template.items()]
    elif not template and chosen is None:
        template = _plain_template(tokenizer, config)
        event("chat_template", chosen="built-in", reason="'the tokenizer has none'", file=TEMPLATE)
    found = {CONFIG: (json.dumps(config, indent=1) + "\n").encode()}
    return found | ({TEMPLATE: template.encode()} if isinstance(template, str) else {})


def _plain_template(tokenizer: Tokenizer, config: dict[str, Any]) -> str:
    """A template for a tokenizer without one: headings in plain words that every text model knows."""
    token = config.get("bos_token")  # as text or with attributes
    word = token.get("content") if isinstance(token, dict) else token
    return (
        ("{{ bos_token }}" if begins(tokenizer, word or "") else "")
        + "{% for message in messages %}"
        + "{{ '### ' + message['role'] | capitalize + ':\\n' + message['content'] }}"
        + "{% if message['role'] == 'assistant' %}{{ eos_token + '\\n' }}{% else %}{{ '\\n\\n' }}{% endif %}"
        + "{% endfor %}"
        + "{% if add_generation_prompt %}{{ '### Assistant:\\n' }}{% endif %}"
    )


def begins(tokenizer: Tokenizer, begin: str) -> str:
    """`begin`, if the tokenizer puts it before a text; else empty."""
    return begin if begin and tokenizer.encode("").ids[:1] == [tokenizer.token_to_id(begin)] else ""

"""Messages, and what a record becomes, for the tests of conversations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from trainer.data.conversations import Chat
from trainer.data.loss_mask import BEGINS, COUNTS, ID

Build = Callable[[str], Chat]
"""Makes a chat of a template."""
Record = dict[str, Any]


def said(*pairs: str) -> list[Record]:
    """Messages from "role: content"."""
    return [{"role": pair.split(": ", 1)[0], "content": pair.split(": ", 1)[1]} for pair in pairs]


def call(name: str = "look", wire: bool = False, **arguments: Any) -> Record:
    return {
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments) if wire else arguments},
    }


def calling(*calls: Record, **more: Any) -> Record:
    return {"role": "assistant", **more, "tool_calls": list(calls)}


WEATHER: Record = {
    "type": "function",
    "function": {"name": "look", "description": "See.", "parameters": {"type": "object", "properties": {}}},
}
SYSTEM, ASKED, RESULT, TOLD = said("system: You are Nemo.", "user: Rain?", "tool: yes", "assistant: It rains.")
WHOLE = [ASKED, calling(call(place="here")), RESULT, TOLD]


def tokens(chat: Chat, record: dict[str, Any]) -> list[np.ndarray]:
    """The conversations that a record becomes."""
    values = np.frombuffer(chat.encode([chat.read(record, lambda: "here")], [lambda: "here"])[0], np.uint32)
    return np.split(values, np.flatnonzero(values & BEGINS)[1:])


def shown(folder: Path, values: np.ndarray) -> str:
    """The text, with the tokens that count in brackets."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    counts = (values & COUNTS) != 0
    text = ""
    for part in np.split(np.arange(len(values)), np.flatnonzero(np.diff(counts)) + 1):
        decoded = tokenizer.decode((values[part] & ID).tolist(), skip_special_tokens=False)
        text += f"⟦{decoded}⟧" if counts[part[0]] else decoded
    return text


def ids(chat: Chat, record: dict[str, Any]) -> list[int]:
    """The ids of a record that becomes one conversation."""
    (found,) = tokens(chat, record)
    return (found & ID).tolist()


def answers(folder: Path, chat: Chat, record: dict[str, Any]) -> list[str]:
    """What is learned of a record, answer by answer."""
    texts = [shown(folder, values) for values in tokens(chat, record)]
    return [part.split("⟧")[0] for text in texts for part in text.split("⟦")[1:]]

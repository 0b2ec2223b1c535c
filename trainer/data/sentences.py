"""Which texts in a record say something that a model could learn: sentences, unlike names, dates, addresses and ids."""

import json
import re
from collections.abc import Iterator
from typing import Any
from unicodedata import category

_ADDRESS = re.compile(r"\w+://\S+")
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_SPACE = re.compile(r"[\s，。、！？；：|]+")
"""Between words: Chinese and Japanese put no space behind their commas, nor do tables in Markdown."""
AROUND = ".,;:!?…()[]{}\"'“”‘’«»。，、！？；：「」।،؟*`"
ENDS = ".!?…。！？।؟"
LOOKED_AT = 300
"""Characters of a text that decide: the beginning of a long one says enough."""
LONG = 6
"""Words of the longest name: more say something in large letters, too."""
UNBROKEN = 10
"""Letters without case in one word that make a sentence: Chinese, Japanese and Thai put no space between words."""


def leaves(value: Any, decoded: bool = True) -> Iterator[str]:
    """The texts in a value, also in lists and in objects; decoded: and in JSON that is text."""
    if isinstance(value, str):
        if decoded and value[:1] in ("{", "["):
            try:
                inside = json.loads(value)
            except (ValueError, RecursionError):
                inside = None
            if isinstance(inside, dict | list):
                yield from leaves(inside)
                return
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from leaves(item, decoded)


def words(text: str) -> list[str]:
    """The words of the beginning of a text: what is made of letters alone, without the marks around it.

    Vowels of many scripts are marks of their letters (Hindi, Tamil), and Persian joins parts of words by a space of no
    width: these are left out.
    """
    bare = "".join(char for char in text[:LOOKED_AT] if category(char) not in ("Mn", "Mc", "Cf"))
    parts = (part.strip(AROUND) for part in _SPACE.split(_ADDRESS.sub(" ", bare)))
    return [part for part in parts if _WORD.fullmatch(part)]


def says(text: str) -> bool:
    """Whether a text is a sentence or more.

    It has three words of which two begin small ("United States of America" is a place), or a mark at its end ("Hm.").
    """
    found = words(text)
    if not found:
        return False
    small = sum(word[0] == word[0].lower() for word in found)
    ended = text.rstrip(" \n\t\"'”’»)*")[-1:] in ENDS and text.rsplit(None, 1)[-1].strip(AROUND).endswith(found[-1])
    return (
        (len(found) > 2 and small > 1)
        or len(found) > LONG
        or (ended and (small > 0 or len(found) == 1))
        or any(len(word) >= UNBROKEN and word.lower() == word.upper() for word in found)
    )


def says_anything(text: str) -> bool:
    """Whether a text has more than white space and characters without a shape (U+200B, a byte order mark)."""
    return any(not char.isspace() and category(char) not in ("Cc", "Cf") for char in text)


def sentences(value: Any) -> list[str]:
    """The texts in a value that say something."""
    return [text for text in leaves(value) if says(text)]

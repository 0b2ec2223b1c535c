"""Paths as people give them, in arguments, files of settings and stack files: `~` and `~user` are home folders.

A $NAME is refused, not expanded: the shell expands it where that is meant, and a file of settings must mean the same
folder to every node and at every resume. Left as it stands, it would make a folder of that name.
"""

import argparse
import os
import re
from pathlib import Path

_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\}?|\([^)]*\)?)")
HUB = "hf:"
"""Begins a source that the library datasets reads: a name on the hub, or a path."""


def expanded(path: str) -> str:
    """The path with its home folder. Raises ValueError for an unknown user and for variables."""
    if os.path.exists(path):  # a folder may be named ~ or $x
        return path
    if path.startswith(HUB):
        return HUB + expanded(path.removeprefix(HUB))
    if found := _VARIABLE.search(path):
        raise ValueError(f"'{path}' has {found[0]}, which is not expanded here; write the folder itself")
    whole = os.path.expanduser(path)
    if path.startswith("~") and whole == path:
        raise ValueError(f"'{path}': there is no user {path[1:].partition('/')[0]} here; write the folder itself")
    return whole


def path_or_name(text: str) -> str:
    """The type of an argument that may be a path, or a name or an address."""
    try:
        return text if "://" in text else expanded(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def folder(text: str) -> Path:
    """The type of an argument that is a path."""
    return Path(path_or_name(text))

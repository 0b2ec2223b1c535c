"""Text of pods, the volume and the hub on its way to a terminal: what would command the terminal is left out.

OSC 52 writes the clipboard, CSI moves the cursor over other lines, bidi controls show text in another order than it has
(ECMA-48; CVE-2021-42574). This module imports only `re`: cli/ and the pods use it alike.
"""

import re

_SEQUENCES = re.compile(
    "(?:\x1b[\\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\n\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\\\)"  # OSC, DCS, SOS, PM, APC
    "|(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI
    "|\x1b[ -/]*[0-~]"
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""C0 but tab and line feed, DEL, C1, line separators and bidi controls."""
_SURROGATES = re.compile("[\ud800-\udfff]")
"""Half characters, which JSON can hold and no terminal's encoding can."""


def plain(text: object) -> str:
    """The text without escape sequences and control characters; tabs and line feeds stay."""
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", _SEQUENCES.sub("", str(text))))


def counted(number: int, one: str, many: str = "") -> str:
    """`1 file`, `2 files`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"

"""List the Python packages of this environment with version and licence: `python -m trainer.notices`.

The image's build writes it to /usr/share/doc/trainer/NOTICES; Debian's packages have theirs in /usr/share/doc.
"""

from __future__ import annotations

import re
from email.message import Message
from importlib.metadata import Distribution, distributions
from pathlib import PurePosixPath
from typing import cast

#: Names of a package's licence and notice files.
_TEXTS = re.compile(r"(licen[cs]e|copying|notice|authors|patents)", re.IGNORECASE)
_CLASSIFIER = "License :: "


def licence(package: Distribution) -> str:
    """The licence in the package's metadata: its SPDX expression if there is one."""
    metadata = cast(Message, package.metadata)
    if expression := metadata.get("License-Expression"):
        return expression
    found = [
        line.rsplit(" :: ", 1)[-1] for line in metadata.get_all("Classifier") or [] if line.startswith(_CLASSIFIER)
    ]
    # Some packages put the whole text of the licence there.
    stated = (metadata.get("License") or "").strip().partition("\n")[0]
    return ", ".join(found) or stated or "see its files"


def texts(package: Distribution) -> list[str]:
    """Paths of the package's licence and notice files, relative to site-packages."""
    files = [PurePosixPath(str(file)) for file in package.files or []]
    return sorted(str(file) for file in files if _TEXTS.match(file.name) and file.suffix not in (".py", ".pyc"))


def notices() -> str:
    """One paragraph a package, sorted by name."""
    packages = {package.name.lower(): package for package in distributions()}
    paragraphs = []
    for _, package in sorted(packages.items()):
        lines = [f"{package.name} {package.version}: {licence(package)}", *(f"  {text}" for text in texts(package))]
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


if __name__ == "__main__":
    print(notices())

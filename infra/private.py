"""`.local/`: state, datasets and runs of a checkout on its machine, closed to the machine's other accounts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from infra.stackfiles import ROOT

MODE = 0o700


def private_folder(folder: Path = ROOT / ".local") -> Path:
    """Make the folder, and give it to the owner of the folder above, who alone may enter; return it.

    Whatever makes `.local/` first comes through here. What lies below needs no modes of its own.

    Raises:
        PermissionError: the folder is open to others, and this process may not close it.
    """
    folder.mkdir(mode=MODE, exist_ok=True)
    owner, found = folder.parent.stat(), folder.stat()
    try:
        if os.geteuid() == 0 and (found.st_uid, found.st_gid) != (owner.st_uid, owner.st_gid):
            os.chown(folder, owner.st_uid, owner.st_gid)
        if found.st_mode & 0o777 != MODE:
            folder.chmod(MODE)
    except PermissionError:
        said = f"open to other accounts of this machine; sudo chown {owner.st_uid} it, and chmod 700"
        raise PermissionError(errno.EPERM, said, str(folder)) from None
    return folder

"""The local registry's only account. Whoever may not read its file, which lies beside the node's keys, neither pushes
the next trainer nor pulls one: other users of this machine reach the registry's address, too.
"""

import base64
import ctypes
import json
import secrets
from pathlib import Path

from local import certs, network, paths

USER = "trainyard"


def file() -> Path:
    """The account as buildah reads it (containers-auth.json), made at first; readable by its owner alone."""
    path = paths.CERTIFICATES / "registry.json"
    try:
        json.loads(path.read_text())["auths"][network.REGISTRY]["auth"]
    except (OSError, ValueError, KeyError, TypeError):
        paths.CERTIFICATES.mkdir(parents=True, exist_ok=True, mode=0o700)
        account = base64.b64encode(f"{USER}:{secrets.token_urlsafe(24)}".encode()).decode()
        certs.write_private(path, json.dumps({"auths": {network.REGISTRY: {"auth": account}}}).encode())
    return path


def authorization() -> str:
    """The header with which containerd pulls and we ask the registry."""
    return f"Basic {json.loads(file().read_text())['auths'][network.REGISTRY]['auth']}"


def htpasswd() -> Path:
    """The account as the registry reads it, which knows bcrypt alone. Made again only for another password."""
    path, password = paths.CERTIFICATES / "registry.htpasswd", authorization()
    library = ctypes.CDLL("libcrypt.so.1")
    library.crypt.restype = ctypes.c_char_p
    clear = base64.b64decode(password.removeprefix("Basic ")).partition(b":")[2]

    def hashed(setting: bytes) -> bytes:
        return library.crypt(clear, setting) or b""

    line = path.read_bytes().strip() if path.exists() else b""
    former = line.partition(b":")[2]
    if not former or hashed(former) != former:
        # The lowest cost: nobody guesses 192 random bits, and each request pays it.
        salt = base64.b64encode(secrets.token_bytes(16), b"./")[:21] + b"e"
        certs.write_private(path, USER.encode() + b":" + hashed(b"$2y$04$" + salt) + b"\n")
    return path

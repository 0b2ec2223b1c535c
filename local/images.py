"""The local image registry and the three images that the node builds itself, so that nothing needs a public registry.

The registry is Debian's docker-registry in the node's network namespace. The host and containerd can reach it.

pause: the sandbox of every pod. etcd: the rendezvous store. base: a minimal Debian with Python, the base image of
trainer/Dockerfile. buildah builds and pushes each image, and again only when its inputs change.
"""

import hashlib
import json
import platform
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from local import api, credentials, network, paths, toolchain
from local.daemons import configure
from local.shell import run

SUITE = "bookworm"
BASE_PACKAGES = ("ca-certificates", "python3", "python3-venv", "rsync", "tini")
BASE_TAR = paths.IMAGES / "base.tar"
CATATONIT = "/usr/bin/catatonit"
# Seconds after which the base image is rebuilt, to get Debian's security updates: 30 days.
BASE_AGE = 30 * 86400

ACCEPT = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"


def registry_has(reference: str) -> bool:
    """Whether the registry has an image, given as HOST:PORT/NAME@DIGEST."""
    name, _, digest = reference.removeprefix(f"{network.REGISTRY}/").partition("@")
    url = f"http://{network.REGISTRY}/v2/{name}/manifests/{digest}"
    headers = {"Accept": ACCEPT, "Authorization": credentials.authorization()}
    try:
        api.open_url(urllib.request.Request(url, headers=headers, method="HEAD"))
    except urllib.error.HTTPError:
        return False
    return True


def buildah_environment() -> dict[str, str]:
    return {
        "CONTAINERS_STORAGE_CONF": str(configure("storage.conf")),
        "CONTAINERS_REGISTRIES_CONF": str(configure("registries.conf")),
        "NO_PROXY": network.NODE_ADDRESS,
        "no_proxy": network.NODE_ADDRESS,
    }


def buildah(*arguments: str, what: str) -> str:
    # Not in buildah_environment, which the user's shell has: there it would hide the accounts of other registries.
    account = {"REGISTRY_AUTH_FILE": str(credentials.file())}
    return run(["buildah", *arguments], what, **buildah_environment(), **account).strip()


def reference(name: str) -> str | None:
    """Return HOST:PORT/NAME@DIGEST of the image that was pushed last, from the note of its build, or None."""
    try:
        return json.loads((paths.IMAGES / f"{name}.json").read_text())["reference"]
    except (OSError, ValueError, KeyError):
        return None


def ensure(name: str, inputs: str, fill: Callable[[Path], Path], entry: list[str] | None = None) -> str:
    """Build and push the image unless the registry has it from the same inputs. Return its reference by digest.

    `fill` may write into the directory it gets. It returns the image's content: a directory, or a tar to unpack.
    """
    note = paths.IMAGES / f"{name}.json"
    found = reference(name)
    if found and json.loads(note.read_text()).get("inputs") == inputs and registry_has(found):
        return found
    from infra.buildah import COMPRESSION
    from infra.image import compression  # imports Pulumi, which takes time that a healthy node does not need

    note.unlink(missing_ok=True)
    paths.IMAGES.mkdir(parents=True, exist_ok=True)
    what = f"make the {name} image"
    container = buildah("from", "scratch", what=what)
    try:
        with tempfile.TemporaryDirectory(dir=paths.IMAGES) as folder:
            buildah("add", "--quiet", container, str(fill(Path(folder))), "/", what=what)
            if entry:
                buildah("config", "--entrypoint", json.dumps(entry), container, what=what)
            buildah("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin", container, what=what)
            image = f"{network.REGISTRY}/{name}"
            # Without timestamps, the same files give the same digest.
            buildah("commit", "--quiet", "--timestamp", "0", container, image, what=what)
            digest_file = Path(folder) / "digest"
            # As the trainer's image: newer versions take a layer that the registry has, in its compression.
            options = [*COMPRESSION[compression("existing")], "--digestfile", str(digest_file)]
            buildah("push", "--quiet", *options, image, what=f"push the {name} image")
            result = f"{image}@{digest_file.read_text().strip()}"
    finally:
        buildah("rm", container, what=what)
    temporary = note.with_suffix(".new")
    temporary.write_text(json.dumps({"reference": result, "inputs": inputs}))
    temporary.replace(note)
    return result


def file_digest(path: str) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def pause() -> str:
    def fill(folder: Path) -> Path:
        shutil.copy2(CATATONIT, folder / "catatonit")
        return folder

    # -P: sleep forever and reap children, as a pause container must.
    return ensure("pause", file_digest(CATATONIT), fill, ["/catatonit", "-P"])


def etcd() -> str:
    def fill(folder: Path) -> Path:
        # The upstream image has etcd at the same path, so one pod specification works with both.
        run(["install", "-D", toolchain.program("etcd"), str(folder / "usr/local/bin/etcd")], "copy etcd")
        return folder

    return ensure("etcd", f"{toolchain.home(toolchain.BY_NAME['etcd']).name} in /usr/local/bin", fill, ["etcd"])


def base_inputs() -> str:
    return f"{SUITE} {' '.join(BASE_PACKAGES)}"


def base_tar_is_current(any_age: bool = False) -> bool:
    """Whether the base image's tar is complete, has today's packages and is young enough."""
    note = BASE_TAR.with_suffix(".inputs")
    try:
        made = BASE_TAR.stat().st_mtime
        return note.read_text() == base_inputs() and (any_age or made > time.time() - BASE_AGE)
    except OSError:
        return False


def make_base_tar() -> None:
    """Install the base image's packages into a tar. This is the slow half (20 s), and it needs no registry."""
    if base_tar_is_current():
        return
    paths.IMAGES.mkdir(parents=True, exist_ok=True)
    partial = BASE_TAR.with_suffix(".partial.tar")
    partial.unlink(missing_ok=True)
    options = [
        "--variant=minbase",
        f"--include={','.join(BASE_PACKAGES)}",
        # Documentation and translations: 60 MB that a container does not read. Licences stay.
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    ]
    # In a mount namespace of its own, because Debian 13's makes all mounts of the one that it runs in private.
    command = ["unshare", "--mount", "mmdebstrap", *options, SUITE, str(partial), *own_sources()]
    run(command, "install the base image's Debian packages")
    partial.replace(BASE_TAR)
    BASE_TAR.with_suffix(".inputs").write_text(base_inputs())


def own_sources() -> list[str]:
    """Return the host's package sources if it runs the same Debian: they are reachable. Else none: the defaults."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return []
    if (release["ID"], release.get("VERSION_CODENAME")) != ("debian", SUITE):
        return []
    for path in map(Path, ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list")):
        if path.exists() and any(line.startswith(("deb ", "URIs:")) for line in path.read_text().splitlines()):
            return [str(path)]
    return []


def base() -> str:
    return ensure("base", f"{base_inputs()} {int(BASE_TAR.stat().st_mtime)}", lambda _: BASE_TAR)

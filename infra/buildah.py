"""Builds and pushes an image with buildah, as a Pulumi dynamic provider: for machines without a Docker engine.

The provider's methods run in a process of Pulumi's own, which finds this module by name because it starts in the
project's folder; nothing but plain values crosses over.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

from infra.private import private_folder
from infra.stackfiles import ROOT

#: Folder of this checkout with the digests that its pushes had, one file a target.
PUSHED = ".local/pushed"
#: A corporate proxy's certificate authority, trusted by this machine, is trusted in the build as well.
CERTIFICATES = "/etc/ssl/certs"
#: zstd takes half the time of gzip, and 10 % less space, for torch's libraries (1.97 GB: 28 s, gzip 50 s; 2 cores,
#: buildah 1.28, 2026-11-21).
COMPRESSION = {"zstd": ("--compression-format", "zstd", "--compression-level", "3"), "gzip": ()}
#: Open files and processes of a build, at most: the least that pid_max is by default, below which buildah 1.28 stays.
LIMIT = 32768
#: Lines of the build's output that a failure shows.
SHOWN_LINES = 15
#: What the installers of packages say of their progress (uv, apt): other lines of a build stand for nothing.
PROGRESS = re.compile(
    r"\s*(Resolved|Downloading|Downloaded|Building|Built|Prepared|Installed|Unpacking|Get:\d+) .{,60}"
)
#: Seconds between two signs of life: each is a line where Pulumi writes to a log.
HEARTBEAT = 15.0
#: Both formats of an image's manifest, so that the registry answers with the one that was pushed.
MANIFEST_TYPES = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"


#: Runs a command of which the second argument says what it does.
Run = Callable[[list[str], str], None]


class BuildahImage(Resource, module="trainyard", name="BuildahImage"):
    """An image that buildah builds from a Dockerfile in `context`, a folder of the project, and pushes to `target`
    (registry/name:tag).

    The tag names the content. It is for people: whoever may push can move it, so an image is the one of our own push.
    """

    reference: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        target: pulumi.Input[str],
        context: str,
        dockerfile: str,
        build_args: dict[str, str],
        insecure: bool,
        compression: str,
        authfile: str | None,
        opts: pulumi.ResourceOptions,
    ):
        inputs = {"target": target, "context": context, "dockerfile": dockerfile, "buildArgs": build_args}
        inputs |= {"authfile": authfile} if authfile else {}
        super().__init__(
            BuildahProvider(),
            name,
            {**inputs, "insecure": insecure, "compression": compression, "reference": None},
            opts,
        )


class BuildahProvider(ResourceProvider):
    def create(self, props: dict[str, Any]) -> CreateResult:
        reference = _ensure(props)
        return CreateResult(id_=reference, outs={**props, "reference": reference})

    def update(self, _id: str, _olds: dict[str, Any], props: dict[str, Any]) -> UpdateResult:
        return UpdateResult(outs={**props, "reference": _ensure(props)})

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        return DiffResult(changes=any(olds.get(key) != news.get(key) for key in ("target", "dockerfile", "buildArgs")))

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        there = registry_has(props["reference"], props["insecure"], props.get("authfile"))
        return ReadResult(id_=id_, outs=props) if there else ReadResult(id_="", outs={})

    # No delete: the image stays in the registry, as a cache for the next `pulumi up`; who owns the registry removes it.


def _ensure(props: dict[str, Any]) -> str:
    # Pulumi prints the traceback of whatever a dynamic provider raises; with this, the message alone.
    sys.tracebacklimit = 0
    return f"{props['target'].rsplit(':', 1)[0]}@{publish(props)}"


def publish(image: Mapping[str, Any], run: Run | None = None) -> str:
    """Build and push an image, a BuildahImage's properties, unless an own push did; return its digest.

    Raises:
        RuntimeError: with the last lines of the output, or without buildah.
    """
    target, context, insecure, authfile = image["target"], image["context"], image["insecure"], image.get("authfile")
    if digest := pushed(target, insecure, authfile):
        return digest
    if not shutil.which("buildah"):
        raise RuntimeError("buildah is not installed; install it, or set image.builder to buildkit or prebuilt")
    with _alone(context):
        if digest := pushed(target, insecure, authfile):
            return digest
        build(target, context, image["dockerfile"], image["buildArgs"], insecure, run, authfile)
        digest = push(target, image["compression"], insecure, run, authfile)
        note = _note(target)
        private_folder(ROOT / ".local")
        note.parent.mkdir(exist_ok=True)
        note.write_text(json.dumps({"target": target, "digest": digest}))
        return digest


def _note(target: str) -> Path:
    return ROOT / PUSHED / f"{hashlib.sha256(target.encode()).hexdigest()[:16]}.json"


def pushed(target: str, insecure: bool, authfile: str | None = None) -> str | None:
    """Digest of this checkout's own push to `target`, if its registry still has that very manifest.

    The registry is not asked what it has under the tag: that answer is whoever's pushed last.
    """
    try:
        noted = json.loads(_note(target).read_text())
        digest = str(noted["digest"]) if noted["target"] == target else ""
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return digest if digest and registry_has(f"{target.rsplit(':', 1)[0]}@{digest}", insecure, authfile) else None


@contextlib.contextmanager
def _alone(context: str) -> Iterator[None]:
    """While nobody else builds from this folder: stacks that come up at once would each install the same gigabytes."""
    import fcntl  # where there is buildah

    folder = os.open(context, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _tell("image: another pulumi up builds it")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def build(
    target: str,
    context: str,
    dockerfile: str,
    build_args: dict[str, str],
    insecure: bool,
    run: Run | None = None,
    authfile: str | None = None,
) -> None:
    """Build `dockerfile`, a path in the folder `context`, under the name `target`.

    Raises:
        RuntimeError: with the last lines of the build's output.
    """
    import resource  # where there is buildah

    # chroot isolation, the host's network and limits that are not raised need no more privileges than a container build
    # inside a container has. By itself, buildah 1.39 asks for a million files and processes.
    command = ["buildah", "build", "--isolation", "chroot", "--network", "host", "--layers"]
    for name in ("nofile", "nproc"):
        hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
        limit = LIMIT if hard == resource.RLIM_INFINITY else min(LIMIT, hard)
        command.append(f"--ulimit={name}={limit}:{limit}")
    command += [*_access(insecure, authfile), "--file", f"{context}/{dockerfile}", "--tag", target]
    if os.path.isdir(CERTIFICATES):
        command += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
    for key, value in sorted(build_args.items()):
        command += ["--build-arg", f"{key}={value}"]
    (run or run_and_show)([*command, context], "image: step")


def push(target: str, compression: str, insecure: bool, run: Run | None = None, authfile: str | None = None) -> str:
    """Push `target` and return the digest of its manifest in the registry."""
    with tempfile.TemporaryDirectory() as folder:
        digest_file = Path(folder) / "digest"
        command = ["buildah", "push", *COMPRESSION[compression], *_access(insecure, authfile)]
        command += ["--digestfile", str(digest_file), target, f"docker://{target}"]
        (run or run_and_show)(command, "image: push")
        return digest_file.read_text().strip()


def opener(insecure: bool) -> urllib.request.OpenerDirector:
    """For a registry; one of this machine is never behind the proxy that the internet is behind."""
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if insecure else []))


def registry_has(reference: str, insecure: bool, authfile: str | None = None) -> bool:
    """Whether a registry has the manifest of name@digest; not where it does not answer, which the push will tell.

    One that tells strangers nothing is taken at the word of our own note, or of the stack's state.
    """
    address, path = reference.split("/", 1)
    url = f"{'http' if insecure else 'https'}://{address}/v2/{path.replace('@', '/manifests/')}"
    headers = {"Accept": MANIFEST_TYPES}
    try:
        if authfile:
            headers["Authorization"] = basic(authfile, address)
        with opener(insecure).open(urllib.request.Request(url, method="HEAD", headers=headers), timeout=10):
            return True
    except urllib.error.HTTPError as refusal:
        return refusal.code in (401, 403)
    except (OSError, ValueError, KeyError):
        return False


def basic(authfile: str, address: str) -> str:
    """The header with a registry's account from a file in Docker's format. Raises OSError, ValueError and KeyError."""
    return f"Basic {json.loads(Path(authfile).read_text())['auths'][address]['auth']}"


def _access(insecure: bool, authfile: str | None) -> list[str]:
    return [f"--tls-verify={'false' if insecure else 'true'}", *(["--authfile", authfile] if authfile else [])]


def run_and_show(
    command: list[str],
    what: str,
    tell: Callable[[str], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command and tell every HEARTBEAT seconds how far it is.

    environment: in what it differs from this process's.
    """
    tell = tell or _tell
    tail: deque[str] = deque([""], maxlen=SHOWN_LINES)
    began, ended, step, progress = time.monotonic(), threading.Event(), "", ""

    def beat() -> None:
        while not ended.wait(HEARTBEAT):
            tell(f"{what}{step}, {time.monotonic() - began:.0f} s{progress and f', {progress}'}")

    whole = {**os.environ, **(environment or {})}
    # Where Pulumi is killed, a build does not go on for minutes without it.
    tied = ["setpriv", "--pdeathsig", "TERM", *command] if shutil.which("setpriv") else command
    # A stricter umask of the user would be that of the files in the image, which pods then could not read.
    with subprocess.Popen(
        tied, env=whole, umask=0o022, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        threading.Thread(target=beat, daemon=True).start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                tail.append(line.rstrip())
                if found := PROGRESS.match(line):
                    progress = found[0].strip()
                if line.startswith("STEP "):  # STEP 3/16: RUN ...
                    progress = ""
                    step = " " + line.split()[1].rstrip(":").replace("/", " of ")
        finally:
            ended.set()
    if process.returncode:
        raise RuntimeError("\n".join([f"{' '.join(command[:2])} failed with exit code {process.returncode}:", *tail]))


def _tell(message: str) -> None:
    """Show a line until the next one; what a provider prints on standard error, Pulumi repeats when all is done."""
    if len(sys.argv) < 2:  # the engine's address, in the provider's process
        print(message, file=sys.stderr, flush=True)
        return
    with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(sys.argv[1]) as channel:
        request = engine_pb2.LogRequest(severity=engine_pb2.INFO, message=message, ephemeral=True)
        engine_pb2_grpc.EngineStub(channel).Log(request, timeout=5)

"""Which build of torch enters the trainer's image, with the real uv and an index on this machine."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from infra.stackfiles import ROOT

VERSION = "2.15.0"
NVIDIA = {"nvidia-cublas": "13.4.1", "nvidia-cuda-runtime": "13.2.86", "cuda-toolkit": "13.2.2"}
LOCKED = {"torch": VERSION, "triton": "3.9.0", **NVIDIA, "tqdm": "4.70.1"}
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="needs a compiler: apt-get install g++")
#: A device's library: one function that torch's library names, and 100 kB that only a device runs; and the runtime's.
DEVICE = """char kernels[100000] = {1}; extern "C" int multiply(int a) { return a + kernels[a]; }"""
RUNTIME = """extern "C" int devices() { return 42; }"""
HOST = """extern "C" int multiply(int), devices(); int (*used)(int) = multiply;
extern "C" int answer() { return devices(); } extern "C" int product() { return used(1); }"""


def wheel(folder: Path, name: str, version: str, files: dict[str, bytes] | None = None) -> str:
    """Write a wheel of `files`; return its line in a lock."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    content = files or {f"{module}/__init__.py": f"__version__ = '{version}'\n".encode()}
    content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    content[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for path, data in content.items()
    ]
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]).encode()
    file = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}\n"


class Index(BaseHTTPRequestHandler):
    """A package index, and a proxy behind which every host is this index: uv asks torch's own under its own name."""

    folder: Path
    authority: tuple[Path, ec.EllipticCurvePrivateKey, x509.Certificate]
    hosts: list[str]
    protocol_version = "HTTP/1.1"

    def do_CONNECT(self) -> None:
        host = self.path.rpartition(":")[0]
        self.hosts.append(host)
        self.send_response(200)
        self.end_headers()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate(host, *self.authority))
        self.connection = context.wrap_socket(self.connection, server_side=True)
        # pyrefly: ignore[bad-assignment]
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", buffering=0)
        self.close_connection = False

    def do_GET(self) -> None:
        kind = "cpu" if "/cpu/" in self.path else "all"
        name = self.path.rstrip("/").rpartition("/")[2].partition("#")[0].replace("%2B", "+")
        there = self.folder / kind
        if (there / name).is_file():
            self.answer((there / name).read_bytes(), "application/zip")
            return
        found = sorted(there.glob(f"{name.replace('-', '_')}-*.whl"))
        links = "".join(f'<a href="/{kind}/{file.name}">{file.name}</a>' for file in found)
        self.answer(links.encode(), "text/html", 200 if found else 404)

    def answer(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:  # pyrefly: ignore[bad-override]
        pass


def certificate(host: str, folder: Path, key: ec.EllipticCurvePrivateKey, authority: x509.Certificate | None) -> Path:
    """A PEM file with the key and a certificate for `host`; without an authority, one that signs itself."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(authority.subject if authority else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{host}.pem"
    private = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(key.private_bytes(*private) + made.public_bytes(serialization.Encoding.PEM))
    return file


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """requirements/install.py, with a lock of stand-ins and a check that they pass."""
    spec = importlib.util.spec_from_file_location("install", ROOT / "requirements" / "install.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "all").mkdir()
    (tmp_path / "cpu").mkdir()
    lines = [wheel(tmp_path / "all", name, version) for name, version in LOCKED.items()]
    (tmp_path / "trainer.txt").write_text("# a comment\n" + "".join(lines))
    (tmp_path / "torch-cpu.txt").write_text((ROOT / "requirements" / "torch-cpu.txt").read_text())
    wheel(tmp_path / "cpu", "torch", f"{VERSION}+cpu")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(module, "CHECK", "import torch, tqdm")
    return module


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Index]]:
    key = ec.generate_private_key(ec.SECP256R1())
    trusted = certificate("authority", tmp_path, key, None)
    monkeypatch.setattr(Index, "folder", tmp_path, raising=False)
    monkeypatch.setattr(Index, "hosts", [], raising=False)
    signer = x509.load_pem_x509_certificate(trusted.read_bytes())
    monkeypatch.setattr(Index, "authority", (tmp_path, key, signer), raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    settings = {"UV_DEFAULT_INDEX": f"{address}/simple", "HTTPS_PROXY": address, "NO_PROXY": "127.0.0.1"}
    settings |= {"SSL_CERT_FILE": str(trusted), "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_NO_CONFIG": "1"}
    settings |= {"UV_HTTP_RETRIES": "0", "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    for name in ("SSL_CERT_DIR", "https_proxy", "UV_FIND_LINKS", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    yield Index
    server.shutdown()
    server.server_close()


@pytest.fixture
def python(tmp_path: Path) -> str:
    subprocess.run(
        [sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, tmp_path / "venv"], check=True
    )
    return str(tmp_path / "venv/bin/python")


def installed(python: str) -> dict[str, str]:
    site = next(Path(python).parent.parent.glob("lib/*/site-packages"))
    named = (info.stem.rsplit("-", 1) for info in site.glob("*.dist-info"))
    return {name.replace("_", "-"): version for name, version in named}


def test_torchs_own_build_for_processors_is_taken_where_its_index_answers_and_is_no_image_unless_it_trains(
    install: ModuleType, index: type[Index], python: str, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    install.main("cpu", python)
    assert installed(python) == {"torch": f"{VERSION}+cpu", "tqdm": LOCKED["tqdm"]}
    assert len(set(index.hosts)) == 1, "one host beside the index of the lock"
    assert "is not checked against hashes" in capfd.readouterr().out
    monkeypatch.setattr(install, "CHECK", "raise SystemExit(1)")
    with pytest.raises(subprocess.CalledProcessError):
        install.main("cpu", python)


@needs_compiler
def test_without_that_index_the_locks_torch_is_made_smaller(
    install: ModuleType, index: type[Index], python: str, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{closed.getsockname()[1]}")
        install.main("cpu", python)
    assert installed(python) == {name: LOCKED[name] for name in ("torch", "nvidia-cuda-runtime", "tqdm")}
    assert "torch's index for processors does not give this version" in capfd.readouterr().out


def test_for_accelerators_the_lock_is_installed_whole_and_no_other_index_is_asked(
    install: ModuleType, index: type[Index], python: str
) -> None:
    install.main("cuda", python)
    assert installed(python) == LOCKED
    assert not index.hosts


def test_without_a_compiler_cudas_libraries_stay(
    install: ModuleType, index: type[Index], python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    shutil.rmtree(tmp_path / "cpu")
    monkeypatch.setattr(install, "TOOLS", ("g++-of-another-machine", "sh"))
    install.main("cpu", python)
    assert installed(python) == {name: version for name, version in LOCKED.items() if name != "triton"}
    assert "no g++-of-another-machine here: CUDA's libraries stay" in capfd.readouterr().out


def test_another_build_is_refused_by_its_name(install: ModuleType) -> None:
    with pytest.raises(SystemExit, match="TORCH: 'rocm' is no build of torch; allowed: cpu, cuda"):
        install.main("rocm", "python")


def test_the_build_for_processors_is_of_the_locks_version() -> None:
    texts = [(ROOT / "requirements" / f"{name}.txt").read_text() for name in ("trainer", "torch-cpu")]
    locked, own = (re.findall(r"^torch==([\d.]+)", text, re.MULTILINE) for text in texts)
    assert locked == own != []


@needs_compiler
@pytest.mark.parametrize("versioned", [True, False])
def test_torchs_library_loads_without_the_devices(
    install: ModuleType, index: type[Index], python: str, tmp_path: Path, versioned: bool
) -> None:
    """The dynamic linker finds each name and version that torch's library asks of one of NVIDIA's."""
    site = next((tmp_path / "venv").glob("lib/*/site-packages"))
    (site / "torch/lib").mkdir(parents=True)
    (site / "nvidia/cu13/lib").mkdir(parents=True)
    (tmp_path / "map").write_text("BLAS_1 { global: multiply; local: *; };\n")
    named = [f"-Wl,--version-script={tmp_path}/map"] if versioned else []
    device = build(DEVICE, tmp_path / "libcublas.so.1", "-Wl,-soname=libcublas.so.1", *named)
    runtime = build(RUNTIME, site / "nvidia/cu13/lib/libcudart.so.1", "-Wl,-soname=libcudart.so.1")
    paths = "-Wl,-rpath,$ORIGIN/../../nvidia/cu13/lib:$ORIGIN"
    unused = build(RUNTIME, tmp_path / "libcufft.so.1", "-Wl,-soname=libcufft.so.1")
    host = build(HOST, site / "torch/lib/libtorch_cuda.so", "-Wl,--no-as-needed", device, runtime, unused, paths)
    before = runtime.read_bytes()
    assert b"libcublas.so.1: cannot open" in call(host, "answer").stderr
    install.shrink(python)
    assert call(host, "answer").stdout == b"42\n"
    assert call(host, "product").returncode < 0, "a function of the device ends the process"
    assert runtime.read_bytes() == before
    files = {file.name for file in host.parent.iterdir()}
    assert files == {"libcublas.so.1", "libcufft.so.1", "libtorch_cuda.so"}
    assert (host.parent / "libcublas.so.1").stat().st_size < device.stat().st_size - 80_000


def call(library: Path, function: str) -> subprocess.CompletedProcess[bytes]:
    """Call a function in a process of its own: a second library of a name is that of the first."""
    program = f"import ctypes; print(ctypes.CDLL({str(library)!r}).{function}())"
    return subprocess.run([sys.executable, "-c", program], capture_output=True)


def build(source: str, target: Path, *options: str | Path) -> Path:
    command = ["g++", "-x", "c++", "-", "-x", "none", "-shared", "-fPIC", *options, "-o", target]
    subprocess.run(command, check=True, input=source, text=True)
    return target

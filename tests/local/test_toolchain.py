"""The key of a build, and what a failed or killed build leaves behind."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import uuid
from importlib import metadata
from pathlib import Path

import pytest

from faults.fault import until
from local import paths, toolchain
from local.shell import LocalError

GO = toolchain.go_on_path()
needs_go = pytest.mark.skipif(GO is None, reason="no Go on PATH")

GO_MOD = "module trainyard/local/hello\n\ngo 1.21\n\nrequire example.invalid/hello v1.2.3\n"
# Builds for ever; the count of packages comes at once.
FAKE_GO = """#!/bin/sh
[ "$1" = list ] && exit
while [ $# -gt 1 ]; do [ "$1" = -o ] && echo half > "$2"; shift; done
exec sleep 60
"""
HELLO = 'package main\n\nvar version = "none"\n\nfunc main() { println(version) }\n'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Reuse what Go compiled before.
    monkeypatch.setenv("GOCACHE", os.environ.get("GOCACHE") or str(toolchain.go_caches() / "build"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "trainyard"


@pytest.fixture
def hello(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> toolchain.Tool:
    """A tool whose program is the standard library and one file, so that it builds in a second without a network."""
    folder = tmp_path / "gomod" / "hello"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text(GO_MOD.replace("require", "// require"))
    (folder / "go.sum").write_text("")
    (folder / "main.go").write_text(HELLO)
    monkeypatch.setattr(toolchain, "GOMOD", tmp_path / "gomod")
    monkeypatch.setattr(toolchain, "version", lambda tool: "1.2.3")
    return toolchain.Tool("hello", "example.invalid/hello", {"hello": "."}, ("main.version",))


def test_every_tool_has_a_version_and_pinned_sums() -> None:
    for tool in toolchain.TOOLS:
        assert toolchain.version(tool)[0].isdigit()
        assert (toolchain.GOMOD / tool.name / "go.sum").stat().st_size > 0


@pytest.mark.parametrize("name", ["kubernetes", "kubernetes-1.37"])
def test_the_staging_modules_have_the_version_of_kubernetes(name: str) -> None:
    """k8s.io/kubernetes v1.N.M goes with k8s.io/* v0.N.M: a half-done upgrade would compile and then misbehave."""
    wanted = "v0." + toolchain.version(toolchain.BY_NAME[name]).removeprefix("1.")
    text = (toolchain.GOMOD / name / "go.mod").read_text()
    replaced = [line.split()[-1] for line in text.splitlines() if "=> k8s.io/" in line]
    assert len(replaced) > 20
    assert set(replaced) == {wanted}


#: What must differ: Pulumi's three programs have three versions, and pulumi replaces two modules by forks.
OWN = ("github.com/pulumi/", "github.com/sergi/go-diff", "github.com/atotto/clipboard")


def test_the_compilers_cache_serves_all_that_share_a_module() -> None:
    """Another version of a module is compiled again, and with it all that imports it: half of Kubernetes."""
    found: dict[str, dict[str, str]] = {}
    for tool in toolchain.TOOLS:
        if tool.name == "kubernetes-1.37":
            continue
        text = (toolchain.GOMOD / tool.name / "go.mod").read_text().partition("\nreplace")[0]
        for module, version in re.findall(r"^(?:require )?\s*(\S+\.\S+) (v\S+)", text, re.MULTILINE):
            found.setdefault(module, {})[tool.name] = version
    assert len([module for module, versions in found.items() if len(versions) > 1]) > 30
    differ = {module: versions for module, versions in found.items() if len({*versions.values()}) > 1}
    assert {module: versions for module, versions in differ.items() if not module.startswith(OWN)} == {}


def test_the_plugin_is_of_the_version_that_the_program_asks_for() -> None:
    """The engine takes no other, and the module's own version is a date: the linker writes the number."""
    plugin = toolchain.BY_NAME[toolchain.PLUGIN]
    wanted = metadata.version("pulumi-kubernetes")
    assert toolchain.version(plugin) == wanted
    assert toolchain.link_flags(plugin).endswith(f"/version.Version=v{wanted}")


def test_the_key_follows_the_sums_and_the_flags_and_nothing_else(hello: toolchain.Tool) -> None:
    first = toolchain.key(hello)
    assert toolchain.key(hello) == first
    (toolchain.GOMOD / "hello" / "go.sum").write_text("another v1 h1:x\n")
    second = toolchain.key(hello)
    assert second != first
    other = toolchain.Tool("hello", hello.module, hello.programs, ("main.other",))
    assert toolchain.key(other) != second


def test_an_error_of_the_compiler_is_told_though_packages_are_named_after_it(tmp_path: Path) -> None:
    script = "echo a/b >&2; echo '# a/b' >&2; echo 'c/x.go:3:2: undefined: y' >&2; echo d/e >&2; exit 1"
    with pytest.raises(LocalError, match=r"failed in local/gomod/.*: c/x\.go:3:2: undefined: y$"):
        toolchain.go_run(["sh", "-c", script], tmp_path)


@needs_go
def test_a_build_is_made_once_and_says_its_version(hello: toolchain.Tool) -> None:
    main = toolchain.GOMOD / "hello" / "main.go"
    main.write_text(f"{HELLO}// {uuid.uuid4()}\n")  # so that no cache of Go has it
    told: list[tuple[int, int]] = []
    assert toolchain.build(hello, lambda count, total: told.append((count, total)))
    # The program's own package is compiled; those of the standard library may be cached.
    assert 1 <= told[-1][0] <= told[-1][1]
    assert told[-1][1] > 10
    program = toolchain.bin_directory(hello) / "hello"
    said = subprocess.run([program], capture_output=True, text=True, check=True).stderr
    assert said.strip() == "v1.2.3"
    assert not toolchain.build(hello)


def test_go_s_caches_are_given_back_unless_somebody_builds(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOCACHE")
    monkeypatch.setenv("GOMODCACHE", "/of/the/caller")
    environment = toolchain.go_environment()
    assert all(Path(environment[name]).is_relative_to(toolchain.go_caches()) for name in ("GOCACHE", "GOTMPDIR"))
    assert environment["GOMODCACHE"] == "/of/the/caller"
    built = cache / "etcd-1-abc" / "bin"
    for folder in (toolchain.go_caches() / "build", built):
        folder.mkdir(parents=True)
    with toolchain.lock("go", fcntl.LOCK_SH):
        assert not toolchain.remove_go_caches()
    assert toolchain.go_caches().exists()
    assert toolchain.remove_go_caches()
    assert not toolchain.go_caches().exists()
    assert built.exists()
    assert toolchain.remove_go_caches()


@needs_go
def test_a_build_that_fails_leaves_nothing_and_says_go_s_last_line(hello: toolchain.Tool, cache: Path) -> None:
    (toolchain.GOMOD / "hello" / "main.go").write_text("package main\n\nfunc main() { undefined() }\n")
    with pytest.raises(LocalError, match=r"undefined: undefined$"):
        toolchain.build(hello)
    assert not toolchain.is_built(hello)
    assert list(cache.glob("hello-*")) == []


def test_a_killed_build_leaves_nothing_that_counts_and_the_next_removes_it(
    hello: toolchain.Tool, cache: Path, tmp_path: Path
) -> None:
    """A process is killed while its `go build` writes; go is a shell script here that never ends."""
    script = f"""
import sys
sys.path.insert(0, {str(paths.ROOT)!r})
from pathlib import Path
from local import toolchain
fake = Path({str(tmp_path)!r}) / "go"
fake.write_text({FAKE_GO!r})
fake.chmod(0o755)
toolchain.find_go = lambda: str(fake)
toolchain.GOMOD = Path({str(toolchain.GOMOD)!r})
toolchain.version = lambda tool: "1.2.3"
toolchain.build(toolchain.Tool("hello", "example.invalid/hello", {{"hello": "."}}, ("main.version",)))
"""
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    until(lambda: list(cache.glob("*.building/bin/hello")), 20, "the build writes")
    process.kill()
    process.wait()
    assert not toolchain.is_built(hello)
    if GO:
        assert toolchain.build(hello)
        assert list(cache.glob("*.building")) == []


@needs_go
def test_a_build_that_cannot_download_asks_for_the_proxy(
    hello: toolchain.Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"GOPROXY": "http://127.0.0.1:9", "GOMODCACHE": f"{tmp_path}/modules", "GONOSUMDB": "*"}.items():
        monkeypatch.setenv(name, value)
    folder = toolchain.GOMOD / "hello"
    (folder / "go.mod").write_text(GO_MOD)
    (folder / "go.sum").write_text("example.invalid/hello v1.2.3 h1:x=\nexample.invalid/hello v1.2.3/go.mod h1:x=\n")
    (folder / "main.go").write_text(HELLO.replace("main\n", 'main\n\nimport _ "example.invalid/hello"\n', 1))
    with pytest.raises(LocalError, match=r"refused.*is the Go module proxy reachable"):
        toolchain.build(hello)

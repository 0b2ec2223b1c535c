"""The image of the adapters' device plugin, whose digest its registry alone tells."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pulumi
import pytest

from infra import buildah
from infra.buildah import registry_digest
from infra.config import ConfigError
from infra.eks import lookups
from infra.parse import parse
from tests.infra.eks import STACK, pod, stack
from tests.infra.recorded import changed

EFA = {"machineType": "g4dn.8xlarge", "alternatives": [], "efa": True}
MINE = f"registry.example/efa@sha256:{'a' * 64}"
DIGEST = f"sha256:{'b' * 64}"


def test_the_plugin_runs_by_digest_the_stacks_or_the_registrys() -> None:
    def image(**eks: str) -> str:
        found = stack(nodes=EFA, eks=eks)
        return pod(found, "DaemonSet", "efa-device-plugin")["containers"][0]["image"]

    assert image().startswith(f"{lookups.EFA_PLUGIN}@sha256:")
    assert image(efaPlugin=MINE) == MINE


@pytest.mark.parametrize("given", ["registry.example/efa:v1", "registry.example/efa@sha256:abc"])
def test_an_image_without_a_digest_is_refused(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(changed(STACK, nodes=EFA, eks={"efaPlugin": given}), STACK)
    assert [line.partition(":")[0] for line in caught.value.lines] == ["eks.efaPlugin"]


def test_without_an_answer_a_preview_goes_on_and_up_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    monkeypatch.setattr(buildah, "registry_digest", lambda *_, **__: None)
    config = parse(changed(STACK, nodes=EFA), STACK)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: True)
    assert lookups.efa_plugin(config, STACK) == lookups.EFA_PLUGIN
    assert "`pulumi up` would refuse" in warned[0]
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    with pytest.raises(ConfigError) as caught:
        lookups.efa_plugin(config, STACK)
    (line,) = caught.value.lines
    assert line.startswith("eks.efaPlugin: public.ecr.aws does not say which image")
    assert line.endswith("try again, or give NAME@sha256:DIGEST")
    assert lookups.efa_plugin(parse(changed(STACK), STACK), STACK) is None, "no adapters, no question"


class Registry(BaseHTTPRequestHandler):
    """Gives everybody a token, as public.ecr.aws does, and wants it; `/v2/closed` wants another."""

    def log_message(self, *_: object) -> None:  # pyrefly: ignore[bad-override]
        """Say nothing."""

    def do_GET(self) -> None:
        query = self.path.partition("?")[2]
        assert query == "service=here&scope=aws"
        body = json.dumps({"token": "for-all"}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        wanted = "theirs" if "closed" in self.path else "for-all"
        if self.headers["Authorization"] != f"Bearer {wanted}":
            self.send_response(401)
            address = f"http://{self.headers['Host']}/token/"
            self.send_header("WWW-Authenticate", f'Bearer realm="{address}",service="here",scope="aws"')
        else:
            assert "application/vnd.oci.image.index.v1+json" in self.headers["Accept"], "it is for two architectures"
            self.send_response(200 if self.path == "/v2/eks/plugin/manifests/v1" else 404)
            self.send_header("Docker-Content-Digest", DIGEST)
        self.end_headers()


@pytest.fixture
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("image", "digest"), [("eks/plugin:v1", DIGEST), ("eks/plugin:v2", None), ("closed:v1", None)])
def test_a_registry_is_asked_with_the_token_that_it_gives_to_everybody(
    registry: str, image: str, digest: str | None
) -> None:
    assert registry_digest(f"{registry}/{image}", insecure=True) == digest


def test_a_registry_that_is_not_there_has_no_answer() -> None:
    assert registry_digest("127.0.0.1:9/eks/plugin:v1", insecure=True) is None

"""A token of the configuration reaches its Kubernetes Secret, and nothing else that a program writes down.

On the real engine: tests/e2e/test_secrets_canary.py. In what the trainer writes: tests/trainer/test_secrets_canary.py.
"""

from __future__ import annotations

import base64
import json
import re

import pytest

from infra.image import RECIPES, ROOT, Recipe, content_hash, context_files, stage
from review.recording import Recording, record
from review.snapshot import snapshot
from tests.infra.recorded import changed

CANARIES = {"huggingFaceToken": "hf_canaryCanaryCANARYcanary", "wandbApiKey": "0123canary4567canary89abcanary"}
LOGIN = "canary:ghp_canaryCanaryCANARYcanary"
#: As Kubernetes and URLs would write them, too.
FORMS = [form for text in (*CANARIES.values(), LOGIN) for form in (text, base64.b64encode(text.encode()).decode())]


def leaks(text: str) -> list[str]:
    return [form for form in FORMS if form in text]


@pytest.fixture(params=["local", "gcp-c3", "aws-smoke"])
def with_tokens(request: pytest.FixtureRequest, local_kubeconfig: object) -> Recording:
    return record(request.param, changed(request.param, secrets={**CANARIES, "imagePull": LOGIN}))


def test_the_tokens_are_in_their_secrets_marked_as_such_and_nowhere_else(with_tokens: Recording) -> None:
    for item in with_tokens.resources:
        text = json.dumps(item.inputs)
        if item.kind == "Secret" and item.name in ("tokens", "image-pull"):
            assert leaks(text), "the pods would miss them"
            values = item.inputs["stringData"]
            marked = [values] if "value" in values else list(values.values())
            # Pulumi's mark of a secret (sdk/go/common/resource/sig.go): encrypted in the state.
            assert all(value["4dabf18193072939515e22adb298388d"].startswith("1b47061264138c4a") for value in marked)
        else:
            assert not leaks(text), f"{item.type} {item.name}"
    assert not leaks(json.dumps(with_tokens.outputs))
    secret = with_tokens.one("Secret", "tokens").inputs
    jobs = [item for item in with_tokens.resources if item.kind == "Job" and item.name.startswith("dataset")]
    spec = jobs[0].inputs["spec"]["template"]["spec"]
    makes_folders, *fetching = spec["initContainers"]
    assert "secretKeyRef" not in json.dumps(makes_folders)
    for container in [*fetching, *spec["containers"]]:
        reference = {"secretKeyRef": {"name": "tokens", "key": "HF_TOKEN"}}
        assert {"name": "HF_TOKEN", "valueFrom": reference} in container["env"], "pods take them by reference"
    values = secret["stringData"]
    assert set(values.get("value", values)) == {"HF_TOKEN", "WANDB_API_KEY"}, "as the libraries look for them"
    reviewed = snapshot(with_tokens, "s")
    assert "Secret tokens" in reviewed
    assert not leaks(reviewed)


@pytest.mark.parametrize("login", [CANARIES["huggingFaceToken"], ":" + CANARIES["huggingFaceToken"], "canary:"])
def test_a_login_without_user_or_token_is_refused_without_being_shown(local_kubeconfig: object, login: str) -> None:
    with pytest.raises(Exception, match=r"secrets\.imagePull: not of the form USER:TOKEN") as refused:
        record("local", changed("local", secrets={"imagePull": login}))
    assert "canary" not in str(refused.value).lower()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_no_token_can_enter_an_image(recipe: Recipe) -> None:
    """An ARG or ENV stays in an image's history, and a file in its layers."""
    dockerfile = (ROOT / recipe.dockerfile).read_text()
    declared = re.findall(r"^\s*(?:ARG|ENV)\s+(.*)", dockerfile, re.MULTILINE)
    assert declared
    assert not [line for line in declared if re.search(r"TOKEN|SECRET|PASSWORD|API_?KEY|CREDENTIAL", line)]
    entering = {path.relative_to(ROOT) for path in context_files(recipe)}
    assert not [path for path in entering if path.name.startswith("Pulumi.") or path.suffix in (".env", ".key", ".pem")]
    # Only these files reach the builder.
    context = ROOT / stage(recipe, content_hash(recipe, {}))
    assert {path.relative_to(context) for path in context.rglob("*") if path.is_file()} == entering

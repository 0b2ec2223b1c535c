"""What a person reads when the API server refuses: one line, no JSON, no secret."""

from __future__ import annotations

import json
from typing import Any

from local.plugin.errors import ApiError, hide, parse_status


def refused(code: int, reason: str, message: str, causes: list[dict[str, Any]] | None = None) -> str:
    body = {"kind": "Status", "reason": reason, "message": message, "details": {"causes": causes or []}}
    text = str(ApiError("Job demo/train", code, parse_status(json.dumps(body).encode(), code)))
    assert "\n" not in text
    assert "{" not in text
    return text


def test_invalid_names_field_and_reason() -> None:
    cause = {"reason": "FieldValueRequired", "field": "spec.completions", "message": "Required value: when Indexed"}
    text = refused(422, "Invalid", "Job.batch is invalid: [...]", [cause, cause])
    assert text == "Job demo/train is invalid: spec.completions: Required value: when Indexed"


def test_the_dump_of_an_immutable_field_is_cut() -> None:
    dump = 'core.PodTemplateSpec{ObjectMeta:v1.ObjectMeta{Name:"", ' + "x" * 5000 + "}}: field is immutable"
    cause = {"field": "spec.template", "message": f"Invalid value: {dump}"}
    assert refused(422, "Invalid", "m", [cause]) == (
        "Job demo/train is invalid: spec.template: Invalid value: ...: field is immutable"
    )


def test_already_exists_says_what_to_do() -> None:
    text = refused(409, "AlreadyExists", 'jobs.batch "train" already exists')
    assert text.startswith("Job demo/train already exists in the cluster")
    assert "pulumi import" in text


def test_conflict_names_the_other_manager() -> None:
    cause = {"reason": "FieldManagerConflict", "field": ".spec.parallelism", "message": 'conflict with "kubectl"'}
    text = refused(409, "Conflict", "Apply failed", [cause])
    assert ".spec.parallelism" in text
    assert "kubectl" in text
    assert "patchForce" in text


def test_forbidden_and_unauthorized() -> None:
    message = 'jobs.batch "train" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
    assert refused(403, "Forbidden", message) == (
        'Job demo/train is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
    )
    assert "kubeconfig" in refused(401, "Unauthorized", "Unauthorized")


def test_a_page_that_is_no_status() -> None:
    status = parse_status(b"<html>\nBad gateway\n</html>", 502)
    assert str(ApiError("Job demo/train", 502, status)) == "Job demo/train: <html>"
    assert "502" in str(ApiError("Job demo/train", 502, parse_status(b"", 502)))


def test_secrets_are_hidden_also_when_quoted() -> None:
    message = 'Invalid value: "hunter2\\n": and hunter2 again, xy stays'
    assert hide(message, ["hunter2\n", "hunter2", "xy"]) == 'Invalid value: "[secret]": and [secret] again, xy stays'
    assert hide('raw: a"b', ['a"b']) == "raw: [secret]"

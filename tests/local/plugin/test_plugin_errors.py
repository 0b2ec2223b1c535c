"""What a person reads when the API server refuses: one line, no JSON, no secret."""

from __future__ import annotations

import json
from typing import Any

import pytest

from local.plugin.errors import ApiError, hide, parse_status

DUMP = 'core.PodTemplateSpec{ObjectMeta:v1.ObjectMeta{Name:"", ' + "x" * 5000 + "}}: field is immutable"
REQUIRED = {"reason": "FieldValueRequired", "field": "spec.completions", "message": "Required value: when Indexed"}
CONFLICT = {"reason": "FieldManagerConflict", "field": ".spec.parallelism", "message": 'conflict with "kubectl"'}


@pytest.mark.parametrize(
    ("code", "reason", "message", "causes", "expected"),
    [
        (422, "Invalid", "[...]", [REQUIRED] * 2, " is invalid: spec.completions: Required value: when Indexed"),
        (
            422,
            "Invalid",
            "m",
            [{"field": "spec.template", "message": f"Invalid value: {DUMP}"}],
            " is invalid: spec.template: Invalid value: ...: field is immutable",
        ),
        (
            409,
            "Conflict",
            "Apply failed",
            [CONFLICT],
            ': other programs manage some of its fields: .spec.parallelism (conflict with "kubectl"); leave the fields '
            'out, or set the annotation pulumi.com/patchForce: "true" to take them over',
        ),
        (
            403,
            "Forbidden",
            'jobs.batch "train" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
            [],
            ' is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
        ),
        (
            401,
            "Unauthorized",
            "Unauthorized",
            [],
            ": the API server does not accept the credentials of the kubeconfig (401 Unauthorized)",
        ),
    ],
)
def test_a_refusal_is_one_line(
    code: int, reason: str, message: str, causes: list[dict[str, Any]], expected: str
) -> None:
    body = {"kind": "Status", "reason": reason, "message": message, "details": {"causes": causes}}
    error = ApiError("Job demo/train", code, parse_status(json.dumps(body).encode(), code))
    assert str(error) == f"Job demo/train{expected}"


def test_a_page_that_is_no_status() -> None:
    status = parse_status(b"<html>\nBad gateway\n</html>", 502)
    assert str(ApiError("Job demo/train", 502, status)) == "Job demo/train: <html>"
    assert "502" in str(ApiError("Job demo/train", 502, parse_status(b"", 502)))


def test_secrets_are_hidden_also_when_quoted() -> None:
    message = 'Invalid value: "hunter2\\n": and hunter2 again, xy stays'
    assert hide(message, ["hunter2\n", "hunter2", "xy"]) == 'Invalid value: "[secret]": and [secret] again, xy stays'
    assert hide('raw: a"b', ['a"b']) == "raw: [secret]"

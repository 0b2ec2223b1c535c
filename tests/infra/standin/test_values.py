"""Values cross the engine's protocol and back without losing a secret, an unknown or a type."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.standin.values import (
    SECRET_SIGNATURE,
    SIGNATURE,
    UNKNOWN,
    UNKNOWN_STRING,
    Secret,
    from_struct,
    has_unknown,
    mark_secrets,
    to_struct,
)

scalars = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=20) | st.just(UNKNOWN)
trees = st.recursive(
    scalars,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=12,
)


# The first draw builds Unicode's tables, which takes seconds on a busy machine: no fault of the inputs.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(max_size=8), trees | trees.map(Secret), max_size=4))
def test_struct_round_trip(value: dict[str, Any]) -> None:
    assert from_struct(to_struct(value)) == value


def test_secrets_and_unknowns_have_the_engines_signatures() -> None:
    struct = to_struct({"password": Secret("x"), "later": UNKNOWN})
    assert struct.fields["password"].struct_value[SIGNATURE] == SECRET_SIGNATURE
    assert struct["later"] == UNKNOWN_STRING
    assert to_struct({"password": Secret("x")}, keep_secrets=False)["password"] == "x"


def test_numbers_come_back_as_integers() -> None:
    value = from_struct(to_struct({"replicas": 3, "ratio": 0.5, "on": True}))
    assert value == {"replicas": 3, "ratio": 0.5, "on": True}
    assert isinstance(value["replicas"], int)
    assert value["on"] is True


def test_only_what_was_secret_becomes_secret() -> None:
    live = {"kind": "Deployment", "spec": {"replicas": 1, "env": [{"value": "hunter2"}]}, "status": {}}
    given_inputs = {"spec": {"replicas": 1, "env": [{"value": Secret("hunter2")}]}}
    marked = mark_secrets(live, given_inputs)
    assert marked["spec"]["env"] == Secret([{"value": "hunter2"}])
    assert marked["spec"]["replicas"] == 1
    assert live["spec"]["env"] == [{"value": "hunter2"}]
    marked = mark_secrets({"kind": "Secret", "data": {"a": "eA=="}, "type": "Opaque"}, {})
    assert marked == {"kind": "Secret", "data": Secret({"a": "eA=="}), "type": "Opaque"}


def test_what_is_unknown_is_found_at_any_depth() -> None:
    assert has_unknown({"a": [Secret({"b": UNKNOWN})]})
    assert not has_unknown({"a": [Secret({"b": 1})]})

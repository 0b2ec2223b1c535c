"""An emulated AWS for the tests of this folder, and aws-g4dn in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from tests.infra.recorded import recorded
from tests.infra.standin import built
from tests.infra.standin.built import Built
from tests.standin.aws.account import Account, aws

STACK, REGION = "aws-g4dn", "us-east-2"


def account_number(of: str) -> str:
    """A number of 12 digits: each text has its own account."""
    return f"{int.from_bytes(hashlib.sha256(of.encode()).digest()[:8]) % 10**12:012d}"


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    with aws() as address:
        yield address


@pytest.fixture(scope="session")
def living(endpoint: str) -> Built:
    """The stack in an account of its own, for tests that leave it as it is."""
    return built.up(recorded(STACK), Account(endpoint, account_number("living"), REGION))

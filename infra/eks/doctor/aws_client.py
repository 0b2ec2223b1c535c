"""AWS's APIs for the doctor: a question gets an answer, or raises NoAnswer with a plain reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import boto3
import requests
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from infra import finding

#: A region that no account can switch off: it answers for the account, for IAM and for the list of regions.
HOME = "us-east-1"
#: AWS's service that returns the caller's address, as its EKS guide uses it.
ADDRESS_OF_CALLER = "https://checkip.amazonaws.com"
PATIENCE = Config(connect_timeout=5, read_timeout=20, retries={"max_attempts": 2, "mode": "standard"})


class NoAnswer(finding.NoAnswer):
    """Why a question has no answer: in words, and AWS's code for it (empty: nobody answered)."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Amazon:
    """The APIs of one region with one identity's credentials."""

    session: boto3.Session
    region: str
    account: str = ""
    identity: str = ""
    """ARN of the caller."""
    _clients: dict[tuple[str, str], Any] = field(default_factory=dict, repr=False)

    def ask(self, service: str, operation: str, *, home: bool = False, **given: Any) -> dict[str, Any]:
        """The answer to one operation, such as `ask("ec2", "describe_vpcs")`; all pages of it where there are several.

        `home`: ask in the region that answers for the whole account.

        Raises:
            NoAnswer: with AWS's code when it answered with an error.
        """
        region = HOME if home else self.region
        try:
            if (service, region) not in self._clients:
                # pyrefly: ignore[no-matching-overload]
                self._clients[service, region] = self.session.client(service, region_name=region, config=PATIENCE)
            client = self._clients[service, region]
            if client.can_paginate(operation):
                return client.get_paginator(operation).paginate(**given).build_full_result()
            return getattr(client, operation)(**given)
        except (BotoCoreError, ClientError, ResponseParserError) as error:
            code = str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
            raise NoAnswer(finding.reason_of(error), code) from None


def connect(region: str, session: Callable[[], boto3.Session] = boto3.Session) -> Amazon:
    """The APIs with the credentials that the Pulumi provider would use.

    Raises:
        NoAnswer: there are none, or they are not valid any more; with the SDK's reason.
    """
    try:
        amazon = Amazon(session(), region)
        caller = amazon.session.client("sts", region_name=HOME, config=PATIENCE).get_caller_identity()
    except Exception as error:  # of botocore, or of whoever stumbles over a file or a credential_process
        raise NoAnswer(f"AWS knows no caller: {finding.reason_of(error)}") from None
    return replace(amazon, account=caller["Account"], identity=caller["Arn"])


def own_address() -> str | None:
    """This machine's public address as AWS sees it; None: unknown."""
    try:
        answer = requests.get(ADDRESS_OF_CALLER, timeout=5)
    except requests.RequestException:
        return None
    return answer.text.strip() if answer.ok else None

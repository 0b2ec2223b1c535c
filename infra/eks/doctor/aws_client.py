"""AWS's APIs for the doctor: a question gets an answer, or raises NoAnswer with a plain reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import boto3
import requests
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    NoCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError

from infra import finding

#: A region that no account can switch off: it answers for the account, for IAM and for the list of regions.
HOME = "us-east-1"
#: AWS's service that returns the caller's address, as its EKS guide uses it.
ADDRESS_OF_CALLER = "https://checkip.amazonaws.com"
PATIENCE = Config(connect_timeout=5, read_timeout=20, retries={"max_attempts": 2, "mode": "standard"})
#: Error codes for a caller that may not ask.
REFUSALS = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError")
#: Error codes for credentials that are invalid or expired.
INVALID = ("ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "SignatureDoesNotMatch", "AuthFailure")


class NoAnswer(finding.NoAnswer):
    """Why a question has no answer: in words, and AWS's code for it (empty: nobody answered)."""

    def __init__(self, text: str, code: str = "", fix: str = "") -> None:
        super().__init__(text, fix)
        self.code = code

    @property
    def refused(self) -> bool:
        """Whether the caller may not ask."""
        return self.code in REFUSALS


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
        except ClientError as error:
            raise _reason(service, operation, error) from None
        except (BotoCoreError, ResponseParserError) as error:
            raise NoAnswer(f"{service} does not answer in {region} ({type(error).__name__})") from None


def _reason(service: str, operation: str, error: ClientError) -> NoAnswer:
    details = error.response.get("Error", {})
    code = str(details.get("Code", ""))
    if code in REFUSALS:
        action = "".join(part.capitalize() for part in operation.split("_"))  # as policies name it: DescribeVpcs
        return NoAnswer(f"you may not ask ({service}:{action})", code)
    message = " ".join(str(details.get("Message") or "no reason given").split())
    if message.startswith("<"):
        # The page of a proxy between here and AWS.
        message = "not AWS's answer, but a page in HTML; is there a proxy?"
    return NoAnswer(f"{code}: {message}"[:200], code)


def connect(region: str, session: Callable[[], boto3.Session] = boto3.Session) -> Amazon:
    """The APIs with the credentials that the Pulumi provider would use.

    Raises:
        NoAnswer: there are none, or they are not valid any more.
    """
    try:
        amazon = Amazon(session(), region)
        client = amazon.session.client("sts", region_name=HOME, config=PATIENCE)
        caller = client.get_caller_identity()
    except NoCredentialsError:
        raise NoAnswer("no AWS profile, no keys in the environment, and no role") from None
    except ProfileNotFound as error:
        raise NoAnswer(f"{error} (AWS_PROFILE)") from None
    except (SSOError, TokenRetrievalError) as error:
        raise NoAnswer(
            f"the SSO session has expired ({(str(error).splitlines() or [type(error).__name__])[0][:120]})"
        ) from None
    except ClientError as error:
        reason = _reason("sts", "get_caller_identity", error)
        if reason.code in INVALID:
            raise NoAnswer(f"AWS does not accept the credentials ({reason.code})", reason.code) from None
        raise reason from None
    except (HTTPClientError, ConnectionError, ResponseParserError) as error:
        raise NoAnswer(f"sts does not answer ({type(error).__name__})") from None
    except Exception as error:
        # Files and programs of somebody's: ConfigParseError, CredentialRetrievalError, InvalidConfigError; OSError and
        # ValueError of a credential_process that is missing or prints no JSON.
        raise NoAnswer(
            f"the credentials cannot be read: {finding.reason_of(error)}",
            fix="aws configure list   # the files and variables that count; mend the one that the reason names",
        ) from None
    return Amazon(amazon.session, region, account=caller["Account"], identity=caller["Arn"])


def own_address() -> str | None:
    """This machine's public address as AWS sees it; None: unknown."""
    try:
        answer = requests.get(ADDRESS_OF_CALLER, timeout=5)
    except requests.RequestException:
        return None
    return answer.text.strip() if answer.ok else None

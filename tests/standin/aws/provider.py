"""The aws package under the real Pulumi engine. Its resources exist in an emulated account."""

from __future__ import annotations

from typing import Any

from .. import replaces
from ..cloud import Cloud, Thing
from ..naming import PluginError, Urn
from ..server import DEFAULTS, Resources
from ..values import UNKNOWN, has_unknown, mark_secrets, reveal
from . import kinds
from .account import Account

OFFERINGS = "aws:ec2/getInstanceTypeOfferings:getInstanceTypeOfferings"
GROUP = "aws:eks/nodeGroup:NodeGroup"
#: Types that the provider deletes before it creates the replacement, even without a name: the new one would overwrite
#: the old one, and the deletion of the old one would then remove both (pulumi-aws #2075).
OLD_FIRST = ("aws:ecr/lifecyclePolicy:LifecyclePolicy",)


class AwsResources(Resources):
    """Keeps resources and journal in the Cloud, as for other clouds, but AWS's own API creates them, or refuses."""

    def __init__(self, cloud: Cloud, region: str, account: Account | None) -> None:
        super().__init__("aws", cloud, region)
        if account is None:
            raise PluginError("no AWS is emulated: give the stack an account")
        if account.region != region:
            raise PluginError(f"the account is emulated in {account.region}, not in {region}")
        self.account = account

    def _named(self, token: str) -> str:
        return kinds.kind(token).name

    def _same_name(self, token: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
        named = self._named(token)
        return token in OLD_FIRST or (bool(named) and old.get(named) == new.get(named))

    def create(self, urn: Urn, given: dict[str, Any], timeout: float, preview: bool) -> tuple[str, dict[str, Any]]:
        if preview:
            return super().create(urn, given, timeout, preview)
        inputs = _inputs(given)
        if urn.token == GROUP:
            self._require_machines(inputs)
        made = self._cloud.create(
            urn.text,
            Thing(urn.token, urn.name, "", inputs, {}),
            lambda: kinds.create(self.account, urn.token, urn.name, inputs),
        )
        return made.id, mark_secrets(made.outputs, given)

    def update(
        self, urn: Urn, olds: dict[str, Any], given: dict[str, Any], ignored: list[str], timeout: float, preview: bool
    ) -> dict[str, Any]:
        state, inputs = reveal(olds), _inputs(given)
        counted = replaces.counted(urn.token)
        if preview or has_unknown(inputs):
            return mark_secrets({**_kept(state, inputs), **dict.fromkeys(counted, UNKNOWN)}, given)
        for path in ignored:
            _take_over(state, inputs, path.split("."))
        kinds.update(self.account, urn.token, inputs)
        outputs = {**_kept(state, inputs), **{key: state[key] + 1 for key in counted if key in state}}
        self._cloud.update(urn.text, Thing(urn.token, urn.name, self._cloud.id_of(urn.text), inputs, outputs))
        return mark_secrets(outputs, given)

    def delete(self, urn: Urn, object_id: str, properties: dict[str, Any], timeout: float) -> None:
        self._cloud.delete(
            urn.text, object_id, lambda thing: kinds.delete(self.account, thing.type, thing.id, thing.inputs)
        )

    def answer(self, token: str, given: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of a function of the package."""
        if token == OFFERINGS:
            # Ask the account itself, not our table.
            filters = [{"Name": each["name"], "Values": each["values"]} for each in given["filters"]]
            found = self.account.offerings(given["locationType"], filters)
            return {"locations": [zone for zone, _ in found], "instanceTypes": [name for _, name in found]}
        if token == "aws:eks/getClusters:getClusters":
            return {"id": "x", "names": self.account.call("eks", "list_clusters")["clusters"]}
        if token == "aws:eks/getAddon:getAddon":
            found = [thing for thing in self._cloud.things().values() if given.items() <= thing.inputs.items()]
            if not found:
                raise PluginError(f"reading EKS Add-On ({given['addonName']}): couldn't find resource")
            return {**found[0].outputs, "id": found[0].id}
        return super().answer(token, given)

    def _require_machines(self, inputs: dict[str, Any]) -> None:
        """Refuse a type that one zone lacks, with the message of eksctl issue 6461 and ec2-spot-workshops 154."""
        subnets = self.account.call("ec2", "describe_subnets", SubnetIds=inputs["subnetIds"])["Subnets"]
        for name in inputs["instanceTypes"]:
            found = self.account.offerings("availability-zone", [{"Name": "instance-type", "Values": [name]}])
            having = sorted(zone for zone, _ in found)
            for zone in (subnet["AvailabilityZone"] for subnet in subnets):
                if zone not in having:
                    raise PluginError(
                        f"InvalidRequestException: Your requested instance type ({name}) is not supported in your "
                        f"requested Availability Zone ({zone}). Please retry your request by not specifying an "
                        f"Availability Zone or choosing {', '.join(having)}."
                    )


def _inputs(given: dict[str, Any]) -> dict[str, Any]:
    inputs = reveal(given)
    inputs.pop(DEFAULTS, None)
    return inputs


def _kept(state: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Merge the inputs over the state, also inside objects: an update in place keeps what AWS has added."""
    merged = {**state, **inputs}
    for key, value in inputs.items():
        before = state.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = _kept(before, value)
    return merged


def _take_over(state: Any, inputs: Any, path: list[str]) -> None:
    """Copy a property from the state into the inputs, for ignoreChanges."""
    for key in path[:-1]:
        state, inputs = (state or {}).get(key), inputs.get(key) or {}
    if isinstance(state, dict) and path[-1] in state:
        inputs[path[-1]] = state[path[-1]]

"""AWS for tests: Pulumi's resources of the aws package, made through AWS's own API in an emulated account.

    account.py   moto's server, one of its accounts, and everything that exists there, for "nothing is left"
    kinds.py     the AWS operations that create, update and delete each kind of resource
    rules.py     what moto accepts but AWS refuses, or lets fail later: from infra/eks/features.yaml and order.yaml
    provider.py  the package under the real Pulumi engine

review/computed.py gives the outputs that AWS adds to a resource, as in every recording. moto 5.2 has no add-ons, access
entries, pod identities and placement groups: their arguments are only checked against AWS's model.
"""

"""AWS for tests: Pulumi's resources of the aws package, made through AWS's own API in an emulated account.

    account.py   moto's server, one account of it, and everything that exists there, for "nothing is left"
    kinds.py     which of AWS's operations make, change and delete a resource
    rules.py     what AWS refuses, or breaks minutes later, and moto accepts: from infra/eks/needs.yaml and order.yaml
    provider.py  the package under the real Pulumi engine

What AWS adds to a resource comes from review/computed.py, as in every recording. moto 5.2 has no add-ons, access
entries, pod identities and placement groups: their arguments are checked against AWS's model, and no more.
"""

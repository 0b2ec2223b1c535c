"""AWS for tests: Pulumi's resources of the aws package, made through AWS's own API in an account that is emulated.

    emulator.py   moto's server, with the parts of EKS and EC2 that moto has not
    account.py    one account of it: calls by boto3, so that arguments are checked against AWS's own models
    resources.py  the table of all types: what creates, changes and deletes a resource
    network.py, identity.py, eks.py, storage.py   those translations, by service
    prerequisites.py, dependents.py   what AWS refuses (or breaks, minutes later) and moto accepts
    lookups.py    what these ask the account
    policies.py   whether a role can be assumed by its user and allows what its user needs
    inventory.py  everything that exists, for "nothing is left"

The stand-in plugin uses it under the real Pulumi engine, and tests/infra/aws on the recorded resource graph.
"""

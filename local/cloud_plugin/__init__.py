"""A stand-in for the plugins of clouds, for tests only: the real Pulumi engine runs a cloud stack without a cloud.

`python -m local.cloud_plugin PACKAGE` speaks Pulumi's provider protocol for gcp, aws, docker-build or kubernetes.
What it creates is a line in a file (cloud.py), which refuses what the cloud would refuse: to delete what is in use, to
create what has no API, no cluster or no registry. AWS's resources are made in an emulated account as well, by calls of
AWS's API (aws/). Which changes replace a resource is the real providers' (infra/replaces.py). Nothing but tests starts
it.
"""

"""Looks for what stops a first `pulumi up` on AWS; checks.py has the order."""

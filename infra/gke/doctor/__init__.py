"""Looks for what stops a first `pulumi up` on Google Cloud; checks.py has the order."""

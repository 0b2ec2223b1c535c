"""Looks for what stops a first `pulumi up`, and says how to mend it: `trainyard doctor STACK`.

A check is a generator of findings (finding.py). Those of every stack are here, those of a cloud in its folder.
"""

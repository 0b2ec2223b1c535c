"""Look for what stops a first `pulumi up`, and say how to fix it: `trainyard doctor --stack STACK`.

A check is a generator of findings (finding.py). Those of every stack are here, those of a cloud in its folder.
"""

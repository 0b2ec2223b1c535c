"""Says before `pulumi up` what would stop it, and with which command to mend it: `python -m infra.doctor STACK`.

finding.py is what a check says, everywhere.py holds the checks of every stack, gcp.py those of Google Cloud. Each check
is a generator of findings; a new cloud is one new module in `checks`.
"""

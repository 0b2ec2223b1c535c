"""Says before `pulumi up` what would stop it, and with which command to mend it: `trainyard doctor STACK`.

finding.py is what a check says, everywhere.py holds the checks of every stack, gcp*.py those of Google Cloud and
aws*.py those of AWS. Each check is a generator of findings; google.py and amazon.py ask the clouds.
"""

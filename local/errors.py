"""The one exception a user of `trainyard local` sees: one line that says what is wrong and what to do instead."""


class LocalError(Exception):
    """A machine that cannot do it, a daemon that does not start, a build that fails. Printed without a traceback."""

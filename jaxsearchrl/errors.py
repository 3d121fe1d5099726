"""The kinds of failure that the program tells apart.

A model's mistake is none of them: it becomes an observation that the model reads.
"""


class UserError(Exception):
    """Bad input from the person who runs the program; its message names the key, file, line or id and the fix.

    `main` prints the message without a traceback and exits with status 2.
    """


class ConfigError(UserError):
    """A configuration key is unknown, has the wrong type, or an impossible value."""


class InfrastructureError(Exception):
    """Something outside the policy failed (a retriever is down, a request timed out).

    It is retried; if it stays, the episode leaves loss and baseline, and is counted. It is never a reward of zero.
    """


class StoppedByAlarm(Exception):
    """A training run ended before its end, as `alarms.stop_on` asks. Its state is saved.

    `main` prints the message and exits with status 3.
    """

"""What is wrong with what a user wrote: one sentence, and what to do next."""


class TargetError(Exception):
    """The function or its arguments are not what the user thinks they are."""

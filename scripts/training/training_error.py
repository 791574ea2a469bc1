"""The one exception that the command turns into a line on stderr."""


class TrainingError(Exception):
    """What is wrong, what was expected and what to do, in one line."""

"""The one exception of the converter."""


class ConvertError(ValueError):
    """A conversion that cannot be done.

    The message is one line: the thing, what was expected, what was found, what to do.
    """

"""What can go wrong with the command itself."""


class BenchError(Exception):
    """Said to the user without a traceback."""

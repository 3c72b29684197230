"""The installed command, as in the tests of the command line."""

from tests.cli.conftest import phalanx, started

__all__ = ["phalanx", "started"]

"""Which signal handlers are put off until a collective is over; `handlers.py` runs them."""

import signal

from phalanx.run.failure import end_as_asked
from phalanx.torch_backend.signals import DeferredHandler, _unwrapped, _wrapped


def of_a_program(*_: object) -> None:
    """A handler that may make collectives."""


def test_handlers_of_programs_are_put_off() -> None:
    wrapped = _wrapped(of_a_program)
    assert isinstance(wrapped, DeferredHandler)
    assert _wrapped(wrapped) is wrapped
    assert _unwrapped(wrapped) is of_a_program


def test_handlers_that_end_a_rank_are_not() -> None:
    """The launcher ends the ranks of `phalanx train` while they wait for one that has failed."""
    for handler in (signal.default_int_handler, end_as_asked, signal.SIG_DFL, None):
        assert _wrapped(handler) is handler

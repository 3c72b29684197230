"""Blocking calls in a thread, which a wait need not outlast."""

import threading

import pytest

from phalanx.comm.blocking_call import BlockingCall


def test_a_wait_ends_before_the_call_does() -> None:
    """A rank whose link dies within the library's own all-reduce waited without an end."""
    may_end = threading.Event()
    call = BlockingCall(lambda: may_end.wait(60), bytearray(8))
    assert not call.advance() and not call.settle()
    call.cancel()
    assert not call.settle(), "its memory is in use"
    may_end.set()
    assert call.wait(60) and call.advance() and call.is_done and call.settle()
    assert call.result() is True


def test_what_it_raises_is_raised_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise ValueError("no datatype")

    call = BlockingCall(fail)
    assert call.wait(60)
    with pytest.raises(ValueError, match="no datatype"):
        call.advance()

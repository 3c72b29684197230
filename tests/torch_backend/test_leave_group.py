"""The end of a group of Gloo.

Its story: a thread of Gloo, late on a busy machine, freed the tensor of the last sum while Python
was ending. The rank had trained, saved and closed, and then died of signal 6.
"""

import ctypes
import threading
import zlib

from phalanx.torch_backend.leave_group import let_threads_rest

NAME = "late_thread"
SET_NAME = 15  # of prctl


def test_a_group_ends_once_the_threads_of_gloo_rest() -> None:
    named, ended = threading.Event(), threading.Event()
    more = bytes(40_000_000)

    def work() -> None:
        ctypes.CDLL(None).prctl(SET_NAME, NAME.encode())
        named.set()
        zlib.compress(more)  # without the interpreter's lock
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert named.wait(10)
    let_threads_rest(NAME)
    assert ended.is_set()
    thread.join()

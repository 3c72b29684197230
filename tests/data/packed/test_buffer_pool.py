"""Buffers return to the pool when the last reference dies, and not before."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from phalanx.data.packed.buffer_pool import LARGEST_BYTES, MAX_FREE, SMALLEST_BYTES, BufferPool

SHAPE = (2, SMALLEST_BYTES // 4)
FLOAT = np.dtype(np.float32)


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_memory_is_used_again_when_it_is_free() -> None:
    pool = BufferPool()
    first = pool.empty(SHAPE, FLOAT)
    assert (first.shape, first.dtype, first.flags.c_contiguous) == (SHAPE, FLOAT, True)
    assert first.flags.writeable
    place, view = address(first), first[1, 5:]
    del first
    assert address(pool.empty(SHAPE, FLOAT)) != place, "a view holds it"
    del view
    again = [pool.empty(SHAPE, FLOAT) for _ in range(3)]
    assert place in map(address, again)
    assert len(set(map(address, again))) == 3


def test_other_sizes_are_not_mixed_up() -> None:
    pool = BufferPool()
    pool.empty(SHAPE, FLOAT)
    other = pool.empty((3, *SHAPE), FLOAT)
    other[:] = 1
    assert other.shape == (3, *SHAPE)
    small, huge = pool.empty((3,), FLOAT), pool.empty((LARGEST_BYTES + 1,), np.dtype(np.uint8))
    assert small.base is None
    assert huge.base is None


def test_a_smaller_last_batch_takes_the_memory_of_a_whole_one() -> None:
    """Down to half of it; else a field of small samples would sit on the memory of large ones."""
    pool = BufferPool()
    place = address(pool.empty((4, *SHAPE), FLOAT))
    last = pool.empty((2, *SHAPE), FLOAT)
    assert (address(last), last.shape) == (place, (2, *SHAPE))
    del last
    again = pool.empty((4, *SHAPE), FLOAT)
    assert address(again) == place, "nothing of it was lost"
    del again
    assert address(pool.empty(SHAPE, FLOAT)) != place


def test_all_batches_of_an_epoch_come_back_for_the_next() -> None:
    """Four ahead and one in use; with four blocks that waited, every epoch began with a new one."""
    pool = BufferPool()
    first = [pool.empty(SHAPE, FLOAT) for _ in range(5)]
    places = set(map(address, first))
    del first
    assert {address(array) for array in [pool.empty(SHAPE, FLOAT) for _ in range(5)]} == places


def test_few_blocks_wait() -> None:
    pool = BufferPool()
    arrays = [pool.empty(SHAPE, FLOAT) for _ in range(2 * MAX_FREE)]
    del arrays
    assert len(pool._free) == MAX_FREE


def test_many_threads_ask() -> None:
    pool = BufferPool()

    def fill(value: int) -> bool:
        array = pool.empty(SHAPE, FLOAT)
        array[:] = value
        return bool((array == value).all())

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(fill, range(60)))

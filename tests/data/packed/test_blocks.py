"""Memory comes back when nobody holds it any more, and not before."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from phalanx.data.packed.blocks import LARGEST_BYTES, MAX_FREE, SMALLEST_BYTES, Blocks

SHAPE = (2, SMALLEST_BYTES // 4)
FLOAT = np.dtype(np.float32)


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_memory_is_used_again_when_it_is_free() -> None:
    blocks = Blocks()
    first = blocks.empty(SHAPE, FLOAT)
    assert (first.shape, first.dtype, first.flags.c_contiguous) == (SHAPE, FLOAT, True)
    assert first.flags.writeable
    place, view = address(first), first[1, 5:]
    del first
    assert address(blocks.empty(SHAPE, FLOAT)) != place, "a view holds it"
    del view
    again = [blocks.empty(SHAPE, FLOAT) for _ in range(3)]
    assert place in map(address, again)
    assert len(set(map(address, again))) == 3


def test_other_sizes_are_not_mixed_up() -> None:
    blocks = Blocks()
    blocks.empty(SHAPE, FLOAT)
    other = blocks.empty((3, *SHAPE), FLOAT)
    other[:] = 1
    assert other.shape == (3, *SHAPE)
    small, huge = blocks.empty((3,), FLOAT), blocks.empty((LARGEST_BYTES + 1,), np.dtype(np.uint8))
    assert small.base is None
    assert huge.base is None


def test_a_smaller_last_batch_takes_the_memory_of_a_whole_one() -> None:
    """Down to half of it; else a field of small samples would sit on the memory of large ones."""
    blocks = Blocks()
    place = address(blocks.empty((4, *SHAPE), FLOAT))
    last = blocks.empty((2, *SHAPE), FLOAT)
    assert (address(last), last.shape) == (place, (2, *SHAPE))
    del last
    again = blocks.empty((4, *SHAPE), FLOAT)
    assert address(again) == place, "nothing of it was lost"
    del again
    assert address(blocks.empty(SHAPE, FLOAT)) != place


def test_all_batches_of_an_epoch_come_back_for_the_next() -> None:
    """Four ahead and one in use; with four blocks that waited, every epoch began with a new one."""
    blocks = Blocks()
    first = [blocks.empty(SHAPE, FLOAT) for _ in range(5)]
    places = set(map(address, first))
    del first
    assert {address(array) for array in [blocks.empty(SHAPE, FLOAT) for _ in range(5)]} == places


def test_few_blocks_wait() -> None:
    blocks = Blocks()
    arrays = [blocks.empty(SHAPE, FLOAT) for _ in range(2 * MAX_FREE)]
    del arrays
    assert len(blocks._free) == MAX_FREE


def test_many_threads_ask() -> None:
    blocks = Blocks()

    def fill(value: int) -> bool:
        array = blocks.empty(SHAPE, FLOAT)
        array[:] = value
        return bool((array == value).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(fill, range(60)))

import threading
import time

from phalanx.records.processor_time import ProcessorTime


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_work_of_all_threads_counts_and_sleep_does_not() -> None:
    before = ProcessorTime.now()
    time.sleep(0.2)
    slept = ProcessorTime.now().since(before)
    assert sum(slept) < 0.1
    other = threading.Thread(target=spin, args=(0.1,))
    other.start()
    spin(0.1)
    other.join()
    used = ProcessorTime.now().since(before)
    assert used.user_s + used.system_s >= 0.19
    assert min(used) >= 0

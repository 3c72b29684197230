"""The emulated accelerator shows what a program forgets. Argument: its name."""

import copy
import ctypes
import os
import signal
import sys
from collections.abc import Callable

import torch
from tests.device.emulated import use
from torch import Tensor, nn
from torch.nn import functional as F

import phalanx
from phalanx.run.device import choose_device

os.environ |= {"EMULATED_QUARANTINE": "8", "EMULATED_LAG_US": "5000"}
DEVICE = use(sys.argv[1])
FIRST = torch.device(DEVICE.type, 0)


def ends_by(touch: Callable[[], object]) -> int:
    """Return the signal that ends a child which does this; 0: none does."""
    child = os.fork()
    if child == 0:
        os.close(2)
        touch()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def numbers(count: int = 1000) -> Tensor:
    made = torch.arange(float(count), device=FIRST)
    torch.accelerator.synchronize()
    return made


def check_memory() -> None:
    tensor = numbers()
    address = tensor.data_ptr()
    assert ends_by(lambda: ctypes.string_at(address, 4)) == -signal.SIGSEGV, "the host reads"
    assert ends_by(lambda: ctypes.memset(address, 0, 4)) == -signal.SIGSEGV, "the host writes"
    del tensor
    torch.accelerator.synchronize()
    addresses = {address}
    for _ in range(8):
        later = numbers()
        addresses.add(later.data_ptr())
        del later
    assert len(addresses) == 9, "memory is handed out again too early"
    torch.accelerator.synchronize()
    assert torch.accelerator.memory_allocated() == 0


def check_lag() -> None:
    tensor, host = numbers(), torch.zeros(1000, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    assert host.isnan().any(), "a copy to the host that nobody has waited for"
    torch.accelerator.synchronize()
    assert torch.equal(host, torch.arange(1000.0))
    host.copy_(torch.arange(1000.0))
    arrived = host.to(FIRST, non_blocking=True)
    host.fill_(-1)  # before it has been read
    assert (arrived.cpu() == -1).any()
    for give in (host.cpu().clone(), torch.zeros(1000)):
        try:
            give.copy_(tensor, non_blocking=True)
        except RuntimeError as error:
            assert "pinned" in str(error)
        else:
            raise AssertionError("a copy into memory that is not pinned")


def check_streams() -> None:
    """A stream that waits for none reads poison; one that waits for the event reads numbers."""
    seen = set()
    for waits in (False, True):
        for _ in range(20):
            first, second = torch.Stream(FIRST), torch.Stream(FIRST)
            with first:
                tensor = torch.ones(1000, device=FIRST)
                for _ in range(3):
                    tensor = tensor * 2
            event = first.record_event()
            with second:
                if waits:
                    second.wait_event(event)
                doubled = (tensor * 2).cpu()
            seen.add((waits, bool((doubled == 16).all())))
            torch.accelerator.synchronize()
    assert (True, False) not in seen, "a stream that has waited"
    assert (False, False) in seen, "a stream that has not"
    quick = (
        torch.Event(DEVICE.type, enable_timing=True),
        torch.Event(DEVICE.type, enable_timing=True),
    )
    quick[0].record()
    numbers()
    quick[1].record()
    quick[1].synchronize()
    assert quick[0].elapsed_time(quick[1]) > 0


def check_training() -> None:
    """Operators are those of the CPU: parameters are the same bits."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LayerNorm(288)
    model = nn.Sequential(*layers, nn.Linear(288, 10))
    images, labels = torch.randn(16, 1, 8, 8), torch.randint(0, 10, (16,))
    models = {torch.device("cpu"): model, FIRST: copy.deepcopy(model).to(FIRST)}
    for device, own in models.items():
        optimizer = torch.optim.Adam(own.parameters(), lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(own(images.to(device)), labels.to(device)).backward()
            optimizer.step()
    pairs = zip(model.state_dict().values(), models[FIRST].state_dict().values(), strict=True)
    assert all(torch.equal(one, other.cpu()) for one, other in pairs)


def check_devices() -> None:
    first, second = numbers(), torch.arange(1000.0, device=f"{DEVICE.type}:1")
    assert torch.equal(first.to(second.device), second)
    try:
        first + second
    except RuntimeError as error:
        assert "on" in str(error)
    else:
        raise AssertionError("tensors of two devices in one operator")
    torch.manual_seed(3)
    drawn = torch.rand(5, device=FIRST)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(5, device=FIRST))
    try:
        torch.empty(8 << 30, device=FIRST)
    except torch.OutOfMemoryError as error:
        assert "were asked for" in str(error)
    else:
        raise AssertionError("more memory than there is")


def check_names() -> None:
    """A rank gets the device that is named, or that of its number on the node."""
    kind = DEVICE.type
    found = [str(choose_device(name, 3)) for name in ("auto", kind, f"{kind}:0", "cpu")]
    assert found == [f"{kind}:1", f"{kind}:1", f"{kind}:0", "cpu"], found
    for name, text in (
        (f"{kind}:2", "PyTorch finds 2 of"),
        ("cuda", "finds 2"),
        ("gpu", "is not one of"),
    ):
        try:
            choose_device(name, 0)
        except phalanx.UserError as error:
            assert text in str(error)
        else:
            raise AssertionError(name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for check in (
        check_memory,
        check_lag,
        check_streams,
        check_training,
        check_devices,
        check_names,
    ):
        check()
    print("it lies in wait")

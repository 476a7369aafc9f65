"""Captures on a GPU: copies use pinned memory and a stream of their own, and the compute stream never waits."""

import os

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from filch.steal import restore, steal_forward
from filch.steal.dump._stream import Stream
from support.models.small import module_of

pytestmark = pytest.mark.gpu
CYCLES = 2_000_000_000  # about a second
SIZE = 2**20  # several fit in one block, as allocating pinned memory may synchronize the device


class Copies:
    """A stream of a dump file, whose memory and side stream exist already."""

    def __init__(self, folder):
        self.data, journal = (os.open(folder / name, os.O_RDWR | os.O_CREAT) for name in ("data", "journal"))
        self.stream = Stream(self.data, None, journal, lambda rows: ("", 0), 2**26)
        self.x = (torch.arange(SIZE, device="cuda") % 251).to(torch.uint8)
        torch.empty(2**26, device="cuda", dtype=torch.uint8)  # memory for the copies on the device
        self.put()
        # The first call of a kernel loads it, for which CUDA waits until the device is idle.
        torch.cuda._sleep(1)  # noqa: SLF001  torch's own tests use it
        torch.bitwise_not(self.x.clone(), out=torch.empty_like(self.x)).zero_()
        torch.cuda.synchronize()

    @property
    def side(self):
        (side,) = self.stream._side_streams.values()  # noqa: SLF001  what is tested
        return side

    def put(self):
        return self.stream.put_cuda(self.x, 64, is_unshared=False)

    def stored(self, offset):
        """Close the stream and return the bytes of a tensor."""
        self.stream.close()
        return torch.frombuffer(bytearray(os.pread(self.data, SIZE, offset)), dtype=torch.uint8)


@pytest.fixture
def copies(tmp_path):
    return Copies(tmp_path)


def _seconds_of_compute(copies):
    """Return for how long the compute stream is busy while the side stream is, and the place of the copy."""
    with torch.cuda.stream(copies.side):
        torch.cuda._sleep(CYCLES)  # noqa: SLF001  as above
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    offset = copies.put()
    copies.x.zero_()  # the model writes over it at once
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3, offset


def test_the_compute_stream_does_not_wait_for_the_copy(copies):
    """The copy is stuck behind other work; the model goes on, and its change does not reach the copy."""
    expected = copies.x.cpu()
    seconds, offset = _seconds_of_compute(copies)
    assert not copies.side.query(), "the copy was not held up"
    assert seconds < 0.1
    assert torch.equal(copies.stored(offset), expected)


def test_a_copy_in_the_compute_stream_would_be_seen(copies):
    """The measurement above finds a compute stream that waits."""
    streams = copies.stream._side_streams  # noqa: SLF001  what is tested
    streams[copies.x.device] = torch.cuda.current_stream()
    seconds, _ = _seconds_of_compute(copies)
    assert copies.side.query() or seconds >= 0.1
    copies.stream.close()


def test_the_host_does_not_wait_for_the_device(copies):
    """A tensor that is not computed yet is put at once, and stored as it will be."""
    expected = 255 - copies.x.cpu()
    done = torch.cuda.Event()
    torch.cuda._sleep(CYCLES)  # noqa: SLF001  as above
    torch.bitwise_not(copies.x, out=copies.x)
    done.record()
    offset = copies.put()
    assert not done.query(), "the host waited for the device"
    assert torch.equal(copies.stored(offset), expected)


def test_blocks_are_pinned(copies):
    """Only copies to pinned memory are asynchronous."""
    assert copies.stream._current.tensor.is_pinned()  # noqa: SLF001  what is tested
    copies.stream.close()


def in_place(self, x):
    """Writes over the result of each of its layers."""
    for layer in self.layers:
        x = layer(x).mul_(0.5).relu_()
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_a_dump_has_the_bits_at_the_moment_of_each_call(tmp_path, differ, dtype):
    """Although the model writes over the tensors before they are copied, in a buffer that is too small for all."""
    torch.manual_seed(0)
    module, found = nn.Identity(), []
    x = torch.randn(512, 300, device="cuda").to(dtype)
    with torch.no_grad(), steal_forward(("m", module), dump_file=tmp_path / "dump.onnx", buffer=2**20):
        for _ in range(20):
            found.append(x.clone())
            module(x)
            x.mul_(-1.5)
    dump = restore(tmp_path / "dump.onnx")
    for index, tensor in enumerate(found):
        assert differ(dump["m", index, "O"], tensor.cpu()) is None


@pytest.mark.parametrize("dumped", [False, True], ids=["memory", "dump"])
def test_a_capture_changes_no_result(tmp_path, differ, dumped):
    """Outputs and gradients have the same bits; those that are recorded are those of autograd."""
    torch.manual_seed(0)
    model = module_of(in_place, layers=nn.ModuleList(nn.Linear(256, 256) for _ in range(6))).cuda()
    x = torch.randn(64, 256, device="cuda", requires_grad=True)

    def run():
        x.grad = None
        model.zero_grad()
        output = model(x)
        output.square().sum().backward()
        return output.detach(), x.grad, *(parameter.grad.clone() for parameter in model.parameters())

    run()  # the first call chooses kernels
    plain = run()
    options = {"dump_file": tmp_path / "dump.onnx"} if dumped else {}
    with steal_forward(("m", model), submodules=True, gradients=True, **options) as capture:
        observed = run()
    records = restore(tmp_path / "dump.onnx") if dumped else capture
    assert all(torch.equal(*pair) for pair in zip(plain, observed, strict=True))
    assert differ(records["m", 0, "O"], observed[0].cpu()) is None
    (gradient,) = (item for item in tree_leaves(records["m", 0, "GI"]) if isinstance(item, torch.Tensor))
    assert differ(gradient, observed[1].cpu()) is None

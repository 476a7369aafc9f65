"""Test the recording of values that are one small tensor."""

import pytest
import torch
from torch import nn

from filch.steal import restore, steal_forward
from filch.steal.capture import _recorder
from filch.steal.values._raw import SMALL, checksum, small_bytes
from filch.steal.values._tensors import is_plain


def _small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 7)).eval()


def _outputs(model, x):
    """Return the outputs of the model's layers, as they were when each of them returned."""
    outputs = []
    for layer in model:
        x = layer(x)
        outputs.append(x.clone())
    return outputs


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_small_tensors_are_recorded_without_the_encoder_of_nested_values(monkeypatch, tmp_path, on_disk):
    """Arguments and results that are one small tensor need no traversal; they are restored as they were."""

    def encode(*_args, **_kwargs):
        raise AssertionError("the encoder was called")

    monkeypatch.setattr(_recorder, "encode", encode)
    model, x = _small_model(), torch.randn(2, 3)
    dump_file = tmp_path / "small.onnx" if on_disk else None
    with torch.no_grad():
        expected = _outputs(model, x)
        with steal_forward(model, submodules=True, strict=True, dump_file=dump_file) as capture:
            for _ in range(3):
                model(x)
    records = restore(dump_file) if on_disk else capture
    assert len(records) == 3 * 2 * 4
    for iteration in range(3):
        (arguments, options), output = records["", iteration, "I"], records["", iteration, "O"]
        assert options == {}
        assert torch.equal(*arguments, x)
        assert torch.equal(output, expected[-1])
        for index, tensor in enumerate(expected):
            assert torch.equal(records[str(index), iteration, "O"], tensor)
    assert torch.equal(records["1", 0, "I"][0][0], expected[0])  # before ReLU has changed it in place


def test_small_tensors_cross_the_ends_of_blocks(tmp_path):
    """The bytes of a small tensor may be in several blocks of the writer."""
    model, x = nn.Identity(), torch.arange(7000, dtype=torch.int16)
    with steal_forward(("m", model), kinds="O", dump_file=tmp_path / "d.onnx", buffer=8192):  # blocks of 4096 bytes
        for size in range(0, 7000, 333):
            model(x[:size] + size)
    dump = restore(tmp_path / "d.onnx")
    assert [tuple(value.shape) for value in dump.values()] == [(size,) for size in range(0, 7000, 333)]
    for iteration, size in enumerate(range(0, 7000, 333)):
        assert torch.equal(dump["m", iteration, "O"], x[:size] + size)


def test_a_small_tensor_in_memory_is_a_copy_each_time():
    """Changing a value that a capture returned does not change the capture."""
    model = nn.Identity()
    with steal_forward(("m", model)) as capture:
        model(torch.zeros(3))
    capture["m", 0, "O"].fill_(1)
    capture.borrow(("m", 0, "O")).fill_(1)
    assert torch.equal(capture["m", 0, "O"], torch.zeros(3))


@pytest.mark.parametrize("nbytes", [0, 1, 32, SMALL])
def test_the_hash_of_small_bytes_is_their_checksum(nbytes):
    """Tensors that are recorded by either way are recognized by the other."""
    raw = torch.randint(0, 256, (SMALL,), dtype=torch.uint8)
    data = small_bytes(raw.data_ptr(), nbytes)
    assert data == raw.numpy().tobytes()[:nbytes]
    assert hash(data) == checksum(raw.data_ptr(), nbytes)


_NOT_PLAIN = {
    "not a tensor": lambda: [1.0],
    "a parameter": lambda: nn.Parameter(torch.ones(3), requires_grad=False),
    "with gradient": lambda: torch.ones(3, requires_grad=True),
    "a buffer": lambda: nn.Buffer(torch.ones(3)),
    "not contiguous": lambda: torch.ones(3, 2).t(),
    "expanded": lambda: torch.ones(1).expand(3),
    "complex": lambda: torch.ones(3, dtype=torch.complex64),
    "lazy conjugate": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "lazy negative": lambda: torch.ones(1, dtype=torch.complex64).conj().imag,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.ones(3, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore:.*(nested|quantiz|Sparse|sparse).*")
@pytest.mark.parametrize("name", _NOT_PLAIN)
def test_other_tensors_are_not_plain(name):
    """A tensor that is more than its dtype, shape and bytes is left to the encoder."""
    assert not is_plain(_NOT_PLAIN[name]())


def test_a_tensor_inside_torch_func_is_not_plain():
    """A wrapper of torch.func has no memory of its own."""
    seen = []
    torch.func.vmap(lambda x: seen.append(is_plain(x)) or x)(torch.ones(2, 3))
    assert seen == [False]
    assert is_plain(torch.ones(2, 3))

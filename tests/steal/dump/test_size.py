"""The size of dumps: tensors over 2 GiB, shared tensors, and caches that grow."""

import resource
import shutil

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from filch.steal import restore, steal_forward, tensors
from support.models.small import module_of


def _bytes_in(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_tensor_over_2_gib_is_dumped_with_one_copy_in_memory(tmp_path):
    """Protobuf's limit does not apply to tensors; pages of zeros take no memory before the copy."""
    size = 2**31 + 2**20
    if shutil.disk_usage(tmp_path).free < 3 * size:
        pytest.skip(f"a dump of 2 GiB needs more room than there is below {tmp_path}")
    # Returns the last element of its input.
    model = module_of(lambda self, x: x[-1].clone())
    tensor, module, path = torch.zeros(size, dtype=torch.uint8), model, tmp_path / "dump.onnx"
    tensor[[0, 2**31, -1]] = torch.tensor([1, 2, 3], dtype=torch.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    try:
        with steal_forward(("m", module), dump_file=path):
            module(tensor)
        dump = restore(path)
        found = dump["m", 0, "I"][0][0]
        assert dump["m", 0, "O"].item() == 3
        assert found.shape == (size,)
        assert found[[0, 1, 2**31, -2, -1]].tolist() == [1, 0, 2, 0, 3]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    finally:
        for left in tmp_path.iterdir():
            left.unlink()  # pytest would keep it for three runs

    assert peak - before < 1.25 * size


class Nested(nn.Module):
    """Nested modules, whose values are inputs and outputs of several of them."""

    def __init__(self):
        super().__init__()
        inner = nn.Sequential(nn.Linear(256, 256), nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256)))
        # Returns two views of its input.
        self.body, self.halves = nn.Sequential(inner, nn.Identity()), module_of(lambda self, x: (x[:32], x[32:]))

    def forward(self, x):
        return self.halves(self.body(x).view(64, 16, 16))


def test_a_tensor_in_many_records_is_stored_once(tmp_path):
    """18 records contain four tensors of 64 KiB; views are not stored again."""
    model, x = Nested(), torch.randn(64, 256)

    with steal_forward(model, submodules=True, dump_file=tmp_path / "dump.onnx"):
        model(x)

    dump = restore(tmp_path / "dump.onnx")
    unique, held = 4 * x.nbytes, sum(dump.nbytes(key) for key in dump)
    assert len(dump) == 18
    assert held >= 4 * unique
    assert _bytes_in(tmp_path) < unique + 32 * 2**10
    assert torch.equal(torch.cat(dump["", 0, "O"]), torch.cat(model(x)))


@torch.no_grad()
def test_a_tensor_changed_in_place_is_stored_again(tmp_path):
    """Same memory and different values."""
    module, x, path = nn.Identity(), torch.zeros(4096), tmp_path / "dump.onnx"

    with steal_forward(("m", module), dump_file=path):
        for value in range(3):
            x.fill_(value)
            module(x)

    dump = restore(path)
    assert [dump["m", step, "O"][0].item() for step in range(3)] == [0, 1, 2]


HEAD = (1, 2, 2, 512)  # batch, heads, tokens of the prompt, features


class Decoding(nn.Module):
    """One decoding step: its cache grows by a token."""

    def forward(self, token, past_key_values):
        for layer in range(2):
            past_key_values.update(token + layer, token - layer, layer)
        return {"logits": token.sum(), "past_key_values": past_key_values}


def _decode(path, steps):
    """Write a dump of a decoding loop, and return the final cache."""
    module, cache = Decoding(), DynamicCache()
    for layer in range(2):
        cache.update(torch.rand(*HEAD), torch.rand(*HEAD), layer)
    with steal_forward(("m", module), dump_file=path):
        for _ in range(steps):
            cache = module(torch.rand(1, 2, 1, 512), past_key_values=cache)["past_key_values"]
    return cache


def _cache_bytes(value):
    return sum(tensor.nbytes for path, tensor in tensors(value).items() if ".layers[" in path)


def test_a_cache_that_is_output_and_next_input_is_stored_once(tmp_path):
    """Of 16 decoding steps, each input cache is the output cache of the previous step."""
    cache = _decode(tmp_path / "dump.onnx", 16)

    dump = restore(tmp_path / "dump.onnx")
    given = [_cache_bytes(dump["m", step, "O"]) for step in range(16)]
    first = _cache_bytes(dump["m", 0, "I"])
    assert given[-1] == _cache_bytes(cache)
    assert _bytes_in(tmp_path) < 1.1 * (first + sum(given))
    for step in range(1, 16):
        taken = tensors(dump["m", step, "I"][1]["past_key_values"])
        assert all(map(torch.equal, taken.values(), tensors(dump["m", step - 1, "O"]["past_key_values"]).values()))


def test_only_new_tokens_of_a_growing_cache_are_stored(tmp_path):
    """64 steps take about twice the space of 32 steps, not four times; every step is restored."""
    sizes = {}
    for steps in (32, 64):
        (tmp_path / str(steps)).mkdir()
        cache = _decode(tmp_path / str(steps) / "dump.onnx", steps)
        dump = restore(tmp_path / str(steps) / "dump.onnx")
        others = sum(dump.nbytes(key) - _cache_bytes(dump[key]) for key in dump)
        sizes[steps] = _bytes_in(tmp_path / str(steps)) - others

    assert sizes[64] < 2.6 * sizes[32]
    assert sizes[64] < 4 * _cache_bytes(cache) + 512 * 2**10  # of JSON, for 128 records
    for step in (0, 31, 63):
        for index, layer in enumerate(dump["m", step, "O"]["past_key_values"].layers):
            assert torch.equal(layer.keys, cache.layers[index].keys[:, :, : 2 + step + 1])
            assert torch.equal(layer.values, cache.layers[index].values[:, :, : 2 + step + 1])


def test_a_list_of_all_stages_of_a_cache_is_read_back(tmp_path):
    """In grown form it would be many times larger than the dump, which a reader refuses."""
    # Takes a list of tensors.
    # Appends one token.
    model = module_of(lambda self, cache: torch.cat([cache, torch.rand(1, 2, 1, 64)], 2))
    last, growing, stages = module_of(lambda self, stages: stages[-1].sum()), model, [torch.rand(1, 2, 3, 64)]

    with steal_forward([("last", last), ("growing", growing)], dump_file=tmp_path / "dump.onnx"):
        for _ in range(60):
            stages.append(growing(stages[-1]))
            last([*stages])

    dump = restore(tmp_path / "dump.onnx")
    for step in range(60):
        [found] = dump["last", step, "I"][0]
        assert all(map(torch.equal, found, stages[: step + 2]))

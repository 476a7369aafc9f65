"""Models of the zoo on every backend, by Filch's own plugin; `tests/expected_failures.toml` has what fails."""

import pytest

from support.models.zoo import exported
from support.thorough import slow


@slow
@pytest.mark.filch_backends("eager", "inductor", "onnxruntime-cpu", "openvino", "reference")
@pytest.mark.parametrize("name", ["llama", "resnet", "t5"])
def test_the_zoo_is_close_on_every_backend(filch, name):
    """Every node, with random weights, against eager PyTorch."""
    model, args, kwargs, program = exported(name)

    (report,) = filch.check(model, args, kwargs, program=program)

    assert sum(row.judged for row in report.rows) > 20  # of the kernels of a small ResNet

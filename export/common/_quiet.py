"""Keeps torch's exporters from talking."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

_TALKATIVE = ("torch.onnx", "torch.export", "torch._export", "torch.fx", "torch._dynamo", "onnxscript", "onnx_ir")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's progress, deprecations and notes to itself: what matters is in the error, if there is one."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

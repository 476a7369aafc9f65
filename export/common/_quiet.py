"""Suppress the output of torch's exporters."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

from filch.steal.private._torch import VERBOSE_LOGS

_VERBOSE = (*VERBOSE_LOGS, "onnxscript", "onnx_ir")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress torch's warnings, log records below errors, and output to stdout and stderr; exceptions still raise."""
    loggers = [logging.getLogger(name) for name in _VERBOSE]
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

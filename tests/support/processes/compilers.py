"""What a test needs that compiles C++."""

import os
import shutil

import pytest

CXX = os.environ.get("CXX") or "g++"  # where Inductor looks, too
needs_compiler = pytest.mark.skipif(
    shutil.which(CXX) is None, reason=f"Inductor needs a C++ compiler: there is no {CXX}"
)

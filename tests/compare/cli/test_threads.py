"""How torch's threads wait in a command."""

import os
import subprocess
import sys

_CODE = """
import sys
from filch.compare.__main__ import main
assert "torch" not in sys.modules  # which reads the variable when it is imported
sys.argv = ["filch", "--help"]
try:
    main()
except SystemExit:
    import torch
"""


def test_threads_of_a_command_do_not_wait_by_spinning():
    """They would keep each other from running where other processes need the processor, too."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}

    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        env=environment | {"OMP_DISPLAY_ENV": "TRUE"},  # the library says how its threads wait
        capture_output=True,
        text=True,
        check=True,
    )

    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr

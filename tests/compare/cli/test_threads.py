"""How torch's threads wait in a command."""

import os
import subprocess
import sys

import pytest

_ACTIVE = {"OMP_WAIT_POLICY": "ACTIVE"}
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


@pytest.mark.parametrize(("chosen", "count"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), (_ACTIVE, "30000000000")])
def test_threads_of_a_command_spin_for_a_short_time_unless_the_user_says_otherwise(chosen, count):
    """Longer, they would keep each other from running where other processes need the processor, too."""
    environment = {name: value for name, value in os.environ.items() if name not in {*_ACTIVE, "GOMP_SPINCOUNT"}}

    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        env=environment | chosen | {"OMP_DISPLAY_ENV": "VERBOSE"},  # the library says how its threads wait
        capture_output=True,
        text=True,
        check=True,
    )

    assert f"GOMP_SPINCOUNT = '{count}'" in done.stderr

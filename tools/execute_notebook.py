"""Execute a notebook of examples/ and store its outputs: `python tools/execute_notebook.py NOTEBOOK`.

It needs `pip install nbclient ipykernel`, and Filch.
"""

import sys
import sysconfig
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

_SECONDS = 300  # for a cell


def main() -> None:
    """Execute the notebook in a temporary folder, and overwrite it."""
    path = Path(sys.argv[1])
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=_SECONDS, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times of the run
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.output_type != "stream"]
    installed = f"{sysconfig.get_path('purelib')}/"
    path.write_text(nbformat.writes(notebook).replace(installed, "site-packages/") + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""Run the notebooks from top to bottom, and keep what they print and draw: `make notebooks`.

    python docs/notebooks/run.py [NAME ...]

Warnings in them are errors. Needs nbclient and ipykernel, which the extra `docs` brings.
"""

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def run(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    strict = nbformat.v4.new_code_cell("import warnings\nwarnings.simplefilter('error')")
    lenient = nbformat.v4.new_code_cell("warnings.simplefilter('default')")  # the kernel's own, when it is shut down
    notebook.cells = [strict, *notebook.cells, lenient]
    NotebookClient(notebook, timeout=1200, kernel_name="python3", record_timing=False).execute()
    notebook.cells = notebook.cells[1:-1]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # the same at every run
        cell.metadata = nbformat.from_dict({})
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, start=1):
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
    nbformat.write(notebook, path)


def main() -> None:
    names = sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    for name in names:
        begin = time.perf_counter()
        run(FOLDER / f"{name}.ipynb")
        print(f"{name}: {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()

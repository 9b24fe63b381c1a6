"""The notebooks are stored without results, define nothing, run from top to bottom, and show pictures."""

import ast
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SECONDS = 120

each_notebook = pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[AsyncKernelManager]:
    """A kernel that is this interpreter, whatever kernels the user has, and leaves the user's folders alone.

    Without folders to look in, jupyter_client makes the specification of "python3" from `sys.executable`.
    Sockets are files: ports are chosen before they are opened, and a test in another process could take them
    in between. Their folder is not `tmp_path`, whose name may be too long for a socket.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            monkeypatch.setenv(name, folder)
        yield AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
            transport="ipc",
            connection_file=os.path.join(folder, "k.json"),
        )


def test_there_are_notebooks() -> None:
    assert sorted(FOLDER.glob("*.ipynb"))


@each_notebook
def test_notebook_is_stored_without_results(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata == METADATA
    for cell in notebook.cells:
        assert cell.metadata == {}
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    # As nbformat writes it, so that a change of one cell is a change of few lines.
    assert text == nbformat.writes(notebook) + "\n"


@each_notebook
def test_notebook_defines_nothing(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            source = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
            defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            assert not any(isinstance(node, defined) for node in ast.walk(ast.parse(source)))


@each_notebook
def test_notebook_runs_and_shows_pictures(path: Path, kernel: AsyncKernelManager, tmp_path: Path) -> None:
    assert kernel.kernel_spec.argv[0] == sys.executable
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, km=kernel, timeout=SECONDS, resources=place).execute(cleanup_kc=True)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    # A reader runs it in the folder of the notebooks, which must stay as it is.
    assert list(tmp_path.iterdir()) == []

"""Run all cells of a notebook and print their output. A cell that fails ends the run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

if TYPE_CHECKING:
    from nbformat import NotebookNode


def text(output: NotebookNode) -> str:
    """The text form of a cell's output."""
    if output.output_type == "stream":
        return str(output.text) if output.name == "stdout" else ""
    return str(output.get("data", {}).get("text/plain", ""))


def show(cell: NotebookNode, cell_index: int, execute_reply: dict[str, Any]) -> None:  # noqa: ARG001 (nbclient's names)
    """Print a cell and its output."""
    if execute_reply["content"]["status"] != "ok":
        return
    print("\n".join(f">>> {line}" for line in cell.source.splitlines()))
    outputs = [output.rstrip() for output in map(text, cell.outputs) if output.strip()]
    print("\n".join(outputs), end="\n\n" if outputs else "\n", flush=True)


def main(path: str) -> None:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],  # print the output of the notebook only
        timeout=600,
        resources={"metadata": {"path": str(Path(path).parent)}},
        on_cell_executed=show,
    )
    try:
        client.execute()
    except CellExecutionError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1])

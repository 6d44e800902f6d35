"""Outputs in the form that is saved, and the comparison of two runs of a notebook."""

from __future__ import annotations

import re

from nbformat import NotebookNode

__all__ = ["ACCOUNT", "MEASURED", "VARIES", "clean", "difference", "take_over"]

ACCOUNT = "mock-account"
"""Tag in the metadata of a notebook whose cells send requests to AWS."""
VARIES = "varies"
"""Tag of a cell whose numbers differ from run to run: seconds measured on this machine, names with the time."""
MEASURED = "measured"
"""Tag of a cell whose texts depend on the machine's speed: only the forms of its outputs are compared."""
SHOWN = ("image/png", "image/svg+xml", "text/html", "text/latex", "text/markdown", "text/plain")
"""Forms of an output that a page without a kernel shows. A widget's view needs its kernel, and its state is large."""
_KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def clean(notebook: NotebookNode) -> None:
    """Leave what every run of the notebook repeats, and what a page without a kernel shows.

    Where the SDK of SageMaker runs, its log is left out: it names folders of this machine.
    """
    tags = notebook.metadata.get("tags", [])
    notebook.metadata = NotebookNode(kernelspec=_KERNEL, language_info={"name": "python"})
    if tags:
        notebook.metadata["tags"] = tags
    for cell in notebook.cells:
        kept = cell.metadata.get("tags")
        cell.metadata = NotebookNode({"tags": kept} if kept else {})
        if cell.cell_type == "code":
            outputs = _without_log(cell.outputs) if ACCOUNT in tags else cell.outputs
            cell.outputs = [output for output in map(_cleaned, _joined(outputs)) if output]
    _number_reports(notebook)


def _without_log(outputs: list[NotebookNode]) -> list[NotebookNode]:
    for output in outputs:
        if "text" in output:
            output.text = re.sub(r"^sagemaker\.config INFO.*\n", "", output.text, flags=re.MULTILINE)
    return [output for output in outputs if output.get("name") != "stderr" and output.get("text") != ""]


def _number_reports(notebook: NotebookNode) -> None:
    """Replace the random identifiers of reports, by which their view finds them in a page."""
    numbers: dict[str, str] = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if html := output.get("data", {}).get("text/html"):
                output.data["text/html"] = re.sub(
                    r"\bsmp-[0-9a-f]{12}\b", lambda match: numbers.setdefault(match[0], f"smp-{len(numbers)}"), html
                )


def _cleaned(output: NotebookNode) -> NotebookNode | None:
    """An output in the forms that are saved, or None if there is none."""
    output.pop("transient", None)
    if "data" not in output:
        return output
    output.data = NotebookNode({form: output.data[form] for form in SHOWN if form in output.data})
    output.metadata = NotebookNode()
    return output if output.data else None


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Outputs in which the pieces of one stream, which arrive by chance, are one text."""
    joined: list[NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def difference(saved: NotebookNode, fresh: NotebookNode) -> str:
    """The first difference of two runs of one notebook, as a sentence; empty if there is none."""
    if len(saved.cells) != len(fresh.cells):
        return f"{len(saved.cells)} cells are saved, {len(fresh.cells)} were run."
    for before, now in zip(saved.cells, fresh.cells, strict=True):
        if _compared(before) != _compared(now):
            return f"Cell {now.id} differs.\nSaved: {_texts(before)}\nFresh: {_texts(now)}"
    return ""


def take_over(saved: NotebookNode, fresh: NotebookNode) -> None:
    """Keep the saved outputs of cells that repeat them but for numbers that vary: a file changes for a reason."""
    outputs = {cell.id: cell for cell in saved.cells}
    for cell in fresh.cells:
        before = outputs.get(cell.id)
        if before is not None and _compared(before) == _compared(cell) and cell.cell_type == "code":
            cell.outputs = before.outputs


def _compared(cell: NotebookNode) -> tuple[str, object]:
    """Source and outputs of a cell, as they are compared."""
    if cell.cell_type != "code":
        return cell.source, None
    outputs = _texts(cell)
    if MEASURED in cell.metadata.get("tags", []):
        return cell.source, [sorted(output) for output in outputs]
    return cell.source, _masked(outputs) if VARIES in cell.metadata.get("tags", []) else outputs


def _texts(cell: NotebookNode) -> list[dict[str, str]]:
    return [{output.name: output.text} if "text" in output else dict(output.get("data", {})) for output in cell.outputs]


def _masked(outputs: list[dict[str, str]]) -> list[dict[str, str]]:
    """Texts without numbers, and without the parameter whose rounding errors are largest, which depends on the CPU."""
    numbers, parameter = r"\d[\d.,]*(?:e[-+]\d+)?", r"(?<=largest relative difference #) \([^)]*\)"
    return [
        {form: re.sub(parameter, "", re.sub(numbers, "#", text)) for form, text in output.items()} for output in outputs
    ]

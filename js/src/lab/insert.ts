import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';

/** Event of the advisor's view; `detail.sources` are the cells to insert, in order. */
export const INSERT_EVENT = 'smp-advisor:insert-cell';

interface IPlace {
  panel: NotebookPanel;
  index: number;
}

/** Notebook and index of the cell that contains `node`; null outside of a notebook, such as in a tab of an output. */
export function locate(tracker: INotebookTracker, node: Node): IPlace | null {
  let place: IPlace | null = null;
  tracker.forEach(panel => {
    if (place !== null || !panel.content.node.contains(node)) return;
    const index = panel.content.widgets.findIndex(cell => cell.node.contains(node));
    if (index >= 0) place = { panel, index };
  });
  return place;
}

/** Insert code cells below a cell in order, and activate the last of them. */
export function insertBelow({ panel, index }: IPlace, sources: string[]): void {
  const notebook = panel.content;
  notebook.activeCellIndex = index;
  for (const source of sources) {
    NotebookActions.insertBelow(notebook);
    // Through the shared model, so that the change can be undone and collaborators see it.
    notebook.activeCell?.model.sharedModel.setSource(source);
  }
  notebook.mode = 'command';
  const first = notebook.widgets[index + 1];
  if (first) void notebook.scrollToCell(first, 'smart');
}

/** Insert the cells that advisors in `tracker`'s notebooks request, until disposed. */
export function answerInsertions(tracker: INotebookTracker): IDisposable {
  const answer = (event: Event): void => {
    const sources: unknown = (event as CustomEvent<{ sources?: unknown } | null>).detail?.sources;
    const origin = event.composedPath()[0];
    if (!isTexts(sources) || !(origin instanceof Node)) return;
    const place = locate(tracker, origin);
    if (place === null) return;
    insertBelow(place, sources);
    // The view then does not use the clipboard instead.
    event.preventDefault();
  };
  document.addEventListener(INSERT_EVENT, answer);
  return new DisposableDelegate(() => document.removeEventListener(INSERT_EVENT, answer));
}

function isTexts(value: unknown): value is string[] {
  return Array.isArray(value) && value.length > 0 && value.every(item => typeof item === 'string');
}

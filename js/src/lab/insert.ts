import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';

/** What the advisor's view dispatches; `detail.sources` are the cells to insert, in order. */
export const INSERT_EVENT = 'smp-advisor:insert-cell';

interface IPlace {
  panel: NotebookPanel;
  index: number;
}

/** The notebook and the index of the cell that contains `node`; null outside of a notebook, as in an output's own tab. */
export function locate(tracker: INotebookTracker, node: Node): IPlace | null {
  let found: IPlace | null = null;
  tracker.forEach(panel => {
    if (found !== null || !panel.content.node.contains(node)) return;
    const index = panel.content.widgets.findIndex(cell => cell.node.contains(node));
    if (index >= 0) found = { panel, index };
  });
  return found;
}

/** Insert code cells below a cell, each below the one before, and leave the last of them active. */
export function insertBelow({ panel, index }: IPlace, sources: string[]): void {
  const notebook = panel.content;
  notebook.activeCellIndex = index;
  for (const source of sources) {
    NotebookActions.insertBelow(notebook);
    // Through the shared model: the change can be undone, and people who edit together see it.
    notebook.activeCell?.model.sharedModel.setSource(source);
  }
  notebook.mode = 'command';
  const first = notebook.widgets[index + 1];
  if (first) void notebook.scrollToCell(first, 'smart');
}

/** Insert what advisors in `tracker`'s notebooks ask for, until disposed. */
export function answerInsertions(tracker: INotebookTracker): IDisposable {
  const answer = (event: Event): void => {
    const sources: unknown = (event as CustomEvent<{ sources?: unknown } | null>).detail?.sources;
    const origin = event.composedPath()[0];
    if (!isTexts(sources) || !(origin instanceof Node)) return;
    const place = locate(tracker, origin);
    if (place === null) return;
    insertBelow(place, sources);
    // Tells the view that it need not fall back on the clipboard.
    event.preventDefault();
  };
  document.addEventListener(INSERT_EVENT, answer);
  return new DisposableDelegate(() => document.removeEventListener(INSERT_EVENT, answer));
}

function isTexts(value: unknown): value is string[] {
  return Array.isArray(value) && value.length > 0 && value.every(item => typeof item === 'string');
}

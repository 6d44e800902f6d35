import type { Cell } from '@jupyterlab/cells';
import { Notebook, NotebookActions } from '@jupyterlab/notebook';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import type { Insertion, Outcome } from '../events';
import { ICell, IOwned, Owner, OWNED, ownedBy, ownedOf, plannedChange } from './ownership';

/** Longer scripts are inserted with their input collapsed: nobody reads a training script to find the estimator. */
const COLLAPSED_LINES = 40;
const SCRIPT = /^%%writefile /;

/** Insert cells below a cell, or update those that the same owner inserted before, and show the first of them. */
export function insert(notebook: Notebook, index: number, owner: Owner, insertion: Insertion): Outcome {
  const { outcome, targets, released } = plannedChange(notebook.widgets.map(described), owner, insertion);
  if (outcome === 'edited') return outcome;
  for (const cell of released) notebook.widgets[cell]!.model.deleteMetadata(OWNED);
  const before = targets.map(target => notebook.widgets[target]);
  let above = index;
  let first = -1;
  insertion.sources.forEach((source, part) => {
    const present = before[part];
    const cell = present ?? insertBelow(notebook, above);
    above = notebook.widgets.indexOf(cell);
    write(cell, source, ownedBy(owner, insertion, part));
    if (!present && SCRIPT.test(source) && source.split('\n').length > COLLAPSED_LINES) collapse(cell);
    if (part === 0) first = above;
  });
  notebook.activeCellIndex = first;
  notebook.mode = 'command';
  void notebook.scrollToCell(notebook.widgets[first]!, 'start');
  return outcome;
}

function described({ model }: Cell): ICell {
  return { source: model.sharedModel.getSource(), owned: ownedOf(model.getMetadata(OWNED)) };
}

function insertBelow(notebook: Notebook, index: number): Cell {
  notebook.activeCellIndex = index;
  NotebookActions.insertBelow(notebook);
  return notebook.widgets[index + 1]!;
}

/** Through the shared model, so that the change can be undone and collaborators see it. */
function write({ model }: Cell, source: string, owned: IOwned): void {
  if (model.sharedModel.getSource() !== source) model.sharedModel.setSource(source);
  model.setMetadata(OWNED, owned as unknown as ReadonlyPartialJSONObject);
}

function collapse(cell: Cell): void {
  cell.inputHidden = true;
  cell.saveCollapseState();
}

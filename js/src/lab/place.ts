import type { ICodeCellModel } from '@jupyterlab/cells';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { ADVISOR_MIME, advisorAt } from './renderer';

/** A notebook's cell with the output of an advisor. */
export interface IPlace {
  panel: NotebookPanel;
  index: number;
  /** Widget model of the advisor; empty if unknown. */
  model: string;
}

/** The cell of the view that contains `node`, also if the output is shown in a tab of its own; null without a notebook. */
export function locate(tracker: INotebookTracker, node: Node): IPlace | null {
  const advisor = advisorAt(node);
  let place: IPlace | null = null;
  tracker.forEach(panel => {
    if (place !== null || panel.isDisposed) return;
    let index = panel.content.widgets.findIndex(cell => cell.node.contains(node));
    if (index < 0 && advisor?.panel === panel) index = cellWith(panel, advisor.model);
    if (index >= 0) place = { panel, index, model: advisor?.model ?? '' };
  });
  return place;
}

/** Index of the cell that shows an advisor; -1 without one. */
export function cellWith(panel: NotebookPanel, model: string): number {
  return panel.content.widgets.findIndex(cell => modelsOf(cell.model as ICodeCellModel).includes(model));
}

function modelsOf({ type, outputs }: ICodeCellModel): string[] {
  if (type !== 'code') return [];
  const bundles = Array.from({ length: outputs.length }, (_, index) => outputs.get(index).data[ADVISOR_MIME]);
  return bundles.flatMap(data => {
    const model = (data as { model_id?: unknown } | undefined)?.model_id;
    return typeof model === 'string' ? [model] : [];
  });
}

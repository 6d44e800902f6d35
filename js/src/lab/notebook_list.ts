import type { ICodeCellModel } from '@jupyterlab/cells';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { isEdited, OWNED, ownedOf } from './ownership';
import { ADVISOR_MIME } from './renderer';

/** Between a change of the notebook and the new list: typing changes it with every key. */
const DELAY_MS = 400;

/** The advisors and their inserted cells in the active notebook, in order; a click shows the cell. */
export class NotebookList {
  readonly node = document.createElement('section');
  private readonly title = document.createElement('h3');
  private readonly list = document.createElement('ol');
  private panel: NotebookPanel | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly onChange = (): void => {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.draw(), DELAY_MS);
  };
  private readonly follow = (): void => {
    this.panel?.model?.contentChanged.disconnect(this.onChange);
    this.panel = this.tracker.currentWidget;
    this.draw();
    const panel = this.panel;
    // A notebook that is being opened has its model later.
    void panel?.context.ready.then(() => {
      if (panel !== this.panel || panel.isDisposed) return;
      panel.model?.contentChanged.connect(this.onChange);
      this.draw();
    });
  };

  constructor(
    private readonly tracker: INotebookTracker,
    private readonly trans: TranslationBundle
  ) {
    this.node.append(this.title, this.list);
    tracker.currentChanged.connect(this.follow);
    this.follow();
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.tracker.currentChanged.disconnect(this.follow);
    this.panel?.model?.contentChanged.disconnect(this.onChange);
  }

  private draw(): void {
    const entries = this.panel === null || this.panel.isDisposed ? [] : this.entries(this.panel);
    this.title.textContent = this.panel?.title.label ?? '';
    this.list.replaceChildren(...(entries.length > 0 ? entries : [this.nothing()]));
  }

  private entries(panel: NotebookPanel): HTMLElement[] {
    return panel.content.widgets.flatMap((cell, index) => {
      const text = summaryOf(cell.model as ICodeCellModel) || this.inserted(cell.model as ICodeCellModel);
      if (!text) return [];
      const item = document.createElement('li');
      const button = document.createElement('button');
      button.type = 'button';
      button.className = 'jp-mod-styled jp-mod-minimal';
      button.textContent = text;
      button.addEventListener('click', () => void panel.content.scrollToCell(panel.content.widgets[index]!, 'start'));
      item.append(button);
      return [item];
    });
  }

  /** Title of a cell that the advisor inserted; empty for other cells. */
  private inserted(model: ICodeCellModel): string {
    const owned = ownedOf(model.getMetadata(OWNED));
    if (owned === null) return '';
    const source = model.sharedModel.getSource();
    const edited = isEdited({ source, owned }) ? ` (${this.trans.__('edited')})` : '';
    const [first = ''] = source.split('\n');
    return `${this.trans.__('Inserted:')} ${first}${edited}`;
  }

  private nothing(): HTMLLIElement {
    const item = document.createElement('li');
    item.textContent = this.panel === null ? this.trans.__('No notebook is open.') : this.trans.__('No recommendations yet.');
    return item;
  }
}

/** First line of an advisor's output as text; empty if the cell shows none. */
function summaryOf({ type, outputs }: ICodeCellModel): string {
  if (type !== 'code') return '';
  for (let index = 0; index < outputs.length; index++) {
    const { data } = outputs.get(index);
    if (ADVISOR_MIME in data) return String(data['text/plain'] ?? '').split('\n')[0]!;
  }
  return '';
}

import { Delivery } from './delivery';
import { button, disclosure, element, headerCell, keepKeys, setText } from './dom';
import { findingGroups, unresolvedDetails } from './findings';
import type { Panel } from './panel';
import type { FromKernel, Pasted, PastedComparison } from './wire';

const LONGEST = 200_000;

/** Panel that checks a pasted cell: its plan, its findings, and a comparison with the plan on screen. */
export class Paste implements Panel {
  readonly node: HTMLElement;
  private readonly text = keepKeys(element('textarea', 'smp-paste'));
  private readonly summary = element('p', 'smp-note');
  private readonly result = element('div', 'smp-findings');
  private requests = 0;

  /**
   * @param view Unique name of the view, because answers go to every view of the model.
   * @param request Sends a request to the kernel, which reads the text and never runs it.
   */
  constructor(
    private readonly view: string,
    private readonly request: (request: { kind: 'paste'; id: string; text: string }, fail: (text: string) => void) => void
  ) {
    this.text.rows = 8;
    this.text.maxLength = LONGEST;
    this.text.spellcheck = false;
    this.text.placeholder = 'estimator = PyTorch(…, distribution={"smdistributed": {"modelparallel": …}})';
    this.text.addEventListener('keydown', event => {
      // The notebook's keys for running a cell check this one. Tab leaves the field, as in any form.
      if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey || event.shiftKey)) return;
      event.preventDefault();
      event.stopPropagation();
      this.check();
    });
    this.summary.setAttribute('role', 'status');
    const hint = element('p', '', INTRODUCTION);
    hint.id = `${view}-paste-hint`;
    this.text.setAttribute('aria-describedby', hint.id);
    this.node = disclosure(
      'smp-section',
      ['Check an existing cell'],
      hint,
      element('label', 'smp-paste-label', element('span', '', 'Cell, dictionary, recipe or request'), this.text),
      element('div', 'smp-check-row', button('smp-button', 'Check the cell', () => this.check())),
      this.summary,
      this.result
    );
  }

  draw(): void {
    // Only the user's requests change it.
  }

  onMessage(message: FromKernel): void {
    if (message.kind !== 'pasted' || message.id !== this.id()) return;
    setText(this.summary, message.summary);
    this.result.replaceChildren(
      ...message.read.map(line => element('p', 'smp-read', line)),
      ...findingGroups(message.findings),
      ...corrections(message),
      ...(message.comparison ? [comparison(message.comparison)] : []),
      ...unresolvedDetails(message.unresolved)
    );
  }

  private check(): void {
    this.requests += 1;
    this.result.replaceChildren();
    setText(this.summary, 'Reading …');
    this.request({ kind: 'paste', id: this.id(), text: this.text.value }, text => setText(this.summary, text));
  }

  private id(): string {
    return `${this.view}-paste-${this.requests}`;
  }
}

function corrections({ diff, corrected }: Pasted): HTMLElement[] {
  if (diff === '') return [];
  const code = element('pre', 'smp-pre', diff);
  code.tabIndex = 0;
  const status = element('span', 'smp-status');
  status.setAttribute('role', 'status');
  const actions = element('div', 'smp-check-row');
  const delivery = new Delivery(status);
  const insert = button('smp-button', 'Insert corrected cell', () => {
    void delivery.deliver({ sources: [corrected], what: 'corrected', plan: '', mode: 'update' });
  });
  actions.append(insert, button('smp-button', 'Copy corrected cell', () => void delivery.copy([corrected])), status, delivery.offers);
  const shown = disclosure('smp-section', ['Corrections'], keepKeys(code), actions);
  shown.open = true;
  return [shown];
}

function comparison({ gain, rows }: PastedComparison): HTMLElement {
  const table = element('table', 'smp-table smp-reasons');
  const head = element('tr', '', ...['Setting', 'Yours', 'On screen', 'Effect'].map(text => headerCell(text, 'col')));
  table.append(element('thead', '', head));
  const lines = rows.map(([setting, ...cells]) =>
    element('tr', '', headerCell(setting, 'row'), ...cells.map(text => element('td', '', text)))
  );
  table.append(element('tbody', '', ...lines));
  const shown = disclosure(
    'smp-section',
    ['Your plan compared with the plan on screen'],
    element('p', '', gain),
    rows.length > 0 && element('div', 'smp-scroll', table)
  );
  shown.open = true;
  return shown;
}

const INTRODUCTION =
  'An estimator or ModelTrainer cell, its distribution or parameters, a HyperPod recipe or a CreateTrainingJob request. ' +
  'The kernel reads it and never runs it. Press Ctrl+Enter to check.';

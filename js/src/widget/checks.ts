import type { Insertion } from '../events';
import type { Connection } from './connection';
import { Delivery } from './delivery';
import { button, disclosure, element, keepKeys, setText } from './dom';
import { copy, hasExtension, openPlace } from './insert';
import type { Panel } from './panel';
import type { FromKernel } from './wire';

const LONGEST = 200_000;

/** A field whose text the kernel checks. */
interface Source {
  kind: 'check' | 'paste';
  title: string;
  hint: string;
  label: string;
  placeholder: string;
  action: string;
}

/** Check of a training script by its path. */
export const SCRIPT: Source = {
  kind: 'check',
  title: 'Check your training script',
  hint: 'The kernel reads the file and never runs it. Paths are relative to the notebook.',
  label: 'Script',
  placeholder: 'train.py',
  action: 'Check script'
};

/** Check of a job's cell, by its text. */
export const CELL: Source = {
  kind: 'paste',
  title: 'Check an existing cell',
  hint: 'An estimator or ModelTrainer cell, its distribution or parameters, a HyperPod recipe or a CreateTrainingJob request. The kernel reads it and never runs it. Press Ctrl+Enter to check.',
  label: 'Cell, dictionary, recipe or request',
  placeholder: 'estimator = PyTorch(…, distribution={"smdistributed": {"modelparallel": {…}}})',
  action: 'Check the cell'
};

/**
 * A check from the page. The kernel answers with the page of its report, in which it escapes every text; this panel adds
 * the buttons that copy a text and open a place, and inserts a corrected cell.
 */
export class Checker implements Panel {
  readonly node: HTMLElement;
  private readonly field: HTMLInputElement | HTMLTextAreaElement;
  private readonly status = keepKeys(element('p', 'smp-note'));
  private readonly report = element('div', 'smp-findings');
  private readonly delivery = new Delivery(this.status);
  private requests = 0;

  /** @param view Unique name of the view, because answers go to every view of the model. */
  constructor(
    private readonly source: Source,
    private readonly view: string,
    private readonly connection: Connection
  ) {
    const isLong = source.kind === 'paste';
    this.field = keepKeys(element(isLong ? 'textarea' : 'input', isLong ? 'smp-paste' : 'smp-path'));
    this.field.maxLength = LONGEST;
    this.field.spellcheck = false;
    this.field.placeholder = source.placeholder;
    this.field.addEventListener('keydown', event => {
      const { key, ctrlKey, metaKey, shiftKey } = event as KeyboardEvent;
      // The notebook's keys for running a cell check this one.
      if (key !== 'Enter' || (isLong && !(ctrlKey || metaKey || shiftKey))) return;
      event.preventDefault();
      event.stopPropagation();
      this.check();
    });
    this.status.setAttribute('role', 'status');
    this.status.tabIndex = -1;
    const row = element('div', 'smp-check-row', button('smp-button', source.action, () => this.check()), this.delivery.offers);
    const label = element('label', isLong ? 'smp-paste-label' : 'smp-path-label', element('span', '', source.label), this.field);
    this.node = disclosure('smp-section', [source.title], element('p', '', source.hint), label, row, this.status, this.report);
  }

  draw(): void {
    // Only the user's requests change it.
  }

  onMessage(message: FromKernel): void {
    if (message.kind !== 'checked' || message.id !== this.id()) return;
    setText(this.status, message.summary);
    this.report.innerHTML = message.html;
    this.report.querySelectorAll('summary').forEach(keepKeys);
    this.report.querySelectorAll<HTMLElement>('[data-smp-copy]').forEach(slot => this.fill(slot));
    const { corrected } = message;
    if (!corrected) return;
    const insertion: Insertion = { sources: [corrected], what: 'corrected', plan: '', mode: 'update' };
    this.report.prepend(element('div', 'smp-check-row', button('smp-button', 'Insert corrected cell', () => void this.delivery.deliver(insertion))));
  }

  private check(): void {
    this.report.replaceChildren();
    setText(this.status, 'Reading …');
    this.send({ kind: this.source.kind, text: this.field.value });
  }

  /** Buttons for a text of the report: copy it and, if it is a place, open it. */
  private fill(slot: HTMLElement): void {
    const { smpCopy: what = '', smpOf: of = '' } = slot.dataset;
    const text = slot.parentElement!.querySelector(`[data-smp-text="${what}"]`)?.textContent ?? '';
    slot.append(named('smp-button smp-small', `Copy ${what}`, `Copy ${what} of ${of}`, () => void this.copy(what, of, text)));
    const [, path = '', line = '', column = '1'] = /^(.*?):(\d+)(?::(\d+))?$/.exec(text) ?? [];
    if (what !== 'place' || !path || !hasExtension()) return;
    const open = named('smp-button smp-small', 'Open', `Open ${text}`, () => {
      const isOpen = openPlace(open, { path, line: Number(line), column: Number(column) });
      setText(this.status, isOpen ? '' : 'This file is outside of the folder of JupyterLab.');
    });
    slot.append(' ', open);
  }

  private async copy(what: string, of: string, text: string): Promise<void> {
    setText(this.status, (await copy(text)) ? `Copied the ${what} of ${of}.` : 'The clipboard is not available. Select the text.');
  }

  private send(request: { kind: string } & Record<string, unknown>): void {
    this.requests += 1;
    this.connection.request({ ...request, id: this.id() }, text => setText(this.status, text));
  }

  private id(): string {
    return `${this.view}-${this.source.kind}-${this.requests}`;
  }
}

function named(style: string, text: string, label: string, action: () => void): HTMLButtonElement {
  const made = button(style, text, action);
  made.setAttribute('aria-label', label);
  return made;
}

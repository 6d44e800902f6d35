import { button, disclosure, element, keepKeys, setText, sourceLink } from './dom';
import type { CheckedFinding, FromKernel } from './wire';

/** Have the kernel read a training script against the plan on screen, and list what it finds. */
export class Checker {
  readonly node: HTMLElement;
  private readonly path = keepKeys(element('input', 'smp-path'));
  private readonly summary = element('p', 'smp-note');
  private readonly list = element('div', 'smp-findings');
  private asked = 0;

  /**
   * @param view Name that no other view has: answers go to every view of the model.
   * @param send Hands a request to the kernel; the plan is that of the last settings it knows.
   */
  constructor(
    private readonly view: string,
    private readonly send: (request: { kind: 'check'; id: string; path: string }) => void
  ) {
    this.path.type = 'text';
    this.path.placeholder = 'train.py';
    this.path.spellcheck = false;
    this.path.addEventListener('keydown', event => {
      if (event.key === 'Enter') this.ask();
    });
    this.summary.setAttribute('role', 'status');
    this.node = disclosure(
      'smp-section',
      ['Check your training script'],
      element('p', '', 'The kernel reads the file and never runs it. Paths count from the notebook.'),
      element(
        'div',
        'smp-check-row',
        element('label', 'smp-path-label', 'Script ', this.path),
        button('smp-button', 'Check script', () => this.ask())
      ),
      this.summary,
      this.list
    );
  }

  onMessage(message: FromKernel): void {
    if (message.kind !== 'checked' || message.id !== this.id()) return;
    setText(this.summary, message.summary);
    this.list.replaceChildren(...message.findings.map(findingDetails), ...unresolvedDetails(message.unresolved));
  }

  private ask(): void {
    this.asked += 1;
    this.list.replaceChildren();
    setText(this.summary, 'Reading …');
    this.send({ kind: 'check', id: this.id(), path: this.path.value });
  }

  private id(): string {
    return `${this.view}-check-${this.asked}`;
  }
}

function findingDetails(finding: CheckedFinding): HTMLElement {
  const kind = { error: 'never', warning: 'mark', info: 'no' }[finding.severity];
  const code = element('pre', 'smp-pre', `${finding.text}\n${' '.repeat(Math.max(0, finding.column - 1))}^`);
  code.tabIndex = 0;
  return disclosure(
    'smp-section',
    [element('span', `smp-badge smp-badge-${kind}`, finding.severity), ` ${finding.place} ${finding.message} (${finding.id})`],
    keepKeys(code),
    element('p', '', finding.consequence),
    element('p', '', element('span', 'smp-lead', 'Instead: '), finding.remedy),
    sourceLink(finding.source_url, finding.source_title)
  );
}

function unresolvedDetails(unresolved: string[]): HTMLElement[] {
  if (unresolved.length === 0) return [];
  const items = unresolved.map(text => element('li', '', text));
  return [disclosure('smp-section', [`What could not be followed (${items.length})`], element('ul', 'smp-list', ...items))];
}

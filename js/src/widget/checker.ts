import { button, disclosure, element, keepKeys, setText } from './dom';
import { findingGroups, fixDetails, unresolvedDetails } from './findings';
import type { Panel } from './panel';
import type { CheckedFinding, FixedTogether, FromKernel } from './wire';

/** Request to the kernel: check a script, or write a reviewed fix, whose change is `diff`. */
export type CheckRequest =
  | { kind: 'check'; id: string; path: string }
  | { kind: 'fix'; id: string; path: string; place: string; check: string; column: number; diff: string; in_place: boolean };

/** Panel that checks a training script against the plan on screen, lists the findings, and writes fixes. */
export class Checker implements Panel {
  readonly node: HTMLElement;
  private readonly path = keepKeys(element('input', 'smp-path'));
  private readonly summary = keepKeys(element('p', 'smp-note'));
  private readonly list = element('div', 'smp-findings');
  private requests = 0;
  private checked = '';

  /**
   * @param view Unique name of the view, because answers go to every view of the model.
   * @param request Sends a request to the kernel, which uses the plan of the last settings that it has received.
   */
  constructor(
    private readonly view: string,
    private readonly request: (request: CheckRequest, fail: (text: string) => void) => void
  ) {
    this.path.type = 'text';
    this.path.placeholder = 'train.py';
    this.path.spellcheck = false;
    this.path.addEventListener('keydown', event => {
      if (event.key === 'Enter') this.check();
    });
    this.summary.setAttribute('role', 'status');
    this.summary.tabIndex = -1;
    this.node = disclosure(
      'smp-section',
      ['Check your training script'],
      element('p', '', 'The kernel reads the file and never runs it. Paths are relative to the notebook.'),
      element(
        'div',
        'smp-check-row',
        element('label', 'smp-path-label', 'Script ', this.path),
        button('smp-button', 'Check script', () => this.check())
      ),
      this.summary,
      this.list
    );
  }

  draw(): void {
    // Only the user's requests change it.
  }

  onMessage(message: FromKernel): void {
    if (message.kind !== 'checked' || message.id !== this.id()) return;
    setText(this.summary, message.summary);
    this.list.replaceChildren(
      ...together(message.together, fix => this.write(fix.inPlace, fix.diff)),
      ...findingGroups(message.findings, finding => ({
        diff: finding.fix?.diff ?? '',
        apply: inPlace => this.write(inPlace, finding.fix?.diff ?? '', finding)
      })),
      ...unresolvedDetails(message.unresolved)
    );
  }

  private check(): void {
    this.checked = this.path.value;
    this.list.replaceChildren();
    setText(this.summary, 'Reading …');
    this.send({ kind: 'check', id: this.next(), path: this.checked });
  }

  private write(inPlace: boolean, diff: string, finding?: CheckedFinding): void {
    setText(this.summary, 'Writing …');
    // The answer replaces the buttons, so the focus moves to the summary.
    this.summary.focus();
    const { place = '', id: check = '', column = 0 } = finding ?? {};
    this.send({ kind: 'fix', id: this.next(), path: this.checked, place, check, column, diff, in_place: inPlace });
  }

  private send(request: CheckRequest): void {
    this.request(request, text => setText(this.summary, text));
  }

  private next(): string {
    this.requests += 1;
    return this.id();
  }

  private id(): string {
    return `${this.view}-check-${this.requests}`;
  }
}

function together(
  fixes: FixedTogether | null | undefined,
  write: (fix: { inPlace: boolean; diff: string }) => void
): HTMLElement[] {
  if (!fixes) return [];
  const { diff } = fixes;
  return [fixDetails(fixes.title, 'all findings', { diff, apply: inPlace => write({ inPlace, diff }) })];
}

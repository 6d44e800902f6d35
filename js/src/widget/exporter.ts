import { button, disclosure, element, setText } from './dom';
import { copy, insertCells } from './insert';
import { same } from './look_ahead';
import type { Session } from './session';
import type { FromKernel } from './wire';

const PREVIEW_DELAY_MS = 200;

/** The buttons that carry the plan out of the widget, and the code they carry. */
export class Exporter {
  readonly actions: HTMLElement;
  readonly preview: HTMLDetailsElement;
  private readonly status = element('span', 'smp-status');
  private readonly code = element('div', 'smp-code');
  private inserting = '';
  private copying = '';
  private previewing = '';
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly session: Session) {
    this.status.setAttribute('role', 'status');
    const insert = button('smp-button smp-primary', 'Insert estimator cell', () => {
      setText(this.status, ASKING);
      this.inserting = session.requestCells();
    });
    const clipboard = button('smp-button', 'Copy code', () => {
      setText(this.status, ASKING);
      this.copying = session.requestCells();
    });
    this.actions = element('div', 'smp-actions', insert, clipboard, this.status);
    this.preview = disclosure('smp-section', ['The code that is inserted'], this.code);
    this.preview.addEventListener('toggle', () => this.refresh());
  }

  /** The settings on screen changed: code for others is not shown any longer. */
  refresh(): void {
    clearTimeout(this.timer);
    this.previewing = '';
    if (!this.preview.open) return;
    this.timer = setTimeout(() => (this.previewing = this.session.requestCells()), PREVIEW_DELAY_MS);
  }

  async onMessage(message: FromKernel): Promise<void> {
    if (message.kind === 'failed') {
      this.session.onFailure(message.id);
      this.fail(message.id, message.text);
    }
    if (message.kind !== 'cells') return;
    const { id, sources } = message;
    if (same(message.settings, this.session.screen.settings)) this.show(sources);
    if (id === this.inserting) await this.deliver(sources);
    else if (id === this.copying) setText(this.status, (await copyAll(sources)) ? 'Copied to the clipboard.' : FALL_BACK);
  }

  dispose(): void {
    clearTimeout(this.timer);
  }

  private async deliver(sources: string[]): Promise<void> {
    const cells = sources.length > 1 ? `${sources.length} cells` : 'a cell';
    if (insertCells(this.actions, sources)) {
      const order = sources.length > 1 ? ': the training script, then the estimator' : '';
      setText(this.status, `Inserted ${cells} below${order}.`);
    } else {
      const copied = await copyAll(sources);
      const where = sources.length > 1 ? 'new cells, the script apart from the estimator' : 'a new cell';
      setText(this.status, copied ? `Copied to the clipboard; paste it in ${where}.` : FALL_BACK);
    }
  }

  private fail(id: string, text: string): void {
    if (id === this.previewing) this.code.replaceChildren(element('p', 'smp-problem', text));
    else setText(this.status, text);
  }

  private show(sources: string[]): void {
    this.code.replaceChildren(
      ...sources.map(source => {
        const block = element('pre', 'smp-pre', source);
        block.tabIndex = 0;
        block.dataset['lmSuppressShortcuts'] = 'true';
        return block;
      })
    );
  }
}

const ASKING = 'Asking the kernel for the code …';
const FALL_BACK = 'Run %smp_export in a new cell to get the code.';

const copyAll = (sources: string[]): Promise<boolean> => copy(sources.join('\n\n\n'));

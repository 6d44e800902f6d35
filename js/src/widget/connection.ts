import type { AnyModel } from '@anywidget/types';
import { button, element, setText } from './dom';
import type { Traits } from './wire';

/** A request without an answer for this long is shown as queued. */
const QUEUED_MS = 700;
/** Then it is given up: the page can be used again, and a late answer is still accepted. */
const TIMEOUT_MS = 20_000;

type Status = 'live' | 'busy' | 'silent' | 'gone';

/** JupyterLab's kernel, as far as it is used; other hosts have none to look at. */
interface Kernel {
  status?: string;
  statusChanged?: { connect(slot: () => void): void; disconnect(slot: () => void): void };
}

type ToKernel = { kind: string; id: string } & Record<string, unknown>;

/** The only way to the kernel: sends requests, waits for each no longer than the timeout, and shows the kernel's state. */
export class Connection {
  readonly node: HTMLElement;
  private readonly text = element('span', 'smp-kernel-text');
  private readonly rerun: HTMLButtonElement;
  private readonly kernel: Kernel | undefined;
  private readonly waiting = new Map<string, { since: number; fail: (text: string) => void }>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private status: Status = 'live';
  private isGone = false;
  private readonly onKernel = (): void => this.refresh();
  private readonly onGone = (): void => {
    this.isGone = true;
    this.refresh();
  };

  constructor(private readonly model: AnyModel<Traits>) {
    this.kernel = (model as { widget_manager?: { kernel?: Kernel } }).widget_manager?.kernel;
    this.rerun = button('smp-button smp-small', 'Run the cell again', () => this.runAgain());
    this.text.setAttribute('role', 'status');
    this.node = element('div', 'smp-kernel', element('i', 'smp-kernel-light'), this.text, this.rerun);
    this.kernel?.statusChanged?.connect(this.onKernel);
    this.model.on('comm_live_update' as never, this.onGone as never);
    this.show('live');
  }

  /** Whether requests can be answered. */
  get isLive(): boolean {
    return this.status !== 'gone';
  }

  /** Number of requests without an answer. */
  get pending(): number {
    return this.waiting.size;
  }

  /** Send a message. `fail` gets a sentence if no answer comes in time. */
  request(message: ToKernel, fail: (text: string) => void): void {
    this.expect(message.id, fail);
    this.send(message);
  }

  /** Send a message that needs no answer; false if the kernel is gone. */
  send(message: Record<string, unknown>): boolean {
    return this.attempt(() => this.model.send(message));
  }

  /** Change the requested state; the kernel answers in its own. */
  submit(request: Traits['_request'], fail: (text: string) => void): boolean {
    // Only the newest request of the state is answered.
    this.waiting.delete(this.submitted);
    this.submitted = request.id;
    this.expect(request.id, fail);
    return this.attempt(() => {
      this.model.set('_request', request);
      this.model.save_changes();
    });
  }

  private submitted = '';

  /** Wait for the answer to a request that is sent with another. */
  expect(id: string, fail: (text: string) => void): void {
    this.waiting.set(id, { since: Date.now(), fail });
    this.refresh();
  }

  /** An answer arrived, so the kernel is alive. Answers to older requests of the state count as well. */
  answered(id: string): void {
    this.waiting.delete(id);
    if (this.status === 'silent') this.show('live');
    this.refresh();
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.kernel?.statusChanged?.disconnect(this.onKernel);
    this.model.off('comm_live_update' as never, this.onGone as never);
  }

  private attempt(send: () => void): boolean {
    if (!this.isGone) {
      try {
        send();
        return true;
      } catch {
        // The comm is closed: the kernel was restarted or shut down.
        this.isGone = true;
      }
    }
    this.refresh();
    return false;
  }

  private refresh(): void {
    clearTimeout(this.timer);
    if (this.isGone || DEAD.includes(this.kernel?.status ?? '')) {
      this.show('gone');
      this.giveUp(() => true, GONE);
      return;
    }
    const now = Date.now();
    if (this.giveUp(since => now - since >= TIMEOUT_MS, SILENT)) this.show('silent');
    const ages = [...this.waiting.values()].map(({ since }) => now - since);
    if (ages.length === 0) {
      if (this.status !== 'silent') this.show('live');
      return;
    }
    const oldest = Math.max(...ages);
    if (oldest >= QUEUED_MS) this.show('busy');
    this.timer = setTimeout(() => this.refresh(), oldest >= QUEUED_MS ? Math.max(50, TIMEOUT_MS - oldest) : QUEUED_MS - oldest);
  }

  private giveUp(isOver: (since: number) => boolean, text: string): boolean {
    const over = [...this.waiting].filter(([, { since }]) => isOver(since));
    for (const [id] of over) this.waiting.delete(id);
    for (const [, { fail }] of over) fail(text);
    return over.length > 0;
  }

  private show(status: Status): void {
    this.status = status;
    this.node.dataset['status'] = status;
    this.rerun.hidden = status !== 'gone';
    const waiting = this.waiting.size > 1 ? `, ${this.waiting.size} requests queued` : ', request queued';
    setText(this.text, { live: 'Live', busy: `Kernel busy${waiting}`, silent: SILENT, gone: GONE }[status]);
  }

  /** The lab extension runs the cell of this output. Without it, the text is the instruction. */
  private runAgain(): void {
    const event = new CustomEvent('smp-advisor:run-cell', { bubbles: true, composed: true, cancelable: true });
    if (this.node.dispatchEvent(event)) setText(this.text, BY_HAND);
  }
}

const DEAD = ['dead', 'terminating', 'terminated', 'restarting', 'autorestarting', 'unknown'];
const GONE = 'Disconnected: the kernel no longer has this advisor. Run the cell again to go on.';
const SILENT = 'No answer from the kernel for 20 s. Once it is free it answers; after a restart, run the cell again.';
const BY_HAND = 'Disconnected: select the cell above and press Shift+Enter.';

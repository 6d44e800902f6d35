import type { AnyModel } from '@anywidget/types';
import { RUN_EVENT } from '../events';
import { button, element, setText } from './dom';
import type { Request, Traits } from './wire';

/** A request without an answer for this long is shown as queued. */
export const QUEUED_MS = 700;
/** Then it is given up: the page can be used again, and a late answer is still accepted. */
export const TIMEOUT_MS = 20_000;
/** A kernel that has handled a message and did not answer for this long is sent it again: a busy server drops messages. */
export const UNANSWERED_MS = 1_500;
/** A kernel that was sent a message this often does not know this advisor, unless it is busy. */
const ATTEMPTS = 3;
/** What the kernel can do twice; of the rest, only the answer is requested again. */
const REPEATED = new Set(['panel', 'export', 'check', 'paste']);

type Status = 'live' | 'working' | 'busy' | 'silent' | 'gone';

/** JupyterLab's kernel, as far as it is used; other hosts have none to look at. */
interface Kernel {
  status?: string;
  statusChanged?: { connect(slot: () => void): void; disconnect(slot: () => void): void };
}

/** ipywidgets' callbacks of a message: `idle` follows when the kernel has handled it. */
interface Callbacks {
  iopub: { status: (message: { content: { execution_state: string } }) => void };
}

type ToKernel = { kind: string; id: string } & Record<string, unknown>;
type Fail = (text: string) => void;

interface Waiting {
  since: number;
  /** When the kernel had handled the message; 0 before. */
  handled: number;
  fail: Fail;
  /** Sends it again. */
  repeat?: () => void;
  attempts: number;
}

/**
 * The only way to the kernel: sends requests, waits for each no longer than the timeout, and shows the kernel's state.
 *
 * The kernel answers each request at once, with its result or with the start of longer work.
 */
export class Connection {
  readonly node: HTMLElement;
  private readonly text = element('span', 'smp-kernel-text');
  private readonly rerun: HTMLButtonElement;
  private readonly kernel: Kernel | undefined;
  private readonly waiting = new Map<string, Waiting>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private status: Status = 'live';
  /** Whether the kernel no longer has the advisor. */
  isGone = false;
  /** Newest request of the state, the only one that the kernel answers. */
  private submitted = '';
  private readonly onKernel = (): void => this.refresh();
  private readonly onGone = (): void => {
    this.isGone = true;
    this.refresh();
  };

  /** @param onStatus Called with whether the kernel no longer has the advisor, when that changes. */
  constructor(
    private readonly model: AnyModel<Traits>,
    private readonly onStatus: (isGone: boolean) => void = () => undefined
  ) {
    this.kernel = (model as { widget_manager?: { kernel?: Kernel } }).widget_manager?.kernel;
    this.rerun = button('smp-button smp-small', 'Run the cell again', () => this.runAgain());
    this.text.setAttribute('role', 'status');
    this.node = element('div', 'smp-kernel', element('i', 'smp-kernel-light'), this.text, this.rerun);
    this.kernel?.statusChanged?.connect(this.onKernel);
    this.model.on('comm_live_update' as never, this.onGone as never);
    this.show('live');
  }

  /** Send a message. `fail` gets a sentence if no answer comes in time. */
  request(message: ToKernel, fail: Fail): void {
    this.expect(message.id, fail, () => this.send(REPEATED.has(message.kind) ? message : { kind: 'again', id: message.id }, message.id));
    this.send(message, message.id);
  }

  /** Change the requested state, whose answer is the kernel's own. */
  submit(request: Request, fail: Fail): void {
    this.waiting.delete(this.submitted);
    this.submitted = request.id;
    this.expect(request.id, fail, () => this.send({ kind: 'again', id: request.id }, request.id));
    this.attempt(() => {
      this.model.set('_request', request);
      this.model.save_changes();
    });
  }

  /** Send a message that needs no answer, or repeats a request that waits for one. */
  send(message: Record<string, unknown>, id = ''): void {
    const callbacks: Callbacks = {
      iopub: { status: ({ content }) => content.execution_state === 'idle' && this.onHandled(id) }
    };
    this.attempt(() => this.model.send(message, callbacks as never));
  }

  /** An answer arrived, so the kernel is alive. */
  answered(id: string): void {
    this.waiting.delete(id);
    this.isGone = false;
    this.show('live');
    this.refresh();
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.kernel?.statusChanged?.disconnect(this.onKernel);
    this.model.off('comm_live_update' as never, this.onGone as never);
  }

  private expect(id: string, fail: Fail, repeat: () => void): void {
    this.waiting.set(id, { since: Date.now(), handled: 0, fail, repeat, attempts: 1 });
    this.refresh();
  }

  private onHandled(id: string): void {
    const entry = this.waiting.get(id);
    if (entry === undefined) return;
    entry.handled ||= Date.now();
    this.refresh();
  }

  private attempt(send: () => void): void {
    try {
      if (!this.isGone) send();
    } catch {
      // The channel is closed: the kernel was restarted or shut down.
      this.isGone = true;
    }
    this.refresh();
  }

  private refresh(): void {
    clearTimeout(this.timer);
    const now = Date.now();
    const entries = [...this.waiting.values()];
    for (const entry of entries.filter(({ handled }) => handled > 0 && now - handled >= UNANSWERED_MS)) {
      if (entry.attempts >= ATTEMPTS && this.kernel?.status !== 'busy') this.isGone = true;
      entry.attempts += 1;
      entry.handled = 0;
      if (!this.isGone) setTimeout(() => entry.repeat?.());
    }
    if (this.isGone || DEAD.has(this.kernel?.status ?? '')) {
      this.show('gone');
      this.giveUp(0, GONE);
      return;
    }
    // A kernel that runs a cell will answer; one that is silent may not.
    const isBusy = this.kernel?.status === 'busy';
    if (this.giveUp(TIMEOUT_MS, isBusy ? BUSY : SILENT)) this.show(isBusy ? 'busy' : 'silent');
    const next = [...this.waiting.values()].flatMap(({ since, handled }) => [
      since + (now - since < QUEUED_MS ? QUEUED_MS : TIMEOUT_MS),
      ...(handled > 0 ? [handled + UNANSWERED_MS] : [])
    ]);
    if (next.length > 0) this.timer = setTimeout(() => this.refresh(), Math.max(20, Math.min(...next) - now));
    const isQueued = [...this.waiting.values()].some(({ since }) => now - since >= QUEUED_MS);
    if (isQueued) this.show('busy');
    else if (this.waiting.size > 0) this.show('working');
    else if (this.status !== 'silent' && !(this.status === 'busy' && isBusy)) this.show('live');
  }

  /** Give up the requests that are older than an age, and return whether there were any. */
  private giveUp(age: number, text: string): boolean {
    const now = Date.now();
    const over = [...this.waiting].filter(([, { since }]) => now - since >= age);
    for (const [id] of over) this.waiting.delete(id);
    for (const [, { fail }] of over) fail(text);
    return over.length > 0;
  }

  private show(status: Status): void {
    if ((status === 'gone') !== (this.status === 'gone')) this.onStatus(status === 'gone');
    this.status = status;
    this.node.dataset['status'] = status;
    this.rerun.hidden = status !== 'gone';
    const count = this.waiting.size;
    const queued = count === 0 ? '' : `: ${count} queued`;
    setText(this.text, { live: 'Live', working: 'Updating', busy: `Kernel busy${queued}`, silent: SILENT, gone: GONE }[status]);
  }

  /** The lab extension runs the cell of this output. Without it, the text is the instruction. */
  private runAgain(): void {
    const event = new CustomEvent(RUN_EVENT, { bubbles: true, composed: true, cancelable: true });
    if (this.node.dispatchEvent(event)) setText(this.text, BY_HAND);
  }
}

const DEAD = new Set(['dead', 'terminating', 'terminated', 'restarting', 'autorestarting']);
const GONE = 'Disconnected: the kernel no longer has this advisor. Run its cell again.';
const BUSY = 'The kernel runs another cell and answers afterwards.';
const SILENT = 'No answer from the kernel for 20 s. After a restart, run the cell again.';
const BY_HAND = 'Disconnected: select the cell of this output and press Shift+Enter.';

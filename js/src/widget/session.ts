import type { AnyModel } from '@anywidget/types';
import { lookUp, same } from './look_ahead';
import { describe } from './moves';
import type { Control, Moment, Recommendation, Request, Setting, Settings, State, Traits } from './wire';

/** What one view has on screen. */
export interface Screen {
  /** As the controls stand, whether they can be combined or not. */
  settings: Settings;
  controls: Control[];
  /** The last settings that could be combined, and what they cost. */
  moment: Moment;
  moved: string;
  problem: string;
  words: string;
}

/**
 * One view's side of the conversation with the kernel, without any DOM.
 *
 * A move is shown from the look-ahead table at once, where the table knows it; the kernel's answer to it replaces that
 * when it comes. Answers to requests that are no longer the newest are passed over.
 */
export class Session {
  readonly shown: Recommendation;
  private now: Screen;
  private pending = '';
  private asked: Request;
  private count = 0;
  /** What the words compare with: where the running gesture began. */
  private anchor: Moment;
  private committed = true;

  constructor(
    private readonly model: AnyModel<Traits>,
    private readonly view: string,
    private readonly onChange: (screen: Screen) => void
  ) {
    this.shown = model.get('_recommendation');
    this.now = screenOf(model.get('_state'));
    this.anchor = this.now.moment;
    this.asked = this.exactly();
  }

  get screen(): Screen {
    return this.now;
  }

  /** Whether the kernel has yet to answer the newest request. */
  get isBusy(): boolean {
    return this.pending !== '';
  }

  /** A control moved. */
  move(name: string, value: Setting): void {
    const before = this.now.settings;
    const entry = lookUp(this.model.get('_ahead'), before, name, value);
    this.committed = false;
    if (entry === undefined) {
      this.now = { ...this.now, settings: { ...before, [name]: value }, moved: name };
      this.asked = { id: this.nextId(), settings: before, moved: name, value };
    } else {
      const problem = entry.problem ?? '';
      const moment = entry.problem === undefined ? entry : this.now.moment;
      this.now = { ...this.now, settings: entry.settings, moment, moved: name, problem };
      this.now.words = problem ? '' : this.describe();
      this.asked = { id: this.nextId(), settings: entry.settings, moved: name };
    }
    this.ask();
  }

  /** The gesture is over: the next one's words compare with what it led to. */
  commit(): void {
    this.committed = true;
    // A trait's changes wait for one another; a message goes at once, so that the kernel is soon where the screen is.
    if (this.pending) this.model.send({ kind: 'move', request: this.asked });
    if (!this.isWaiting) this.anchor = this.now.moment;
  }

  /** Back to the recommendation. */
  reset(): void {
    const { recommended } = this.shown;
    this.anchor = this.now.moment;
    this.now = { ...this.now, settings: recommended.settings, moment: recommended, moved: '', problem: '' };
    this.now.words = this.describe();
    this.anchor = recommended;
    this.asked = { id: this.nextId(), settings: recommended.settings, moved: '' };
    this.ask();
  }

  /** Ask for the cells of what is on screen: the values travel with the request. */
  requestCells(what = 'job', sdk = 'auto'): string {
    const id = this.nextId();
    this.asked = this.isWaiting ? { ...this.asked, id } : { ...this.exactly(), id };
    this.pending = id;
    this.model.send({ kind: 'export', request: this.asked, what, sdk });
    return id;
  }

  /** The kernel refused a request: there is no answer to wait for. */
  onFailure(id: string): void {
    if (id === this.pending) this.pending = '';
  }

  /** The kernel's state changed: by our newest request, by another view's while we have none, or by the user's Python. */
  onState(): void {
    const state = this.model.get('_state');
    if (this.pending && state.answers !== this.pending) return;
    const own = this.pending !== '';
    const settled = screenOf(state);
    const isSame = same(settled.settings, this.now.settings) && settled.problem === this.now.problem;
    // The words of our own gesture stand: the kernel's compare with its last stop, not with where the gesture began.
    const words = own && isSame ? this.now.words : settled.words;
    this.pending = '';
    this.now = { ...settled, words };
    if (own && !isSame && !settled.problem) this.now.words = this.describe() || settled.words;
    if (!own || this.committed) this.anchor = this.now.moment;
    this.asked = this.exactly();
    this.onChange(this.now);
  }

  private get isWaiting(): boolean {
    return this.asked.value !== undefined;
  }

  private exactly(): Request {
    return { id: '', settings: this.now.settings, moved: this.now.moved };
  }

  private describe(): string {
    const { rows, names, usable_gib: usable } = this.shown;
    const label = rows[names.indexOf(this.now.moved)] ?? '';
    return describe(rows, this.anchor, this.now.moment, label, usable);
  }

  private ask(): void {
    this.pending = this.asked.id;
    this.model.set('_request', this.asked);
    this.model.save_changes();
    this.onChange(this.now);
  }

  private nextId(): string {
    this.count += 1;
    return `${this.view}:${this.count}`;
  }
}

function screenOf(state: State): Screen {
  const { settings, controls, moment, moved, problem, words } = state;
  return { settings, controls, moment, moved, problem, words };
}

import type { AnyModel } from '@anywidget/types';
import type { Connection } from './connection';
import { lookUp } from './look_ahead';
import { preferredRegion } from './insert';
import type { Control, History, Snapshot, Recommendation, Repair, Request, Setting, Settings, State, Traits } from './wire';

/** State of one view. */
export interface Screen {
  /** Values of the controls, whether they can be combined or not. */
  settings: Settings;
  controls: Control[];
  /** Last settings that could be combined, with their estimate. */
  snapshot: Snapshot;
  moved: string;
  problem: string;
  /** Ways to combine the setting that moved last with the others; the kernel knows them. */
  repairs: Repair[];
  pins: string[];
  summary: string;
  history: History;
  /** State of the outline behind the bars. */
  before?: Snapshot;
}

/** Actions on the kernel's history, snapshots and alternatives; `session_actions.py` is the other side. */
export type Action = 'undo' | 'redo' | 'keep' | 'load' | 'forget' | 'adopt' | 'reset' | 'pin';

/**
 * One view's side of the conversation with the kernel, without any DOM.
 *
 * A move is shown at once from the look-ahead table, if the table has it, and then from the kernel's answer. Answers to
 * older requests are ignored.
 */
export class Session {
  readonly shown: Recommendation;
  private now: Screen;
  private pending = '';
  private request: Request;
  private count = 0;
  /** State at the start of the current gesture: the outline behind the bars. */
  private anchor: Snapshot;
  private committed = true;
  private gesture = 1;

  /** Why nothing may be exported, kept or adopted now: the fields above are not those of the plan. Empty if all is well. */
  hold: () => string = () => '';

  /** Search the other settings for a value that they exclude: the workload bar does. */
  searchWith: (name: string, value: Setting) => void = () => undefined;

  constructor(
    private readonly model: AnyModel<Traits>,
    private readonly view: string,
    private readonly connection: Connection,
    private readonly onChange: (screen: Screen) => void
  ) {
    this.shown = model.get('_recommendation');
    this.now = screenOf(model.get('_state'));
    this.anchor = this.now.snapshot;
    this.request = this.exactly();
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
      this.request = { id: this.nextId(), settings: before, moved: name, value, gesture: this.gesture };
    } else {
      const problem = entry.problem ?? '';
      const snapshot = entry.problem === undefined ? entry : this.now.snapshot;
      this.now = { ...this.now, settings: entry.settings, snapshot, moved: name, problem, repairs: [], before: this.anchor };
      this.request = { id: this.nextId(), settings: entry.settings, moved: name, gesture: this.gesture };
    }
    this.submit();
  }

  /** The gesture is over: the next outline is its result. */
  commit(): void {
    this.committed = true;
    // Changes of a trait wait for one another. A message is sent at once, so that the kernel soon has the same settings.
    if (this.pending) this.connection.send({ kind: 'move', request: this.request }, this.pending);
    if (!this.isWaiting) this.anchor = this.now.snapshot;
    this.gesture += 1;
  }

  /** Change the plan or the snapshots in the kernel, whose state then is the answer. `fail` gets a sentence if it refuses. */
  act(action: Action, value: string | number | undefined, fail: (text: string) => void = () => undefined): void {
    const hold = OF_THE_PLAN.has(action) ? this.hold() : '';
    if (hold) {
      fail(hold);
      return;
    }
    const id = this.nextId();
    this.committed = true;
    this.pending = id;
    this.refused = { id, fail };
    this.connection.request({ kind: 'act', id, action, value }, text => {
      this.onFailure(id);
      fail(text);
    });
    this.onChange(this.now);
  }

  private refused = { id: '', fail: (_: string): void => undefined };

  /** Back to the recommendation. */
  reset(): void {
    this.show(this.shown.recommended);
    this.act('reset', undefined);
  }

  /** Back to the last settings that could be combined. */
  revert(): void {
    this.show(this.now.snapshot);
    this.request = { ...this.request, id: this.nextId() };
    this.submit();
  }

  /** Set all controls at once, as a repair does. The kernel answers with the figures. */
  apply(settings: Settings): void {
    this.now = { ...this.now, settings, problem: '', repairs: [] };
    this.request = { id: this.nextId(), settings, moved: this.now.moved };
    this.submit();
    this.commit();
  }

  /** Pin a setting for the next search, or free it. */
  pin(name: string): void {
    const { pins } = this.now;
    this.now = { ...this.now, pins: pins.includes(name) ? pins.filter(pin => pin !== name) : [...pins, name] };
    this.act('pin', name);
  }

  /** Reasons against the positions of a control, in their order; undefined if a position is possible or unknown. */
  problems(name: string): (string | undefined)[] {
    return (this.model.get('_ahead').by[name] ?? []).map(entry => entry.problem);
  }

  private show(snapshot: Snapshot): void {
    this.now = { ...this.now, settings: snapshot.settings, snapshot, moved: '', problem: '', repairs: [], before: this.now.snapshot };
    this.anchor = snapshot;
    this.request = this.exactly();
  }

  /** Request the cells of the plan on screen. The request contains all values. `fail` gets a sentence if no answer comes. */
  requestCells(what: string, sdk: string, fail: (id: string, text: string) => void): string {
    const id = this.nextId();
    if (this.hold()) {
      fail(id, this.hold());
      return '';
    }
    this.request = this.isWaiting ? { ...this.request, id } : { ...this.exactly(), id };
    this.pending = id;
    this.connection.request({ kind: 'export', id, request: this.request, what, sdk, region: preferredRegion() }, text => {
      this.onFailure(id);
      fail(id, text);
    });
    return id;
  }

  /** The kernel refused a request or does not answer. What is on the screen stays. */
  onFailure(id: string, text = ''): void {
    if (text && id === this.refused.id) this.refused.fail(text);
    if (id !== this.pending) return;
    this.pending = '';
    this.onChange(this.now);
  }

  /** The kernel's state changed: by our newest request, by another view while we have none, or by the user's Python. */
  onState(): void {
    const state = this.model.get('_state');
    if (this.pending && state.answers !== this.pending) return;
    const own = this.pending !== '';
    this.pending = '';
    this.now = { ...screenOf(state), before: own ? this.anchor : this.now.snapshot };
    if (!own || this.committed) this.anchor = this.now.snapshot;
    this.request = this.exactly();
    this.onChange(this.now);
  }

  private get isWaiting(): boolean {
    return this.request.value !== undefined;
  }

  private exactly(): Request {
    return { id: '', settings: this.now.settings, moved: this.now.moved };
  }

  private submit(): void {
    const { id } = this.request;
    this.pending = id;
    this.connection.submit(this.request, () => this.onFailure(id));
    this.onChange(this.now);
  }

  private nextId(): string {
    this.count += 1;
    return `${this.view}:${this.count}`;
  }
}

/** Actions on the plan of the fields; the others leave it as it is. */
const OF_THE_PLAN = new Set<Action>(['keep', 'load', 'adopt']);

function screenOf(state: State): Screen {
  const { settings, controls, snapshot, moved, problem, repairs, pins, summary, history } = state;
  return { settings, controls, snapshot, moved, problem, repairs, pins, summary, history };
}

import type { AnyModel } from '@anywidget/types';
import type { Connection } from './connection';
import { LookAhead, same } from './look_ahead';
import { preferredRegion } from './insert';
import type { AheadMessage, Control, Entry, History, Moment, Positions, Snapshot, Recommendation, Repair, Request, Setting, Settings, State, Traits } from './wire';

/** State of one view. */
export interface Screen {
  /** Values of the controls, whether they can be combined or not. */
  settings: Settings;
  controls: Control[];
  /** Last settings that could be combined, with their plan at a glance. */
  snapshot: Moment;
  /** All figures of the plan that the kernel answered last; older than the snapshot for a moment. */
  detail: Snapshot;
  moved: string;
  problem: string;
  /** Ways to combine the setting that moved last with the others; the kernel knows them. */
  repairs: Repair[];
  pins: string[];
  /** Mark of a plan whose script was rehearsed; empty if it was not. */
  rehearsed: string;
  history: History;
  /** The plan at the start of the newest gesture. */
  before?: Moment;
  /** Whether the figures are those of another plan, since only the kernel knows this one's. */
  isWaiting: boolean;
}

/** Keys of one gesture are closer than this. */
const GESTURE_MS = 800;


/** Actions on the kernel's history, pins and alternatives; `panels.py` of the kernel performs them. */
export type Action = 'undo' | 'redo' | 'adopt' | 'reset' | 'pin';

/**
 * One view's side of the conversation with the kernel, without any DOM.
 *
 * A move is shown at once from the look-ahead, if it has the move, and then from the kernel's answer. Answers to
 * older requests are ignored.
 */
export class Session {
  readonly shown: Recommendation;
  private now: Screen;
  private pending = '';
  private request: Request;
  private count = 0;
  /** The plan at the start of the newest gesture: a drag, or keys in quick succession. No answer replaces it. */
  private anchor: Moment;
  private isDragging = false;
  private lastMove = -Infinity;
  private gesture = 1;
  private readonly look = new LookAhead();

  /** Why nothing may be exported or adopted now: the fields above are not those of the plan. Empty if all is well. */
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
    this.now = screenOf(model.get('_state'), model.get('_controls'), this.shown.controls);
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

  /** The pointer takes a control: a gesture starts, however long the last one is ago. */
  grab(): void {
    this.lastMove = -Infinity;
    this.begin();
    this.isDragging = true;
    window.addEventListener('pointerup', () => (this.isDragging = false), { once: true });
  }

  private begin(): void {
    const now = performance.now();
    if (!this.isDragging && now - this.lastMove > GESTURE_MS) {
      this.anchor = this.now.snapshot;
      this.gesture += 1;
    }
    this.lastMove = now;
  }

  /** A control moved. */
  move(name: string, value: Setting): void {
    this.begin();
    const before = this.now.settings;
    const entry = this.look.entry(before, name, value);
    if (entry === undefined) {
      this.now = { ...this.now, rehearsed: '', settings: { ...before, [name]: value }, moved: name, problem: '', repairs: [], before: this.anchor, isWaiting: true };
      this.request = { id: this.nextId(), settings: before, moved: name, value, gesture: this.gesture };
    } else {
      const problem = entry.problem ?? '';
      const snapshot = entry.problem === undefined ? entry : this.now.snapshot;
      this.now = { ...this.now, rehearsed: '', settings: entry.settings, snapshot, moved: name, problem, repairs: [], before: this.anchor, isWaiting: false };
      this.request = { id: this.nextId(), settings: entry.settings, moved: name, gesture: this.gesture };
    }
    this.submit();
  }

  /** A drag is over, or a key was pressed. */
  commit(): void {
    if (this.isDragging) this.lastMove = performance.now();
    this.isDragging = false;
    // Changes of a trait wait for one another. A message is sent at once, so that the kernel soon has the same settings.
    if (this.pending) this.connection.send({ kind: 'move', request: this.request }, this.pending);
  }

  /** The kernel sent moves. */
  onAhead(message: AheadMessage): void {
    this.look.take(message, this.model.get('_controls'));
    this.onChange(this.now);
  }

  /** Every position of a control with its plan; none while the kernel has yet to answer. */
  entries(name: string): Entry[] {
    return this.look.entries(this.now.settings, name);
  }

  /** Change the plan or the pins in the kernel, whose state then is the answer. `fail` gets a sentence if it refuses. */
  act(action: Action, value: string | number | undefined, fail: (text: string) => void = () => undefined): void {
    const hold = action === 'adopt' ? this.hold() : '';
    if (hold) {
      fail(hold);
      return;
    }
    if (STARTS_ANEW.has(action)) {
      this.lastMove = -Infinity;
      this.begin();
    }
    const id = this.nextId();
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
    this.lastMove = -Infinity;
    this.begin();
    this.now = { ...this.now, settings, problem: '', repairs: [], before: this.anchor, isWaiting: !same(settings, this.now.snapshot.settings) };
    this.request = { id: this.nextId(), settings, moved: this.now.moved, gesture: this.gesture };
    this.submit();
    this.commit();
  }

  /** Pin a setting for the next search, or free it. */
  pin(name: string): void {
    const { pins } = this.now;
    this.now = { ...this.now, pins: pins.includes(name) ? pins.filter(pin => pin !== name) : [...pins, name] };
    this.act('pin', name);
  }

  private show({ settings, costs }: Moment): void {
    this.lastMove = -Infinity;
    this.begin();
    this.now = { ...this.now, settings, snapshot: { settings, costs }, moved: '', problem: '', repairs: [], before: this.anchor, isWaiting: false };
    this.request = this.exactly();
  }

  /** Request the cells of the plan on screen. The request contains all values. `fail` gets a sentence if no answer comes. */
  requestCells(what: string, sdk: string, fail: (id: string, text: string) => void): string {
    const id = this.nextId();
    if (this.hold()) {
      fail(id, this.hold());
      return '';
    }
    this.request = this.now.isWaiting && this.request.value !== undefined ? { ...this.request, id } : { ...this.exactly(), id };
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
    if (!own) {
      this.anchor = this.now.snapshot;
      this.lastMove = -Infinity;
    }
    this.now = { ...screenOf(state, this.model.get('_controls'), this.model.get('_recommendation').controls), before: this.anchor };
    this.request = this.exactly();
    this.onChange(this.now);
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

const STARTS_ANEW = new Set<Action>(['undo', 'redo', 'adopt']);

function screenOf(state: State, positions: Positions[], about: Recommendation['controls']): Screen {
  const { settings, snapshot, moved, problem, repairs, pins, rehearsed, history } = state;
  const controls = positions.map((of): Control => ({ ...about[of.name]!, texts: of.values.map(value => value.toLocaleString('en-US')), fixed_because: '', ...of }));
  return { settings, controls, snapshot, detail: snapshot, moved, problem, repairs, pins, rehearsed, history, isWaiting: false };
}

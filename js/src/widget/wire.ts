/** Messages between kernel and view; `view_state.py` and `advisor.py` are the other side. */

export type Setting = number | string | boolean;
export type Settings = Readonly<Record<string, Setting>>;

/** What strip and picture show of a plan. */
export interface Costs {
  /** State against the required probability. */
  fit: 'fits' | 'risk' | 'over';
  /** Memory needed per GPU of the stage with the least headroom. */
  gib: number;
  /** GiB below which it stays with the required probability: beyond the usable memory only if it is not `fits`. */
  edge: number;
  /** Probability of the fit. */
  odds: string;
  /** GiB of parameters, gradients and optimizer state, and of activations and logits. */
  state: number;
  activations: number;
  /** Samples per second. */
  rate: number;
  /** Values of speed, of time if the job has a number of tokens, and of money, in the units of the headline. */
  speed: string;
  time: string;
  money: string;
  /** Memory that decides if it is not that of the GPU; else empty. */
  memory: string;
  /** The techniques in AWS's order with GiB per GPU after each; null where there is no such plan. */
  rungs: [title: string, gib: number | null][];
}

/** Values of all controls, and their plan at a glance. */
export interface Moment {
  settings: Settings;
  costs: Costs;
}

/** One plan with all its figures. */
export interface Snapshot extends Moment {
  /** Texts of the controls' values. */
  configuration: string[];
  /** Why the recommended plan is another one, if this one fits and is faster. */
  preferred: string;
  /** How exact (a word), value, unit, note and 95 % interval of speed, time and money. */
  headline: [about: string, value: string, unit: string, note: string, range: string][];
}

/** What no move changes of a control. */
export interface About {
  label: string;
  kind: 'slider' | 'select' | 'checkbox';
  /** Position in `Recommendation.groups`. */
  group: number;
  help: string;
}

/** A control as the kernel sends it: without texts that are the numbers, and without a reason if it has several values. */
export interface Positions {
  name: string;
  values: Setting[];
  texts?: string[];
  fixed_because?: string;
}

export interface Control extends About {
  name: string;
  values: Setting[];
  texts: string[];
  /** Reason for a single value; empty if there are several. */
  fixed_because: string;
}

/** Settings with the requested value that can be combined. */
export interface Repair {
  text: string;
  settings: Settings;
  /** Memory, fit and throughput of their plan. */
  effect: string;
}

/** A field of the workload bar; `workload_fields.py` is the other side. */
export interface Field {
  name: string;
  label: string;
  kind: 'text' | 'select';
  /** The request; empty if it is not set. */
  value: string;
  /** The value with what the search made of it. */
  shown: string;
  options: [value: string, text: string][];
  hint: string;
}

/** A change of the workload after which a plan fits. */
export interface WayOut {
  text: string;
  /** Memory, speed and cost of the best plan after it. */
  note: string;
  workload: Readonly<Record<string, string>>;
}

/** Data that no control changes. */
export interface Recommendation {
  title: string;
  /** Fields of the request; empty if it cannot be searched again. */
  workload: Field[];
  /** Techniques of the recommended plan, and how certain the choice is. */
  decisive: [lead: string, reason: string];
  controls: Readonly<Record<string, About>>;
  /** By which run the figures are measured, and from what to what; empty without one. */
  measured: string;
  /** What a sample is, if it is one call of a profile's inputs: the batch was not searched. Else empty. */
  call: string;
  /** Required probability of the fit, as text. */
  required: string;
  usable_gib: number;
  /** Tokens of a sample if speed is in tokens per second; else 1. */
  per_sample: number;
  /** Titles of the groups of controls: AWS's order, further ones of the library, and those rarely changed. */
  groups: string[];
  names: string[];
  rows: string[];
  recommended: Snapshot;
}

/** What undo and redo lead to, empty if nothing. */
export interface History {
  undo: string;
  redo: string;
}

export interface State {
  /** Id of the answered request; empty for changes from Python. */
  answers: string;
  settings: Settings;
  snapshot: Snapshot;
  moved: string;
  problem: string;
  /** Ways to combine the setting that moved last with the others, if there is a problem. */
  repairs: Repair[];
  /** Names of the pinned settings. */
  pins: string[];
  summary: string;
  /** Mark of the plan: `rehearsed: 2 processes, 6 updates, resumed, loads`; empty without a rehearsal. */
  rehearsed: string;
  history: History;
}

/** A possible move, or the reason against it. */
export type Entry = (Moment & { problem?: undefined }) | { settings: Settings; problem: string };

export interface Ahead {
  base: Settings;
  by: Record<string, Entry[]>;
}

/** All moves, one per position of each control: the settings that follow, and the plan or the reason against it. */
export interface AheadMessage {
  kind: 'ahead';
  id: string;
  base: Settings;
  by: Record<string, [follows: Settings, plan: Costs | string][]>;
}

/** All settings; with `value`, one move from them whose dependent settings only the kernel knows. */
export interface Request {
  id: string;
  settings: Settings;
  moved: string;
  value?: Setting;
  /** Number of the gesture in the view. The kernel's history has one entry for all moves of a gesture. */
  gesture?: number;
}

export interface Traits {
  _recommendation: Recommendation;
  _state: State;
  _controls: Positions[];
  /** Why another view is the newer one; empty if none is. */
  _older?: string;
  _request: Request;
}

export type FromKernel =
  | AheadMessage
  | { kind: 'cells'; id: string; settings: Settings; sources: string[] }
  | { kind: 'failed'; id: string; text: string }
  | { kind: 'searching'; id: string; done: number; total: number; text: string; seconds_left: number | null }
  | { kind: 'searched'; id: string; problem: string; ways: WayOut[] }
  /** The kernel computes the answer, which takes seconds. */
  | { kind: 'started'; id: string }
  | { kind: 'panel'; id: string; name: string; data: unknown }
  /** The page of a check in which the kernel escapes every text, and the corrected cell; empty if nothing changes. */
  | { kind: 'checked'; id: string; summary: string; html: string; corrected: string };

/** What travels between the kernel and the view; `view_state.py`, `look_ahead.py` and `advisor.py` are the other side. */

export type Setting = number | string | boolean;
export type Settings = Readonly<Record<string, Setting>>;

export interface Fact {
  label: string;
  text: string;
  mark: string;
  note: string;
}

export interface StageGroup {
  label: string;
  /** GiB of each category. */
  gib: number[];
  /** Their sum, before they were rounded. */
  total_gib: number;
  peak: boolean;
}

export interface Costs {
  fits: boolean;
  verdict: string;
  /** Value and note of each figure. */
  figures: [value: string, note: string][];
  /** What the tightest stage's GPU must have; the bars show the peaks. */
  needed_gib: number;
  samples_per_second: number;
  stages: StageGroup[];
  /** Of each part of the step. */
  seconds: number[];
  /** Their sum, before they were rounded. */
  step_seconds: number;
}

/** One position of all controls, and what it costs. */
export interface Moment {
  settings: Settings;
  configuration: string[];
  costs: Costs;
}

export interface Control {
  name: string;
  label: string;
  kind: 'slider' | 'select' | 'checkbox';
  values: Setting[];
  texts: string[];
  help: string;
}

export interface Step {
  order: number;
  technique: string;
  title: string;
  decision: 'used' | 'not used' | 'not possible';
  because: string;
  trade_off: string;
  figures: [label: string, value: string][];
  source_title: string;
  source_url: string;
}

export interface Difference {
  setting: string;
  reference: string;
  recommended: string;
  because: string;
}

export interface Reference {
  name: string;
  summary: string;
  fits: boolean;
  needed_gib: number;
  differences: Difference[];
  extrapolation: string;
  source_url: string;
}

export interface Pitfall {
  id: string;
  severity: 'error' | 'warning' | 'info';
  text: string;
  source_url: string;
}

/** Of the script checker; `script_panel.py` is the other side. */
export interface CheckedFinding {
  id: string;
  severity: 'error' | 'warning' | 'info';
  /** File and line. */
  place: string;
  column: number;
  /** The line itself. */
  text: string;
  message: string;
  consequence: string;
  remedy: string;
  source_title: string;
  source_url: string;
  /** The change that would mend it, where one is safe. */
  fix?: { description: string; diff: string } | null;
  /** Why there is none, where the check has one in general. */
  unfixed?: string;
}

/** Every fix at once. */
export interface FixedTogether {
  title: string;
  diff: string;
}

/** From the pasted plan to the one on screen; `estimator_panel.py` is the other side. */
export interface PastedComparison {
  gain: string;
  rows: [setting: string, yours: string, recommended: string, because: string][];
}

/** What a pasted cell, dictionary, recipe or request was read into. */
export interface Pasted {
  summary: string;
  read: string[];
  findings: CheckedFinding[];
  unresolved: string[];
  diff: string;
  /** The whole text with the changes made; empty where there are none. */
  corrected: string;
  comparison: PastedComparison | null;
}

/** What stays the same while the controls move. */
export interface Recommendation {
  title: string;
  facts: Fact[];
  defaults: string[];
  because: string;
  usable_gib: number;
  nominal_gib: number;
  categories: string[];
  seconds: string[];
  figures: string[];
  names: string[];
  rows: string[];
  recommended: Moment;
  steps: Step[];
  /** Null where AWS publishes no configurations of the library. */
  reference: Reference | null;
  pitfalls: Pitfall[];
  assumptions: string[];
}

export interface State {
  /** Id of the request that led here; empty where the kernel moved by itself. */
  answers: string;
  settings: Settings;
  controls: Control[];
  moment: Moment;
  moved: string;
  problem: string;
  words: string;
}

/** A move that can be made, or why it cannot. */
export type Entry = Moment & { problem?: undefined } | { settings: Settings; problem: string };

export interface Ahead {
  base: Settings;
  by: Record<string, Entry[]>;
}

/** All settings, exactly; with `value`, one move from them whose consequences only the kernel knows. */
export interface Request {
  id: string;
  settings: Settings;
  moved: string;
  value?: Setting;
}

export interface Traits {
  _recommendation: Recommendation;
  _state: State;
  _ahead: Ahead;
  _request: Request;
}

export type FromKernel =
  | { kind: 'cells'; id: string; settings: Settings; sources: string[] }
  | { kind: 'failed'; id: string; text: string }
  | { kind: 'checked'; id: string; summary: string; findings: CheckedFinding[]; unresolved: string[]; together?: FixedTogether | null }
  | ({ kind: 'pasted'; id: string } & Pasted);

/** Events by which a view sends requests to the notebook around it. They bubble, and the lab extension prevents their default. */

export const INSERT_EVENT = 'smp-advisor:insert-cell';
export const PLAN_EVENT = 'smp-advisor:plan';
export const RUN_EVENT = 'smp-advisor:run-cell';
export const OPEN_EVENT = 'smp-advisor:open-place';
/** From the lab extension to the page: it is there now. */
export const PRESENT_EVENT = 'smp-advisor:present';
/** From the notebook to a view: request the cells of this kind again. */
export const UPDATE_EVENT = 'smp-advisor:update-cells';

/** `update` keeps cells that the user edited, `replace` overwrites them, and `add` inserts new ones next to them. */
export type Mode = 'update' | 'replace' | 'add';

/**
 * Result of an insertion. `edited`: nothing happened, because the user edited a cell that was inserted before.
 */
export type Outcome = 'inserted' | 'updated' | 'unchanged' | 'edited';

/** Detail of an insertion. The lab extension sets the outcome. */
export interface Insertion {
  /** Cells in the order in which they run. */
  sources: string[];
  /** Kind of the cells: those of an earlier insertion of this kind are updated. */
  what: string;
  /** Fingerprint of the plan; empty if the cells do not depend on it. */
  plan: string;
  mode: Mode;
  /** Whether to run the cells: those of a click on a page that was executed here. */
  run?: boolean;
  outcome?: Outcome;
}

/** The plan on the screen. The lab extension adds how many inserted cells are for another one, by their kind. */
export interface Announcement {
  plan: string;
  stale?: Record<string, number>;
}

/** A place in a file; the path is relative to the notebook, line and column count from 1. */
export interface Place {
  path: string;
  line: number;
  column: number;
}

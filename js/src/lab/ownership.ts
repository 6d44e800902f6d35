import { digest } from '../digest';
import type { Insertion, Outcome } from '../events';

/** Key of the metadata of a cell that the advisor inserted. */
export const OWNED = 'smp_advisor';

/** Metadata of an inserted cell, saved with the notebook. */
export interface IOwned {
  /** Identifier of the cell whose output inserted it. */
  from: string;
  /** Widget model of that output. */
  model: string;
  what: string;
  /** Position among the cells inserted together. */
  part: number;
  /** Fingerprint of the text that was inserted. */
  text: string;
  /** Fingerprint of the plan; empty if the text does not depend on it. */
  plan: string;
}

/** A cell, as far as ownership needs it. */
export interface ICell {
  source: string;
  owned: IOwned | null;
}

/** Who inserts: the cell with the output, and the widget's model. */
export type Owner = Pick<IOwned, 'from' | 'model'>;

/** What to do with a notebook: write `sources` into these cells, or insert them where there is none (-1). */
export interface IChange {
  outcome: Outcome;
  /** For each source the index of the cell to overwrite, or -1. */
  targets: number[];
  /** Cells of an earlier insertion that this one no longer updates. */
  released: number[];
}

/** Metadata of a cell if the advisor inserted it. */
export function ownedOf(metadata: unknown): IOwned | null {
  const owned = metadata as Partial<IOwned> | undefined;
  const texts = [owned?.from, owned?.model, owned?.what, owned?.text, owned?.plan];
  return texts.every(text => typeof text === 'string') && typeof owned?.part === 'number' ? (owned as IOwned) : null;
}

export function isOwnedBy(owned: IOwned | null, owner: Owner): boolean {
  return owned !== null && (owned.from === owner.from || (owner.model !== '' && owned.model === owner.model));
}

function isEdited({ source, owned }: ICell): boolean {
  return owned !== null && digest(source) !== owned.text;
}

/** Decide about an insertion into a notebook of these cells. */
export function plannedChange(cells: ICell[], owner: Owner, insertion: Insertion): IChange {
  const { sources, what, mode } = insertion;
  const before = cells.flatMap(({ owned }, index) => (owned?.what === what && isOwnedBy(owned, owner) ? [index] : []));
  const fresh = sources.map(() => -1);
  if (mode === 'add' || before.length === 0) return { outcome: 'inserted', targets: fresh, released: before };
  // A copied cell has the same metadata: the first of each part is updated.
  const targets = sources.map((_, part) => before.find(index => cells[index]!.owned!.part === part) ?? -1);
  const differing = targets.filter((index, part) => index < 0 || cells[index]!.source !== sources[part]);
  if (mode === 'update' && differing.some(index => index >= 0 && isEdited(cells[index]!))) {
    return { outcome: 'edited', targets: fresh, released: [] };
  }
  return { outcome: differing.length === 0 ? 'unchanged' : 'updated', targets, released: [] };
}

/** Whether a cell contains the code of another plan than the one on the screen. */
export function isStale(owned: IOwned, plan: string): boolean {
  return owned.plan !== '' && owned.plan !== plan;
}

/** Metadata of the cell that contains one part of an insertion. */
export function ownedBy(owner: Owner, { what, plan, sources }: Insertion, part: number): IOwned {
  return { ...owner, what, part, text: digest(sources[part] ?? ''), plan };
}

/** Whether the detail of an event describes an insertion: any script of the page can send one. */
export function isInsertion(detail: unknown): detail is Insertion {
  const { sources, what, plan, mode } = (detail ?? {}) as Partial<Insertion>;
  return (
    Array.isArray(sources) &&
    sources.length > 0 &&
    sources.every(source => typeof source === 'string') &&
    typeof what === 'string' &&
    typeof plan === 'string' &&
    ['update', 'replace', 'add'].includes(mode ?? '')
  );
}

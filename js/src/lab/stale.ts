import type { Cell } from '@jupyterlab/cells';
import type { Notebook } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { isOwnedBy, isStale, Owner, OWNED, ownedOf } from './ownership';

const STALE = 'smp-advisor-stale';

/**
 * Mark the cells of an owner that contain the code of another plan.
 *
 * @param update Requests the cells of this kind again.
 * @returns The number of these cells, by kind.
 */
export function markStale(
  notebook: Notebook,
  owner: Owner,
  plan: string,
  trans: TranslationBundle,
  update: (what: string) => void
): Record<string, number> {
  const count: Record<string, number> = {};
  for (const cell of notebook.widgets) {
    const owned = ownedOf(cell.model.getMetadata(OWNED));
    if (owned !== null && !isOwnedBy(owned, owner)) continue;
    const note = cell.node.querySelector(`:scope > .${STALE}`);
    if (owned === null || !isStale(owned, plan)) {
      note?.remove();
      continue;
    }
    // A note stays the same: if it were replaced while its button is pressed, the click would be lost.
    (note ?? mark(cell, trans)).querySelector('button')!.onclick = () => update(owned.what);
    count[owned.what] = (count[owned.what] ?? 0) + 1;
  }
  return count;
}

function mark(cell: Cell, trans: TranslationBundle): Element {
  const note = document.createElement('div');
  note.className = STALE;
  note.setAttribute('role', 'status');
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'jp-mod-styled';
  button.textContent = trans.__('Update');
  button.dataset['lmSuppressShortcuts'] = 'true';
  note.append(trans.__('This cell is for another plan than the advisor shows.'), button);
  cell.node.prepend(note);
  return note;
}

import type { Snapshot } from './wire';

/**
 * Effect of a change of the controls on memory and throughput, in one sentence. `change_summary.py` in the kernel gives the
 * same sentence; `tests/change_summaries.json` tests both.
 */
export function describe(rows: string[], before: Snapshot, after: Snapshot, moved: string, usableGib: number): string {
  const changes = new Map<string, string>();
  rows.forEach((row, index) => {
    const [was, now] = [before.configuration[index], after.configuration[index]];
    if (was !== now) changes.set(row, `${was || 'none'} → ${now || 'none'}`);
  });
  if (changes.size === 0) return '';
  const first = changes.has(moved) ? `${moved} ${changes.get(moved)}` : '';
  changes.delete(moved);
  const dependents = [...changes].map(([row, change]) => `${row.charAt(0).toLowerCase()}${row.slice(1)} ${change}`).join(', ');
  const subject = first && dependents ? `${first} (${dependents})` : first || dependents.charAt(0).toUpperCase() + dependents.slice(1);
  return `${subject}: ${memory(before, after, usableGib)}, ${throughput(before, after)}${fit(before, after)}.`;
}

function memory(before: Snapshot, after: Snapshot, usableGib: number): string {
  const needed = after.costs.needed_gib;
  const change = needed - before.costs.needed_gib;
  const now = `(${needed.toFixed(1)} of ${usableGib.toFixed(1)} GiB)`;
  if (Math.abs(change) < 0.05) return `no change in memory ${now}`;
  return `memory ${sign(change)}${Math.abs(change).toFixed(1)} GiB per GPU ${now}`;
}

function throughput(before: Snapshot, after: Snapshot): string {
  const change = 100 * (after.costs.samples_per_second / before.costs.samples_per_second - 1);
  const size = Math.abs(change);
  if (size < 0.05) return 'no change in throughput';
  return `throughput ${sign(change)}${size.toFixed(size >= 9.95 ? 0 : 1)} %`;
}

function fit(before: Snapshot, after: Snapshot): string {
  if (before.costs.fits === after.costs.fits) return after.costs.fits ? '' : '; still does not fit';
  return after.costs.fits ? '; now fits' : '; no longer fits';
}

const sign = (change: number): string => (change > 0 ? '+' : '−');

import type { Moment } from './wire';

/**
 * What a move of the controls did to memory and speed, in one sentence; `moves.py` says the same in the kernel, and
 * `tests/moves.json` holds both to it.
 */
export function describe(rows: string[], before: Moment, after: Moment, moved: string, usableGib: number): string {
  const changes = new Map<string, string>();
  rows.forEach((row, index) => {
    const [was, now] = [before.configuration[index], after.configuration[index]];
    if (was !== now) changes.set(row, `${was || 'none'} → ${now || 'none'}`);
  });
  if (changes.size === 0) return '';
  const first = changes.has(moved) ? `${moved} ${changes.get(moved)}` : '';
  changes.delete(moved);
  const others = [...changes].map(([row, change]) => `${row.charAt(0).toLowerCase()}${row.slice(1)} ${change}`).join(', ');
  const subject = first && others ? `${first} (${others})` : first || others.charAt(0).toUpperCase() + others.slice(1);
  return `${subject}: ${memory(before, after, usableGib)}, ${throughput(before, after)}${fit(before, after)}.`;
}

function memory(before: Moment, after: Moment, usableGib: number): string {
  const needed = after.costs.needed_gib;
  const change = needed - before.costs.needed_gib;
  const now = `(${needed.toFixed(1)} of ${usableGib.toFixed(1)} GiB)`;
  if (Math.abs(change) < 0.05) return `memory needed unchanged ${now}`;
  return `memory needed ${sign(change)}${Math.abs(change).toFixed(1)} GiB ${now}`;
}

function throughput(before: Moment, after: Moment): string {
  const change = 100 * (after.costs.samples_per_second / before.costs.samples_per_second - 1);
  const size = Math.abs(change);
  if (size < 0.05) return 'throughput unchanged';
  return `throughput ${sign(change)}${size.toFixed(size >= 9.95 ? 0 : 1)} %`;
}

function fit(before: Moment, after: Moment): string {
  if (before.costs.fits === after.costs.fits) return after.costs.fits ? '' : '; still does not fit';
  return after.costs.fits ? '; now it fits' : '; it no longer fits';
}

const sign = (change: number): string => (change > 0 ? '+' : '−');

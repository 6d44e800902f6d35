/** The ladder of techniques as bars: memory and step time before and after each. Twin: `drawing/ladder.py`. */

import { amount } from './bars';
import { linear, type Scale } from './scale';
import { frame, label, line, rect } from './svg';

/** One rung. */
export interface LadderRow {
  title: string;
  /** GiB needed per GPU; null if there is no such plan. */
  memory: number | null;
  /** Of the plan with which it is compared; null for the first. */
  memory_before: number | null;
  /** Seconds per step; null if the plan does not fit. */
  step: number | null;
  step_before: number | null;
  fits: boolean;
  decision: string;
  /** Whether the plan on screen uses the technique. */
  used: boolean;
  because: string;
}

export interface LadderBars {
  limit: number;
  rows: LadderRow[];
}

const [ROW, NARROW] = [30, 700];
/** Longest bar of memory, in multiples of the limit. Longer ones end with an arrow. */
const CLIP = 2.5;

export function ladder({ limit, rows }: LadderBars, width: number): string {
  const narrow = width < NARROW;
  const start = narrow ? 0 : 0.36 * width;
  const wide = width - start;
  const x = linear(0, CLIP * limit, start, start + 0.32 * wide);
  const slowest = Math.max(...rows.map(row => row.step ?? 0), ...rows.map(row => row.step_before ?? 0));
  const t = linear(0, slowest || 1, start + 0.48 * wide, start + 0.62 * wide);
  const parts = [label('smp-tick', start, 11, 'GiB needed per GPU'), label('smp-tick', t(0), 11, 'step time')];
  let y = 18;
  let grouped = false;
  for (const row of rows) {
    if (!row.used && !grouped) {
      grouped = true;
      parts.push(line('smp-grid', 0, y + 4, width, y + 4), label('smp-tick', 0, y + 18, 'with one change'));
      y += 24;
    }
    if (narrow) {
      parts.push(label('smp-text', 0, y + 13, cut(row.title, width)));
      y += 18;
    } else {
      parts.push(label('smp-text', 0, y + 18, cut(row.title, start - 12)));
    }
    parts.push(...memory(row, limit, x, y));
    if (row.step !== null) {
      if (row.step_before !== null) {
        parts.push(rect('smp-ghost', t(0), y + 4, t(row.step_before) - t(0), 18, `before: ${amount(row.step_before, 's')}`));
      }
      parts.push(rect('smp-step-bar', t(0), y + 7, t(row.step) - t(0), 12, `${row.title}: ${amount(row.step, 's')} per step`));
      parts.push(label('smp-tick', t(slowest) + 6, y + 17, amount(row.step, 's')));
    }
    parts.push(label(`smp-text smp-is-${row.fits ? 'fit' : 'over'}`, width, y + 17, cut(row.decision, 0.26 * wide), 'end'));
    y += ROW;
  }
  parts.push(line('smp-limit-mark', x(limit), 16, x(limit), y));
  parts.push(label('smp-tick', x(limit), y + 13, `${amount(limit, 'GiB')} usable`, 'middle'));
  return frame(width, y + 20, `Memory and step time of ${rows.length} techniques`, parts);
}

function memory(row: LadderRow, limit: number, x: Scale, y: number): string[] {
  if (row.memory === null) return [label('smp-tick', x(0), y + 17, 'no such plan')];
  const most = CLIP * limit;
  const parts: string[] = [];
  if (row.memory_before !== null) {
    const before = Math.min(row.memory_before, most);
    parts.push(rect('smp-ghost', x(0), y + 4, x(before) - x(0), 18, `before: ${amount(row.memory_before, 'GiB')}`));
  }
  const title = `${row.title}: ${amount(row.memory, 'GiB')}. ${row.because}`.replace(/[. ]+$/, '');
  parts.push(rect(`smp-memory-bar smp-is-${row.fits ? 'fit' : 'over'}`, x(0), y + 7, x(Math.min(row.memory, most)) - x(0), 12, title));
  parts.push(label('smp-tick', x(most) + 6, y + 17, `${amount(row.memory, 'GiB')}${row.memory > most ? ' »' : ''}`));
  return parts;
}

/** The text, cut to the letters that have room. */
function cut(text: string, room: number): string {
  const most = Math.trunc(room / 6.2);
  return text.length <= most ? text : `${text.slice(0, Math.max(most - 1, 1))}…`;
}

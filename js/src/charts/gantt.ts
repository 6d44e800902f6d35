/** The schedule of a step: passes of every pipeline stage over time. Twin: `drawing/gantt.py`. */

import { amount } from './bars';
import { fixed, linear, short, textWidth, ticks } from './scale';
import { frame, label, line, rect } from './svg';

export interface GanttRow {
  label: string;
  /** Part of the step (a position in `Gantt.names`), start and length in seconds, and microbatch (-1 for none). */
  spans: (readonly [part: number, start: number, length: number, microbatch: number])[];
}

export interface Gantt {
  names: string[];
  rows: GanttRow[];
  /** Length of the axis. */
  seconds: number;
  description: string;
}

const ROW = 22;

export function gantt({ names, rows, seconds, description }: Gantt, width: number): string {
  const left = Math.max(...rows.map(row => textWidth(row.label))) + 8;
  const x = linear(0, seconds, left, width - 8);
  const parts: string[] = [];
  rows.forEach((row, position) => {
    const y = 4 + ROW * position;
    const busy = row.spans.reduce((total, span) => total + span[2], 0);
    const idle = Math.max(1 - busy / seconds, 0);
    parts.push(label('smp-text', 0, y + 13, row.label));
    parts.push(rect('smp-idle', left, y, width - 8 - left, ROW - 4, `${row.label}: idle ${fixed(100 * idle, 1)} % of the step`));
    for (const [part, start, length, microbatch] of row.spans) {
      const of = microbatch >= 0 ? `microbatch ${microbatch + 1}, ` : '';
      const title = `${row.label}, ${of}${names[part]}: ${amount(length, 's')}, from ${amount(start, 's')}`;
      parts.push(rect(`smp-pass smp-c${part}`, x(start), y, x(start + length) - x(start), ROW - 4, title));
    }
  });
  const bottom = 4 + ROW * rows.length;
  const [scale, unit] = seconds >= 1 ? [1, 's'] : [1000, 'ms'];
  parts.push(line('smp-axis', left, bottom, width - 8, bottom));
  for (const value of ticks(0, scale * seconds, (width - left) / 80)) {
    const at = x(value / scale);
    parts.push(line('smp-axis', at, bottom, at, bottom + 4));
    parts.push(label('smp-tick', at, bottom + 15, `${short(value)} ${unit}`, at > width - 30 ? 'end' : value ? 'middle' : 'start'));
  }
  return frame(width, bottom + 20, description, parts);
}

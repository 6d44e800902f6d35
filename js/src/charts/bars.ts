/** Stacked bars: memory of pipeline stages next to the limit, and the parts of a step. Drawn in saved notebooks by `bar_drawings.py`, alike. */

import { fixed, grouped, linear, short, textWidth, ticks, type Scale } from './scale';
import { dot, frame, label, line, rect } from './svg';

export interface BarRow {
  label: string;
  parts: number[];
  /** Sum of the parts before rounding. */
  total: number;
  /** Total of the previous state. */
  ghost: number | null;
  /** Low end, middle and high end of the 95 % interval of the memory needed. */
  interval: readonly [low: number, middle: number, high: number] | null;
}

export interface Bars {
  unit: string;
  names: string[];
  rows: BarRow[];
  /** Usable and nominal memory. */
  limit: number | null;
  nominal: number | null;
}

const [BAR, AXIS] = [22, 20];

export function bars(data: Bars, width: number): string {
  const { unit, rows, limit, nominal } = data;
  const left = rows.length > 1 ? Math.min(Math.max(...rows.map(row => textWidth(row.label))) + 8, 0.3 * width) : 0;
  const right = width - 62;
  const most = Math.max(limit ?? 0, nominal ?? 0, ...rows.map(row => Math.max(row.total, row.ghost ?? 0)));
  const high = rows.flatMap(row => (row.interval ? [row.interval[2]] : []));
  const full = high.length || limit ? 1.02 * Math.max(most, ...high) : most;
  const x = linear(0, full, left, right);
  const top = limit ? 18 : 2;
  const parts: string[] = [];
  let y = top + 4;
  for (const row of rows) {
    if (left) {
      const room = Math.trunc((left - 8) / 6.2);
      parts.push(label('smp-text', 0, y + 15, row.label.length <= room ? row.label : `${row.label.slice(0, room - 1)}…`));
    }
    parts.push(...bar(data, row, x, y));
    const over = limit !== null && beyond(row.total, limit) > 0;
    parts.push(label(over ? 'smp-total smp-over' : 'smp-total', width, y + 15, amount(row.total, unit), 'end'));
    y += BAR + 8;
    if (row.interval) {
      parts.push(...whisker(row.interval, unit, x, y));
      y += 10;
    }
  }
  if (limit !== null) {
    if (nominal && nominal > limit) parts.push(line('smp-nominal', x(nominal), top, x(nominal), y));
    const usable = `${fixed(limit, 1)} ${unit} usable`;
    const side = x(limit) + textWidth(usable) / 2 > width ? 'end' : 'middle';
    parts.push(line('smp-limit-mark', x(limit), top - 4, x(limit), y));
    parts.push(label('smp-text', Math.min(x(limit), width), 11, usable, side));
  }
  parts.push(...axis(full, unit, x, y, right));
  return frame(width, y + AXIS, description(data), parts);
}

function bar({ unit, limit, names }: Bars, row: BarRow, x: Scale, y: number): string[] {
  const parts: string[] = [];
  let start = 0;
  row.parts.forEach((value, index) => {
    if (!(value > 0)) return;
    const title = `${names[index]}: ${amount(value, unit, row.total)}`;
    parts.push(rect(`smp-part smp-c${index}`, x(start), y, x(start + value) - x(start), BAR, title));
    start += value;
  });
  const excess = limit === null ? 0 : beyond(row.total, limit);
  if (limit !== null && excess) {
    parts.push(rect('smp-excess', x(limit), y + BAR, x(row.total) - x(limit), 3, `${amount(excess, unit)} over the usable memory`));
  }
  if (row.ghost !== null) {
    parts.push(rect('smp-ghost', x(0), y - 3, x(row.ghost) - x(0), BAR + 6, `before: ${amount(row.ghost, unit)}`));
  }
  return parts;
}

function whisker(interval: readonly [number, number, number], unit: string, x: Scale, y: number): string[] {
  const [low, middle, high] = interval.map(end => Math.max(end, 0)) as [number, number, number];
  const title = `${amount(middle, unit)} needed, 95 %: ${fixed(low, 1)} to ${fixed(high, 1)} ${unit}`;
  return [
    line('smp-whisker', x(low), y, x(high), y, title),
    line('smp-whisker', x(low), y - 4, x(low), y + 4),
    line('smp-whisker', x(high), y - 4, x(high), y + 4),
    dot('smp-middle', x(middle), y, 3, title)
  ];
}

function axis(full: number, unit: string, x: Scale, y: number, right: number): string[] {
  const parts = [line('smp-axis', x(0), y, right, y)];
  for (const value of ticks(0, full, (right - x(0)) / 70)) {
    parts.push(line('smp-axis', x(value), y, x(value), y + 4));
    parts.push(label('smp-tick', x(value), y + 15, short(value), value ? 'middle' : 'start'));
  }
  parts.push(label('smp-tick', right + 62, y + 15, unit, 'end'));
  return parts;
}

function description({ unit, limit, names, rows }: Bars): string {
  const texts = rows.map(row => {
    const of = limit === null ? '' : ` of ${fixed(limit, 1)} ${unit} usable`;
    const total = limit === null ? amount(row.total, unit) : fixed(row.total, 1);
    return `${row.label}: ${total}${of}: ${listed(names, row.parts, unit)}`;
  });
  return texts.join('; ');
}

/** The parts as text. Those too small to see are omitted. */
export function listed(names: readonly string[], values: readonly number[], unit: string): string {
  const total = sum(values);
  return values.flatMap((value, index) => (isWorth(value, unit, total) ? [`${names[index]} ${amount(value, unit, total)}`] : [])).join(', ');
}

/** Excess of a total over its limit. The allocator's reserve fills a GPU exactly, and rounding does not count. */
export const beyond = (total: number, limit: number): number => (total - limit > 0.006 ? total - limit : 0);

/**
 * A size or a time. Parts of one time are all in seconds or all in milliseconds.
 *
 * @param total Sum of which the value is a part.
 */
export function amount(value: number, unit: string, total = value): string {
  if (unit !== 's') return `${fixed(value, value < 0.1 ? 2 : 1)} ${unit}`;
  const milliseconds = 1000 * value;
  if (total < 0.9995) return `${milliseconds < 9.95 ? Number(milliseconds.toPrecision(2)) : fixed(milliseconds, 0)} ms`;
  return value < 100 ? `${fixed(value, value < 0.1 ? 3 : 2)} s` : `${grouped(value)} s`;
}

/** Whether a part is large enough to list: a step takes milliseconds or minutes, memory is always some GiB. */
export const isWorth = (value: number, unit: string, total: number): boolean =>
  value > 0 && value >= (unit === 's' ? 0.0005 * total : 0.005);

export const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);

/** Stacked bars: memory of pipeline stages next to the limit, and the parts of a step. The charts of the kernel are the pictures of saved notebooks. */

import { escape, fixed, line, rect, stretched, WIDE } from './svg';

export interface BarRow {
  label: string;
  parts: number[];
  /** Sum of the parts before rounding. */
  total: number;
}

export interface Bars {
  unit: string;
  names: string[];
  rows: BarRow[];
  /** Usable memory. */
  limit: number | null;
}

const [TOP, BAR] = [4, 24];

/** HTML of the bars: each with its label, if there are several, and its total. They share one height, however many there are. */
export function bars(data: Bars): string {
  const { unit, rows, limit } = data;
  const most = Math.max(limit ?? 0, ...rows.map(({ total }) => total));
  const x = (value: number): number => (WIDE * value) / (limit === null ? most : 1.02 * most);
  const made = rows.map(row => {
    const over = limit !== null && beyond(row.total, limit) > 0;
    const name = rows.length > 1 ? `<span class="smp-bar-name">${escape(row.label)}</span>` : '';
    return `${name}${bar(data, row, x)}<span class="smp-total${over ? ' smp-over' : ''}">${amount(row.total, unit)}</span>`;
  });
  const usable = limit === null ? '' : `<span class="smp-usable"><span style="--smp-at:${x(limit) / WIDE}">${fixed(limit, 1)} ${unit} usable</span></span><span></span>`;
  return `<div class="smp-bars${rows.length > 1 ? ' smp-bars-named' : ''}${limit === null ? ' smp-bars-plain' : ''}">${usable && rows.length > 1 ? '<span></span>' : ''}${usable}${made.join('')}</div>`;
}

function bar({ unit, limit, names }: Bars, row: BarRow, x: (value: number) => number): string {
  const height = 32;
  const parts: string[] = [];
  let start = 0;
  row.parts.forEach((value, index) => {
    if (!(value > 0)) return;
    parts.push(rect(`smp-part smp-c${index}`, x(start), TOP, x(value), BAR, `${names[index]}: ${amount(value, unit, row.total)}`));
    start += value;
  });
  if (limit !== null) {
    const excess = beyond(row.total, limit);
    if (excess) parts.push(rect('smp-excess', x(limit), TOP + BAR, x(row.total - limit), 3, `${amount(excess, unit)} over the usable memory`));
    parts.push(line('smp-limit-mark', x(limit), 0, x(limit), height));
  }
  const of = limit === null ? '' : ` of ${fixed(limit, 1)} ${unit} usable`;
  const sizes = row.parts.flatMap((value, index) => (isWorth(value, unit, row.total) ? [`${names[index]} ${amount(value, unit, row.total)}`] : []));
  return stretched(height, `${row.label}: ${amount(row.total, unit)}${of}: ${sizes.join(', ')}`, parts);
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
  return value < 100 ? `${fixed(value, value < 0.1 ? 3 : 2)} s` : `${Math.round(value).toLocaleString('en-US')} s`;
}

/** Whether a part is large enough to list: a step takes milliseconds or minutes, memory is always some GiB. */
export const isWorth = (value: number, unit: string, total: number): boolean =>
  value > 0 && value >= (unit === 's' ? 0.0005 * total : 0.005);

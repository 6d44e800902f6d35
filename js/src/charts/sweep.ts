/** Throughput and memory at every position of a setting. Twin: `drawing/sweep.py`. */

import { fixed, linear, short, textWidth, ticks, type Scale } from './scale';
import { dot, frame, label, line, path, rect } from './svg';

/** Fits with the requested probability, with a lower one, does not fit, or cannot be combined. */
export type Fit = 'fits' | 'risk' | 'over' | 'refused';

/** Positions of a setting while the others are fixed. */
export interface Sweep {
  label: string;
  texts: string[];
  /** Of the throughput. */
  unit: string;
  rates: (number | null)[];
  /** GiB needed per GPU. */
  memory: (number | null)[];
  fits: Fit[];
  /** Usable GiB per GPU. */
  limit: number;
  current: number;
  /** -1 if it has no position. */
  recommended: number;
}

const [LEFT, PANE] = [46, 84];
const WORDS = { fits: 'fits', risk: 'at risk', over: 'does not fit', refused: 'cannot be combined' };
const REGIONS = { risk: ['at risk', 'risk'], over: ['out of memory', 'over'], refused: ['not possible', 'no'] };

export function sweep(data: Sweep, width: number): string {
  const count = data.texts.length;
  const cell = (width - LEFT - 8) / Math.max(count, 1);
  const xs = data.texts.map((_, index) => LEFT + cell * (index + 0.5));
  const runs = data.rates.map((value, index) => (data.fits[index] === 'over' ? null : value));
  const parts: string[] = [];
  for (const [top, name, values] of [[14, data.unit, runs], [14 + PANE + 26, 'GiB per GPU', data.memory]] as const) {
    const isMemory = name === 'GiB per GPU';
    const numbers = values.filter(value => value !== null);
    const most = 1.08 * Math.max(...numbers, isMemory ? data.limit : 0, 1e-9);
    const y = linear(0, most, top + PANE, top);
    parts.push(...shades(data, cell, top, isMemory), ...grid(most, y, width, top, name));
    if (isMemory) parts.push(line('smp-limit-mark', LEFT, y(data.limit), width - 8, y(data.limit)));
    const style = isMemory ? 'smp-need' : 'smp-rate';
    const points = values.map((value, index) => (value === null ? null : ([xs[index]!, y(value)] as const)));
    parts.push(path(`smp-curve ${style}`, points));
    points.forEach((point, index) => {
      if (!point) return;
      const chosen = index === data.current ? ' smp-now' : '';
      const best = index === data.recommended ? ' smp-best' : '';
      parts.push(dot(`smp-dot ${style}${chosen}${best}`, ...point, chosen || best ? 5 : 3, positionTitle(data, index)));
    });
  }
  const bottom = 14 + 2 * PANE + 26;
  const every = Math.ceil((Math.max(...data.texts.map(textWidth)) + 8) / cell);
  for (let index = 0; index < count; index += every) parts.push(label('smp-tick', xs[index]!, bottom + 15, data.texts[index]!, 'middle'));
  parts.push(label('smp-text', LEFT + (width - LEFT) / 2, bottom + 32, data.label, 'middle'));
  return frame(width, bottom + 38, `Throughput and memory at ${count} positions`, parts);
}

/** Regions in which the plan does not fit, or is at risk. */
function shades(data: Sweep, cell: number, top: number, isMemory: boolean): string[] {
  const parts: string[] = [];
  for (const { state, start, size } of regions(data.fits)) {
    if (state === 'fits') continue;
    const left = LEFT + cell * start;
    parts.push(rect(`smp-shade smp-${state}`, left, top, cell * size, PANE));
    const text = REGIONS[state].find(name => cell * size > textWidth(name) + 4);
    if (!isMemory && text) parts.push(label(`smp-region smp-in-${state}`, left + (cell * size) / 2, top + PANE - 5, text, 'middle'));
  }
  return parts;
}

/** Neighboring positions in the same state. */
export function regions(fits: readonly Fit[]): { state: Fit; start: number; size: number }[] {
  const result: { state: Fit; start: number; size: number }[] = [];
  fits.forEach((state, index) => {
    const last = result[result.length - 1];
    if (last?.state === state) last.size += 1;
    else result.push({ state, start: index, size: 1 });
  });
  return result;
}

function grid(most: number, y: Scale, width: number, top: number, name: string): string[] {
  const lines = ticks(0, most, 3).flatMap(value => [
    line('smp-grid', LEFT, y(value), width - 8, y(value)),
    label('smp-tick', LEFT - 6, y(value) + 4, short(value), 'end')
  ]);
  return [label('smp-tick', LEFT, top - 4, name), ...lines];
}

/** Figures of a position: `32: 278k tokens/s, 29.0 GiB, fits`. */
export function positionTitle(data: Sweep, index: number): string {
  const [rate, memory, state] = [data.rates[index] ?? null, data.memory[index] ?? null, data.fits[index]!];
  const figures = rate === null || state === 'over' ? [] : [`${short(rate)} ${data.unit}`];
  if (memory !== null) figures.push(`${fixed(memory, 1)} GiB`);
  const notes = index === data.current ? ['current'] : [];
  if (index === data.recommended) notes.push('recommended');
  return `${data.texts[index]}: ${[...figures, WORDS[state], ...notes].join(', ')}`;
}

/** The curve over a slider: throughput and memory at every position, next to the states that do not run. */

import { fixed, linear, short } from './scale';
import { dot, line, path, rect } from './svg';

/** Fits with the requested probability, with a lower one, does not fit, or cannot be combined. */
export type Fit = 'fits' | 'risk' | 'over' | 'refused';

/** Positions of a setting while the others are fixed. */
export interface Sweep {
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

const WORDS = { fits: 'fits', risk: 'at risk', over: 'does not fit', refused: 'cannot be combined' };

/** Height of the drawing in pixels. */
export const TRACK_HEIGHT = 30;
/** Half the width of a slider's thumb: its center cannot come closer to the end of the track. */
const INSET = 8;

/** The curve, as wide as its slider. */
export function sliderTrack(data: Sweep, width: number): string {
  const count = data.texts.length;
  const x = linear(0, Math.max(count - 1, 1), INSET, width - INSET);
  const half = count > 1 ? (width - 2 * INSET) / (count - 1) / 2 : width / 2;
  const bottom = TRACK_HEIGHT - 3;
  const parts = regions(data.fits).flatMap(({ state, start, size }) => {
    if (state === 'fits') return [];
    const [left, right] = [Math.max(x(start) - half, 0), Math.min(x(start + size - 1) + half, width)];
    return [rect(`smp-shade smp-${state}`, left, 0, right - left, TRACK_HEIGHT)];
  });
  const enough = enoughOf(data);
  if (enough >= 0 && enough < data.fits.lastIndexOf('fits')) parts.push(line('smp-enough', x(enough), 2, x(enough), bottom));
  const runs = data.rates.map((value, index) => (data.fits[index] === 'over' ? null : value));
  for (const [style, values, least] of [['smp-need', data.memory, data.limit], ['smp-rate', runs, 0]] as const) {
    const most = Math.max(...values.map(value => value ?? 0), least, 1e-9);
    const y = linear(0, most, bottom, 3);
    if (style === 'smp-need') parts.push(line('smp-track-limit', 0, y(data.limit), width, y(data.limit)));
    parts.push(path(`smp-curve ${style}`, values.map((value, index) => (value === null ? null : [x(index), y(value)]))));
    if (style === 'smp-need') continue;
    for (const [index, mark] of [[data.recommended, 'smp-best'], [data.current, 'smp-now']] as const) {
      const value = values[index];
      if (value !== undefined && value !== null) parts.push(dot(`smp-dot smp-rate ${mark}`, x(index), y(value), 4, positionTitle(data, index)));
    }
  }
  // The chart of the setting has the same figures with a name and a table.
  return `<svg class="smp-chart" aria-hidden="true" width="${width}" height="${TRACK_HEIGHT}">${parts.join('')}</svg>`;
}

/** From this share of the highest throughput, a higher value has no gain that the estimate resolves. */
const ENOUGH = 0.98;

/** First position whose throughput more of the setting does not raise; -1 if it fits at none. */
export function enoughOf({ fits, rates }: Sweep): number {
  const paying = rates.map((rate, index) => (fits[index] === 'fits' ? (rate ?? 0) : 0));
  const most = Math.max(...paying);
  return most > 0 ? paying.findIndex(rate => rate >= ENOUGH * most) : -1;
}

/** Neighboring positions in the same state. */
function regions(fits: readonly Fit[]): { state: Fit; start: number; size: number }[] {
  const result: { state: Fit; start: number; size: number }[] = [];
  fits.forEach((state, index) => {
    const last = result[result.length - 1];
    if (last?.state === state) last.size += 1;
    else result.push({ state, start: index, size: 1 });
  });
  return result;
}

/** Figures of a position: `32: 278k tokens/s, 29.0 GiB, fits`. */
function positionTitle(data: Sweep, index: number): string {
  const [rate, memory, state] = [data.rates[index] ?? null, data.memory[index] ?? null, data.fits[index]!];
  const figures = rate === null || state === 'over' ? [] : [`${short(rate)} ${data.unit}`];
  if (memory !== null) figures.push(`${fixed(memory, 1)} GiB`);
  return `${data.texts[index]}: ${[...figures, WORDS[state]].join(', ')}`;
}

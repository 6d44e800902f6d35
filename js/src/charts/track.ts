/** The curve over a slider: throughput and memory at every position, next to the states that do not run. */

import { dot, line, path, rect, stretched, WIDE } from './svg';

/** Fits with the requested probability, with a lower one, does not fit, or cannot be combined. */
export type Fit = 'fits' | 'risk' | 'over' | 'refused';

/** Positions of a setting while the others are fixed. */
export interface Sweep {
  texts: string[];
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

const HEIGHT = 30;
const BOTTOM = HEIGHT - 3;

/** The curve: from the first position of its slider to the last one. The slider has the figures in words. */
export function sliderTrack(data: Sweep): string {
  const between = WIDE / Math.max(data.texts.length - 1, 1);
  const x = (index: number): number => index * between;
  const parts = data.fits.map((state, index) => (state === 'fits' ? '' : rect(`smp-shade smp-${state}`, x(index - 0.5), 0, between, HEIGHT)));
  const enough = enoughOf(data);
  if (enough >= 0 && enough < data.fits.lastIndexOf('fits')) parts.push(line('smp-enough', x(enough), 2, x(enough), BOTTOM));
  const runs = data.rates.map((value, index) => (data.fits[index] === 'over' ? null : value));
  const height = (values: (number | null)[], least: number) => {
    const most = Math.max(...values.map(value => value ?? 0), least, 1e-9);
    return (value: number): number => BOTTOM - ((BOTTOM - 5) * value) / most;
  };
  const curve = (style: string, values: (number | null)[], y: (value: number) => number): string =>
    path(`smp-curve ${style}`, values.map((value, index) => (value === null ? null : [x(index), y(value)])));
  const [need, rate] = [height(data.memory, data.limit), height(runs, 0)];
  parts.push(line('smp-track-limit', 0, need(data.limit), WIDE, need(data.limit)), curve('smp-need', data.memory, need), curve('smp-rate', runs, rate));
  for (const [index, ...marks] of [[data.recommended, 'smp-best', 'smp-hole'], [data.current, 'smp-now']] as const) {
    const value = runs[index];
    if (value !== undefined && value !== null) parts.push(...marks.map(mark => dot(mark, x(index), rate(value))));
  }
  return stretched(HEIGHT, '', parts);
}

/** From this share of the highest throughput, a higher value has no gain that the estimate resolves. */
const ENOUGH = 0.98;

/** First position whose throughput more of the setting does not raise; -1 if it fits at none. */
export function enoughOf({ fits, rates }: Sweep): number {
  const paying = rates.map((rate, index) => (fits[index] === 'fits' ? (rate ?? 0) : 0));
  const most = Math.max(...paying);
  return most > 0 ? paying.findIndex(rate => rate >= ENOUGH * most) : -1;
}

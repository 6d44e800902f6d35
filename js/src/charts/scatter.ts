/** Plans by free memory and throughput. Twin: `drawing/scatter.py`. */

import { fixed, linear, short, ticks } from './scale';
import { dot, frame, label, line } from './svg';

/** Plans as columns. */
export interface Scatter {
  /** Of the throughput. */
  unit: string;
  /** Free GiB per GPU. */
  free: number[];
  rates: number[];
  /** Positions in `names`. */
  groups: number[];
  names: string[];
  titles: string[];
  /** The recommended plan; -1 for none. */
  best: number;
  /** Free GiB and throughput of the plan on screen. */
  now: readonly [free: number, rate: number] | null;
}

const [LEFT, HEIGHT] = [46, 240];

export function scatter(data: Scatter, width: number): string {
  const { unit, groups, titles, best, now } = data;
  const free = now ? [...data.free, now[0]] : data.free;
  const rates = now ? [...data.rates, now[1]] : data.rates;
  const [low, high] = [Math.min(...free, 0), Math.max(...free) * 1.04];
  const [slow, fast] = [Math.min(...rates), Math.max(...rates)];
  const [bottom, top] = [slow < 0.5 * fast ? 0 : 0.96 * slow, 1.02 * fast];
  const x = linear(low, high, LEFT + 8, width - 12);
  const y = linear(bottom, top, HEIGHT, 22);
  const parts = [label('smp-tick', 0, 11, unit)];
  for (const value of ticks(bottom, top, 5)) {
    parts.push(line('smp-grid', LEFT, y(value), width, y(value)));
    parts.push(label('smp-tick', LEFT - 6, y(value) + 4, short(value), 'end'));
  }
  for (const value of ticks(low, high, width / 90)) {
    parts.push(line('smp-grid', x(value), 22, x(value), HEIGHT));
    parts.push(label('smp-tick', x(value), HEIGHT + 15, short(value), 'middle'));
  }
  parts.push(label('smp-text', LEFT + (width - LEFT) / 2, HEIGHT + 32, 'GiB free per GPU', 'middle'));
  for (let index = titles.length - 1; index >= 0; index -= 1) {
    const style = `smp-point smp-g${groups[index]}${index === best ? ' smp-best' : ''}`;
    parts.push(dot(style, x(data.free[index]!), y(data.rates[index]!), index === best ? 6 : 4, titles[index]));
  }
  if (now) {
    parts.push(dot('smp-here', x(now[0]), y(now[1]), 8, `this plan: ${short(now[1])} ${unit}, ${fixed(now[0], 1)} GiB free`));
    const [side, shift] = x(now[0]) > width - 80 ? (['end', -12] as const) : (['start', 12] as const);
    parts.push(label('smp-text smp-strong', x(now[0]) + shift, y(now[1]) - 6, 'this plan', side));
  }
  const range = `${titles.length} plans by free memory (${short(Math.min(...free))} to ${short(Math.max(...free))} GiB)`;
  return frame(width, HEIGHT + 38, `${range} and throughput (${short(slow)} to ${short(fast)} ${unit})`, parts);
}

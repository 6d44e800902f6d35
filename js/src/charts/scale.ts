/** Axes: positions, ticks and short numbers. `smp_advisor/charts/marks.py` has the same. */

/** From a value to a position in pixels. */
export type Scale = (value: number) => number;

const SUFFIXES: [number, string][] = [[1e12, 'T'], [1e9, 'B'], [1e6, 'M'], [1e3, 'k']];

/** Equal distances for equal differences. */
export function linear(low: number, high: number, start: number, end: number): Scale {
  const span = high > low ? high - low : 1;
  return value => start + ((end - start) * (value - low)) / span;
}

/** The largest power of ten that is not above a positive value. */
function powerBelow(value: number): number {
  let power = 1;
  while (power * 10 <= value) power *= 10;
  while (power > value) power /= 10;
  return power;
}

/** Multiples of 1, 2 or 5 times a power of ten, about `count` of them. */
export function ticks(low: number, high: number, count: number): number[] {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(count, 1);
  const power = powerBelow(raw);
  const step = power * ([1, 2, 5].find(factor => power * factor >= raw) ?? 10);
  const [first, last] = [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  return Array.from({ length: Math.max(last - first + 1, 0) }, (_, index) => (first + index) * step);
}

/** A number with `digits` decimals, halves rounded up. */
export const fixed = (value: number, digits: number): string => value.toFixed(digits);

/** A whole number with commas. */
export const grouped = (value: number): string => Math.floor(value + 0.5).toLocaleString('en-US');

/** Three significant digits with a suffix: `278k`, `1.25M`, `0.5`. */
export function short(value: number): string {
  let size = Math.abs(value);
  if (size < 1e-12) return '0';
  const [scale, suffix] = SUFFIXES.find(([least]) => size >= 0.9995 * least) ?? [1, ''];
  size /= scale;
  let digits = size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  if (size < 0.9995) digits = size >= 0.09995 ? 3 : 4;
  let text = fixed(size, digits);
  if (text.includes('.')) text = text.replace(/\.?0+$/, '');
  return `${value < 0 ? '-' : ''}${text}${suffix}`;
}

/** Approximate width of a label in pixels, at the size of the charts. */
export const textWidth = (text: string): number => 6.2 * text.length;

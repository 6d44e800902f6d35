import { expect, test } from 'vitest';
import { bars, type Bars } from '../src/charts/bars';
import { number, path } from '../src/charts/svg';
import { short, ticks } from '../src/charts/scale';
import cases from './charts.json';

test.each(cases)("the drawing is that of the kernel: $name", ({ data, width, svg }) => {
  expect(bars(data as unknown as Bars, width)).toBe(svg);
});

test('coordinates are tenths of a pixel', () => {
  expect([number(0.04), number(-0.04), number(1.25), number(-3.26), number(12)]).toEqual(['0', '0', '1.3', '-3.3', '12']);
});

test('a line is interrupted where there is no point', () => {
  expect(path('a', [[0, 0], [1, 1], null, [3, 3]])).toBe('<path class="a" d="M0 0L1 1M3 3"/>');
  expect(path('a', [null])).toBe('');
});

test('numbers have three significant digits', () => {
  expect([0, 0.5, 12.345, 999.6, 278123, 1250000, -2.5].map(short)).toEqual(['0', '0.5', '12.3', '1k', '278k', '1.25M', '-2.5']);
  expect(ticks(0, 40, 4)).toEqual([0, 10, 20, 30, 40]);
});

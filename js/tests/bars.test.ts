import { expect, test } from 'vitest';
import { amount } from '../src/charts/bars';
import { Key, MemoryChart, TimeChart } from '../src/widget/charts';
import type { Screen } from '../src/widget/session';
import type { Snapshot } from '../src/widget/wire';
import { recommendation, snapshot } from './fixtures';

const screen = (changes: Partial<Snapshot> = {}): Screen => ({ detail: { ...snapshot(16, 1), ...changes } }) as unknown as Screen;
const titles = (node: Element, selector: string): (string | null)[] => [...node.querySelectorAll(`${selector} title`)].map(title => title.textContent);

test('allocations up to the limit are no excess, whatever rounding adds up to', () => {
  const chart = new MemoryChart(recommendation());
  chart.draw(screen({ stages: [{ label: 'Each GPU', gib: [10.0005, 5.0005, 15.0005], total_gib: 30, peak: true }] }));
  expect(chart.node.querySelector('.smp-excess, .smp-total.smp-over')).toBeNull();
  chart.draw(screen({ stages: [{ label: 'Each GPU', gib: [10, 5, 15.01], total_gib: 30.01, peak: true }] }));
  expect(titles(chart.node, '.smp-excess')).toEqual(['0.01 GiB over the usable memory']);
});

test('a key names every part that can be seen, with its size', () => {
  const key = new Key(['a', 'b', 'c']);
  key.draw([1, 0, 0.0001], 'GiB');
  expect(key.node.textContent).toBe('a1.0 GiB');
  key.draw([1, 2, 3], 'GiB');
  expect(key.node.children.length).toBe(3);
});

test('totals are those of the figures, not of rounded parts', () => {
  const memory = new MemoryChart(recommendation());
  memory.draw(screen({ stages: [{ label: 'Each GPU', gib: [10.05, 5.05, 5.05], total_gib: 20.1499, peak: true }] }));
  expect(memory.node.querySelector('.smp-total')!.textContent).toBe('20.1 GiB');
  const time = new TimeChart(recommendation(), () => undefined);
  time.draw(screen({ seconds: [16, 0.28], step_seconds: 16.286 }));
  expect(time.node.querySelector('.smp-total')!.textContent).toBe('16.29 s');
  expect(time.node.querySelector('figcaption')!.textContent).toContain(snapshot(16, 1).step_range);
});

test('times are written as the kernel writes them, and a short step keeps its parts', () => {
  expect([0.00042, 0.027, 0.65, 11.789, 1234.5].map(value => amount(value, 's'))).toEqual([
    '0.42 ms', '27 ms', '650 ms', '11.79 s', '1,235 s'
  ]);
  expect([0.027, 0.65, 2.35].map(value => amount(value, 's', 9.88))).toEqual(['0.027 s', '0.65 s', '2.35 s']);
});

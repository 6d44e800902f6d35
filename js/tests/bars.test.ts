import { expect, test } from 'vitest';
import { Bar, Key, amount } from '../src/widget/bars';
import { MemoryChart, TimeChart } from '../src/widget/charts';
import { snapshot, recommendation } from './fixtures';

const width = (rect: Element): number => parseFloat(rect.getAttribute('width')!);

test('the parts of a bar are as wide as their share, and told in words', () => {
  const bar = new Bar(['a', 'b', 'c']);
  bar.draw([10, 0, 30], 50, 'GiB', 'two parts');
  const parts = [...bar.node.querySelectorAll('.smp-part')];
  expect(parts.map(width)).toEqual([20, 60]);
  expect(parts.map(part => part.textContent)).toEqual(['a: 10.0 GiB', 'c: 30.0 GiB']);
  expect(bar.node.getAttribute('role')).toBe('img');
  expect(bar.node.getAttribute('aria-label')).toBe('two parts');
});

test('what is too much is marked from the limit on', () => {
  const bar = new Bar(['a']);
  bar.draw([50], 100, 'GiB', '', [{ value: 40, kind: 'usable', title: '40 GiB usable' }]);
  const excess = bar.node.querySelector('.smp-excess')!;
  expect([excess.getAttribute('x'), width(excess)]).toEqual(['40.000%', 10]);
  bar.draw([30], 100, 'GiB', '', [{ value: 40, kind: 'usable', title: '40 GiB usable' }]);
  expect(width(bar.node.querySelector('.smp-excess')!)).toBe(0);
});

test('what the allocator fills to the limit is not too much, whatever rounding adds up to', () => {
  const chart = new MemoryChart(recommendation());
  chart.draw({ ...snapshot(16, 1).costs, stages: [{ label: 'Each GPU', gib: [10.0005, 5.0005, 15.0005], total_gib: 30, peak: true }] });
  expect(chart.node.querySelectorAll('.smp-over').length).toBe(0);
  expect(width(chart.node.querySelector('.smp-excess')!)).toBe(0);
  chart.draw({ ...snapshot(16, 1).costs, stages: [{ label: 'Each GPU', gib: [10, 5, 15.01], total_gib: 30.01, peak: true }] });
  expect(chart.node.querySelectorAll('.smp-over').length).toBe(1);
});

test('a key names every part that can be seen, with its size', () => {
  const key = new Key(['a', 'b', 'c']);
  key.draw([1, 0, 0.0001], 'GiB');
  expect(key.node.textContent).toBe('a1.0 GiB');
  key.draw([1, 2, 3], 'GiB');
  expect(key.node.children.length).toBe(3);
});

test('a chart has one bar a group of stages, and marks the one that is too large', () => {
  const chart = new MemoryChart(recommendation());
  const costs = snapshot(16, 1).costs;
  const stages = [
    { label: 'Stage 0', gib: [10, 5, 20], total_gib: 35, peak: true },
    { label: 'Stages 1–3', gib: [10, 5, 2], total_gib: 17, peak: false }
  ];
  chart.draw({ ...costs, stages });
  expect([...chart.node.querySelectorAll('.smp-stage')].map(label => label.textContent)).toEqual(['Stage 0', 'Stages 1–3']);
  expect(chart.node.querySelectorAll('.smp-over').length).toBe(1);
  chart.draw(costs);
  expect(chart.node.querySelectorAll('svg').length).toBe(1);
});

test('totals are those of the figures, not of rounded parts', () => {
  const memory = new MemoryChart(recommendation());
  memory.draw({ ...snapshot(16, 1).costs, stages: [{ label: 'Each GPU', gib: [10.05, 5.05, 5.05], total_gib: 20.1499, peak: true }] });
  expect(memory.node.querySelector('.smp-total')!.textContent).toBe('20.1 GiB');
  const time = new TimeChart(recommendation());
  time.draw({ ...snapshot(16, 1).costs, seconds: [16, 0.28], step_seconds: 16.286 });
  expect(time.node.querySelector('.smp-total')!.textContent).toBe('16.29 s');
  expect(time.node.querySelector('figcaption')!.textContent).toContain(snapshot(16, 1).costs.step_range);
});

test('times are written as the kernel writes them, and a short step keeps its parts', () => {
  expect([0.00042, 0.027, 0.65, 11.789, 1234.5].map(value => amount(value, 's'))).toEqual([
    '0.42 ms', '27 ms', '650 ms', '11.79 s', '1,235 s'
  ]);
  expect([0.027, 0.65, 2.35].map(value => amount(value, 's', 9.88))).toEqual(['0.027 s', '0.65 s', '2.35 s']);
  const key = new Key(['a', 'b', 'c']);
  key.draw([0.001, 0.002, 0], 's');
  expect(key.node.textContent).toBe('a1 msb2 ms');
});

/** Days and cost of clusters, one line per instance type. Twin: `drawing/frontier.py`. */

import { logTicks, logarithmic, short, textWidth } from './scale';
import { dot, frame, label, line, path, rect } from './svg';

/** One cluster with its best plan. */
export interface ClusterPoint {
  nodes: number;
  time: number;
  cost: number;
  /** 95 % intervals. */
  time_range: readonly [number, number];
  cost_range: readonly [number, number];
  /** `now` for the present cluster, `knee`, or empty. */
  mark: string;
  title: string;
}

export interface Frontier {
  /** Titles of the axes, with their units. */
  time: string;
  cost: string;
  lines: { name: string; points: ClusterPoint[] }[];
  /** Instance types that may be added. */
  further: string[];
  /** Deadline and budget. */
  max_time: number | null;
  max_cost: number | null;
}

const [LEFT, HEIGHT, TOP] = [46, 250, 24];

export function frontier(data: Frontier, width: number): string {
  const { max_time: deadline, max_cost: budget } = data;
  const points = data.lines.flatMap(part => part.points);
  const shown = points.filter(point => point.mark === 'now');
  const times = [...points.map(point => point.time), ...shown.flatMap(point => point.time_range), ...(deadline ? [deadline] : [])];
  const costs = [...points.map(point => point.cost), ...shown.flatMap(point => point.cost_range), ...(budget ? [budget] : [])];
  const [early, late] = [0.9 * Math.min(...times), 1.1 * Math.max(...times)];
  const [cheap, dear] = [0.92 * Math.min(...costs), 1.08 * Math.max(...costs)];
  const x = logarithmic(early, late, LEFT, width - 10);
  const y = logarithmic(cheap, dear, HEIGHT, TOP);
  const parts = [label('smp-tick', 0, 11, data.cost)];
  if (deadline) {
    parts.push(rect('smp-within', LEFT, TOP, x(deadline) - LEFT, HEIGHT - TOP));
    parts.push(line('smp-limit-mark', x(deadline), TOP, x(deadline), HEIGHT));
    parts.push(label('smp-text', x(deadline) - 4, TOP + 12, 'deadline', 'end'));
  }
  for (const value of logTicks(cheap, dear, 7)) {
    parts.push(line('smp-grid', LEFT, y(value), width - 10, y(value)));
    parts.push(label('smp-tick', LEFT - 6, y(value) + 4, short(value), 'end'));
  }
  for (const value of logTicks(early, late, (width - LEFT) / 50)) {
    parts.push(line('smp-grid', x(value), TOP, x(value), HEIGHT));
    parts.push(label('smp-tick', x(value), HEIGHT + 15, short(value), 'middle'));
  }
  if (budget) {
    parts.push(line('smp-limit-mark', LEFT, y(budget), width - 10, y(budget)));
    parts.push(label('smp-text', width - 12, y(budget) - 4, 'budget', 'end'));
  }
  parts.push(label('smp-text', LEFT + (width - LEFT) / 2, HEIGHT + 32, data.time, 'middle'));
  data.lines.forEach((part, group) => {
    parts.push(path(`smp-curve smp-l${group}`, part.points.map(point => [x(point.time), y(point.cost)] as const)));
  });
  data.lines.forEach((part, group) => {
    for (const point of part.points) {
      const [px, py] = [x(point.time), y(point.cost)];
      const marked = point.mark ? ` smp-is-${point.mark}` : '';
      parts.push(dot(`smp-point smp-g${group}${marked}`, px, py, point.mark === 'now' ? 7 : 4.5, point.title));
      if (point.mark !== 'now') continue;
      parts.push(line('smp-whisker', x(point.time_range[0]), py, x(point.time_range[1]), py));
      parts.push(line('smp-whisker', px, y(point.cost_range[0]), px, y(point.cost_range[1])));
    }
  });
  // The present cluster and the knees first: of labels that overlap, the first remains.
  const taken: [number, number][] = [];
  for (const point of ['now', 'knee', ''].flatMap(mark => points.filter(point => point.mark === mark))) {
    const text = point.mark === 'knee' ? `${point.nodes} (knee)` : String(point.nodes);
    const [px, py] = [Math.max(x(point.time), LEFT + textWidth(text) / 2), y(point.cost) + (point.mark ? -10 : 16)];
    const reach = textWidth(text) / 2 + 10;
    if (taken.some(([ox, oy]) => Math.abs(px - ox) <= reach && Math.abs(py - oy) <= 12)) continue;
    taken.push([px, py]);
    parts.push(label(point.mark ? 'smp-tick smp-strong' : 'smp-tick', px, py, text, 'middle'));
  }
  return frame(width, HEIGHT + 38, `${points.length} clusters by time and cost`, parts);
}

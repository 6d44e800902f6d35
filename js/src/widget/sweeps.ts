import { dot, line, rect } from '../charts/svg';
import { sliderTrack, type Fit, type Sweep } from '../charts/track';
import { element, setDrawing } from './dom';
import { same } from './look_ahead';
import type { Screen } from './session';
import type { Ahead, Control, Recommendation } from './wire';

/** Every position of a control, from the look-ahead table; undefined while the table is that of another plan. */
export function sweepOf(control: Control, ahead: Ahead, screen: Screen, shown: Recommendation): Sweep | undefined {
  const entries = ahead.by[control.name] ?? [];
  if (!same(screen.settings, ahead.base) && !entries.some(entry => same(entry.settings, screen.settings))) return undefined;
  const found = control.values.map(value => entries.find(entry => entry.settings[control.name] === value));
  const costs = found.map(entry => (entry === undefined || entry.problem !== undefined ? null : entry.costs));
  return {
    texts: control.texts,
    rates: costs.map(cost => cost && cost.samples_per_second),
    memory: costs.map(cost => cost && cost.needed_gib),
    fits: costs.map((cost): Fit => (cost === null ? 'refused' : cost.fit)),
    limit: shown.usable_gib,
    current: control.values.indexOf(screen.settings[control.name]!),
    recommended: control.values.indexOf(shown.recommended.settings[control.name]!)
  };
}

/** The curve over a slider. Without data of the plan on the screen, the last drawing stays and is marked as older. */
export class Track {
  readonly node = element('div', 'smp-curve-box');

  draw(data: Sweep | undefined): void {
    this.node.classList.toggle('smp-older', data === undefined);
    if (data === undefined || data.texts.length < 2) return;
    setDrawing(this.node, sliderTrack(data));
  }
}

/** Meaning of the lines, marks and areas over the sliders. */
export function curveKey(): HTMLElement {
  return markKey([
    ['throughput', line('smp-curve smp-rate', 0, 5, 16, 5)],
    ['memory', line('smp-curve smp-need', 0, 5, 16, 5)],
    ['now', dot('smp-now', 8, 5)],
    ['recommended', dot('smp-best', 8, 5) + dot('smp-hole', 8, 5)],
    ['no more gain', line('smp-enough', 8, 0, 8, 10)],
    ['at risk', rect('smp-shade smp-risk', 2, 0, 12, 10)],
    ['out of memory', rect('smp-shade smp-over', 2, 0, 12, 10)]
  ]);
}

/** Names of marks, each with its drawing. */
export function markKey(entries: readonly (readonly [text: string, shape: string])[]): HTMLElement {
  const items = entries.map(([text, shape]) => {
    const item = element('span', '', text);
    item.insertAdjacentHTML('afterbegin', `<svg class="smp-chart" width="16" height="10" aria-hidden="true">${shape}</svg>`);
    return item;
  });
  return element('p', 'smp-curve-key', ...items);
}

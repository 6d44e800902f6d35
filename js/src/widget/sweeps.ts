import type { Chart } from '../charts/chart';
import { Figure } from '../charts/figure';
import { Fitted } from '../charts/fitted';
import { positionTitle, type Fit, type Sweep } from '../charts/sweep';
import { dot, line, rect } from '../charts/svg';
import { sliderTrack } from '../charts/track';
import type { ControlListener } from './controls';
import { element, keepKeys } from './dom';
import { same } from './look_ahead';
import type { Screen } from './session';
import type { Ahead, Control, Recommendation } from './wire';

/** Every position of a control, from the look-ahead table; undefined while the table is that of another plan. */
export function sweepOf(control: Control, ahead: Ahead, screen: Screen, shown: Recommendation): Sweep | undefined {
  const entries = ahead.by[control.name] ?? [];
  if (!same(screen.settings, ahead.base) && !entries.some(entry => same(entry.settings, screen.settings))) return undefined;
  const perSample = shown.tokens_per_sample;
  const found = control.values.map(value => entries.find(entry => entry.settings[control.name] === value));
  const costs = found.map(entry => (entry === undefined || entry.problem !== undefined ? null : entry.costs));
  return {
    label: control.label,
    texts: control.texts,
    unit: perSample ? 'tokens/s' : 'samples/s',
    rates: costs.map(cost => cost && cost.samples_per_second * (perSample || 1)),
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
  private readonly fitted = new Fitted(this.node, 60, width => this.data && sliderTrack(this.data, width));
  private data: Sweep | undefined;

  draw(data: Sweep | undefined): void {
    this.node.classList.toggle('smp-older', data === undefined);
    if (data === undefined || data.texts.length < 2) return;
    this.data = data;
    this.fitted.paint();
  }

  dispose(): void {
    this.fitted.dispose();
  }
}

/** Meaning of the lines, marks and areas over the sliders. */
export function curveKey(): HTMLElement {
  const entries = [
    ['throughput', line('smp-curve smp-rate', 0, 5, 16, 5)],
    ['memory', line('smp-curve smp-need', 0, 5, 16, 5)],
    ['now', dot('smp-dot smp-rate smp-now', 8, 5, 4)],
    ['recommended', dot('smp-dot smp-rate smp-best', 8, 5, 4)],
    ['at risk', rect('smp-shade smp-risk', 2, 0, 12, 10)],
    ['out of memory', rect('smp-shade smp-over', 2, 0, 12, 10)]
  ] as const;
  const items = entries.map(([text, shape]) => {
    const item = element('span', '', text);
    item.insertAdjacentHTML('afterbegin', `<svg class="smp-chart" width="16" height="10" aria-hidden="true">${shape}</svg>`);
    return item;
  });
  return element('p', 'smp-curve-key', ...items);
}

/** Throughput and memory at every position of the setting that moved last, or of another one. */
export class SweepChart {
  readonly node: HTMLElement;
  private readonly figure: Figure;
  private readonly choice = keepKeys(element('select', 'smp-select'));
  private name = '';
  private moved = '';
  private shownSweep: Sweep | undefined;
  private screen: Screen | undefined;

  constructor(
    private readonly shown: Recommendation,
    private readonly ahead: () => Ahead,
    private readonly listener: ControlListener
  ) {
    this.figure = new Figure({ use: { word: 'Set', row: row => this.set(row) }, rowOf: text => this.rowOf(text) });
    this.choice.addEventListener('change', () => {
      this.name = this.choice.value;
      if (this.screen) this.draw(this.screen);
    });
    this.choice.setAttribute('aria-label', 'Setting of the curve');
    const title = element('div', 'smp-sweep-choice', 'Throughput and memory by ', this.choice);
    this.node = element('div', 'smp-sweep', title, this.figure.node);
  }

  draw(screen: Screen): void {
    this.screen = screen;
    const sliders = screen.controls.filter(control => control.kind === 'slider' && control.values.length > 1);
    this.node.hidden = sliders.length === 0;
    const names = sliders.map(control => control.name);
    if (screen.moved !== this.moved && names.includes(screen.moved)) this.name = screen.moved;
    this.moved = screen.moved;
    if (!names.includes(this.name)) this.name = names.includes('batch_size') ? 'batch_size' : (names[0] ?? '');
    this.offer(sliders);
    const control = sliders.find(({ name }) => name === this.name);
    const data = control && sweepOf(control, this.ahead(), screen, this.shown);
    this.node.classList.toggle('smp-older', control !== undefined && data === undefined);
    if (control && data && JSON.stringify(data) !== JSON.stringify(this.shownSweep)) {
      this.shownSweep = data;
      this.figure.draw(chartOf(control, data));
    }
  }

  dispose(): void {
    this.figure.dispose();
  }

  private offer(sliders: Control[]): void {
    const options = [...this.choice.options].map(option => option.value);
    if (options.join() !== sliders.map(({ name }) => name).join()) {
      this.choice.replaceChildren(...sliders.map(({ name, label }) => Object.assign(element('option', '', label), { value: name })));
    }
    if (this.choice.value !== this.name) this.choice.value = this.name;
  }

  private rowOf(text: string): number {
    const data = this.shownSweep;
    return data ? data.texts.findIndex((_, index) => positionTitle(data, index) === text) : -1;
  }

  private set(row: number): void {
    const control = this.screen?.controls.find(({ name }) => name === this.name);
    const value = control?.values[row];
    if (value === undefined) return;
    this.listener.move(this.name, value);
    this.listener.commit();
  }
}

function chartOf(control: Control, data: Sweep): Chart<'sweep'> {
  const rows = data.texts.map((text, index) => {
    const [, figures = ''] = positionTitle(data, index).split(': ', 2);
    return [text, figures];
  });
  return { kind: 'sweep', title: '', data, columns: [control.label, 'Figures'], rows, notes: [], key: [] };
}

import { amount, bars, beyond, isWorth } from '../charts/bars';
import { dot, line, rect } from '../charts/svg';
import { button, element, explain, setDrawing, setText } from './dom';
import type { Screen } from './session';
import { markKey } from './sweeps';
import type { Costs, Recommendation } from './wire';
import '../../../smp_advisor/charts/data/charts.css';

/** Memory of each group of pipeline stages, next to the usable memory, the previous plan and the interval. */
export class MemoryChart {
  readonly node: HTMLElement;
  private readonly plot = element('div', 'smp-plot');
  private readonly key: Key;

  constructor(private readonly shown: Recommendation) {
    this.key = new Key(shown.categories, shown.tooltips);
    this.node = element('figure', 'smp-figure', element('figcaption', 'smp-caption', 'Memory per GPU', memoryKey()), this.plot, this.key.node);
  }

  draw({ snapshot, before }: Screen): void {
    const { usable_gib: limit, categories: names } = this.shown;
    const { stages, interval } = snapshot.costs;
    const last = before === undefined || before.settings === snapshot.settings ? undefined : before.costs.stages;
    const ghosts = stages.map((stage, index) => ghost(last, stages.length, index, stage.peak));
    const rows = stages.map((stage, index) => ({
      label: stage.label,
      parts: stage.gib,
      total: stage.total_gib,
      ghost: ghosts[index] ?? null,
      interval: stage.peak ? interval : null
    }));
    setDrawing(this.plot, bars({ unit: 'GiB', names, rows, limit }));
    this.node.classList.toggle('smp-over', stages.some(stage => beyond(stage.total_gib, limit) > 0));
    const peak = stages.find(stage => stage.peak) ?? stages[0];
    this.key.draw(peak?.gib ?? [], 'GiB', stages.length > 1 ? `${peak?.label} (highest peak):` : '');
  }
}

/** Meaning of the marks at a bar of memory. */
const memoryKey = (): HTMLElement =>
  markKey([
    ['95 % interval', line('smp-whisker', 0, 5, 16, 5) + line('smp-whisker', 0.5, 1, 0.5, 9) + line('smp-whisker', 15.5, 1, 15.5, 9) + dot('smp-middle', 8, 5)],
    ['before the change', rect('smp-ghost', 0.5, 0.5, 15, 9)]
  ]);

/** Total of the previous plan behind a bar: of the same group of stages, or the peaks of both if the groups differ. */
function ghost(last: Costs['stages'] | undefined, count: number, index: number, isPeak: boolean): number | undefined {
  if (last === undefined) return undefined;
  if (last.length === count) return last[index]!.total_gib;
  return isPeak ? last.find(stage => stage.peak)?.total_gib : undefined;
}

/** Parts of the step time. */
export class TimeChart {
  readonly node: HTMLElement;
  private readonly plot = element('div', 'smp-plot');
  private readonly key: Key;
  private readonly range = element('span', 'smp-limit smp-range');

  /** @param onMeasure Insert the cell of the short job that measures the step. */
  constructor(
    private readonly shown: Recommendation,
    onMeasure: () => void
  ) {
    this.key = new Key(shown.seconds, shown.tooltips);
    const measure = button('smp-button smp-small', 'Measure this', onMeasure);
    measure.title = 'Insert the cell of a short job that measures this step on one or two nodes';
    const caption = element('figcaption', 'smp-caption', 'Step time', this.range, measure);
    this.node = element('figure', 'smp-figure', caption, this.plot, this.key.node);
  }

  draw({ snapshot: { costs } }: Screen): void {
    this.node.classList.toggle('smp-void', costs.fit === 'over'); // a plan that cannot run has no speed
    setText(this.range, costs.step_range);
    const row = { label: 'Each step', parts: costs.seconds, total: costs.step_seconds, ghost: null, interval: null };
    setDrawing(this.plot, bars({ unit: 's', names: this.shown.seconds, rows: [row], limit: null }));
    this.key.draw(costs.seconds, 's');
  }
}

/** Color, name and value of each part, in the order of the bar. Parts too small to see are omitted. */
export class Key {
  readonly node = element('ul', 'smp-key');
  private drawn = '';

  /** @param tooltips Definitions of the names that the glossary explains. */
  constructor(
    private readonly names: string[],
    private readonly tooltips: Readonly<Record<string, string>> = {}
  ) {}

  /** @param of What the parts belong to, if the chart shows more. */
  draw(values: number[], unit: string, of = ''): void {
    const total = values.reduce((all, value) => all + value, 0);
    const parts = values.map((value, index) => ({ value, index })).filter(({ value }) => isWorth(value, unit, total));
    const key = JSON.stringify([parts.map(({ value, index }) => [index, amount(value, unit, total)]), of]);
    if (key === this.drawn) return;
    this.drawn = key;
    const items = parts.map(({ value, index }) => {
      const name = explain(element('span', 'smp-name', this.names[index]), this.tooltips);
      return element('li', '', element('i', `smp-swatch smp-c${index}`), name, element('b', 'smp-amount', amount(value, unit, total)));
    });
    this.node.replaceChildren(...(of ? [element('li', 'smp-note', of)] : []), ...items);
  }
}

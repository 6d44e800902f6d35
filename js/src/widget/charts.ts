import { amount, bars, beyond, isWorth, sum, type Bars } from '../charts/bars';
import { Fitted } from '../charts/fitted';
import { dot, line, rect } from '../charts/svg';
import { button, element, explain, setText } from './dom';
import type { Screen } from './session';
import { markKey } from './sweeps';
import type { Costs, Recommendation } from './wire';
import '../../../smp_advisor/charts/data/charts.css';

const NARROWEST = 280;

/** Bars in the page, as wide as their place. */
class Plot {
  readonly node = element('div', 'smp-plot');
  private readonly fitted = new Fitted(this.node, NARROWEST, width => this.data && bars(this.data, width));
  private data: Bars | undefined;

  draw(data: Bars): void {
    this.data = data;
    this.fitted.paint();
  }

  dispose(): void {
    this.fitted.dispose();
  }
}

/** Memory of each group of pipeline stages, next to the usable memory, the previous plan and the interval. */
export class MemoryChart {
  readonly node: HTMLElement;
  private readonly plot = new Plot();
  private readonly key: Key;
  private readonly keyTitle = element('p', 'smp-note');

  constructor(private readonly shown: Recommendation) {
    this.key = new Key(shown.categories, shown.tooltips);
    this.node = element('figure', 'smp-figure', element('figcaption', 'smp-caption', 'Memory per GPU', memoryKey()), this.plot.node, this.keyTitle, this.key.node);
  }

  draw({ snapshot, before }: Screen): void {
    const { usable_gib: limit, nominal_gib: nominal, categories: names } = this.shown;
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
    this.plot.draw({ unit: 'GiB', names, rows, limit, nominal });
    this.node.classList.toggle('smp-over', stages.some(stage => beyond(stage.total_gib, limit) > 0));
    const peak = stages.find(stage => stage.peak) ?? stages[0];
    this.keyTitle.hidden = stages.length < 2;
    setText(this.keyTitle, `${peak?.label ?? ''} (highest peak):`);
    this.key.draw(peak?.gib ?? [], 'GiB');
  }

  dispose(): void {
    this.plot.dispose();
  }
}

/** Meaning of the marks at a bar of memory. */
const memoryKey = (): HTMLElement =>
  markKey([
    ['95 % interval', line('smp-whisker', 0, 5, 16, 5) + line('smp-whisker', 0.5, 1, 0.5, 9) + line('smp-whisker', 15.5, 1, 15.5, 9) + dot('smp-middle', 8, 5, 3)],
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
  private readonly plot = new Plot();
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
    this.node = element('figure', 'smp-figure', caption, this.plot.node, this.key.node);
  }

  draw({ snapshot: { costs } }: Screen): void {
    setText(this.range, costs.step_range);
    const row = { label: 'Each step', parts: costs.seconds, total: costs.step_seconds, ghost: null, interval: null };
    this.plot.draw({ unit: 's', names: this.shown.seconds, rows: [row], limit: null, nominal: null });
    this.key.draw(costs.seconds, 's');
  }

  dispose(): void {
    this.plot.dispose();
  }
}

/** Color, name and value of each part, in the order of the bar. Parts too small to see are omitted. */
export class Key {
  readonly node = element('ul', 'smp-key');

  /** @param tooltips Definitions of the names that the glossary explains. */
  constructor(
    private readonly names: string[],
    private readonly tooltips: Readonly<Record<string, string>> = {}
  ) {}

  draw(values: number[], unit: string): void {
    const total = sum(values);
    const parts = values.map((value, index) => ({ value, index })).filter(({ value }) => isWorth(value, unit, total));
    while (this.node.children.length > parts.length) this.node.lastElementChild!.remove();
    while (this.node.children.length < parts.length) {
      this.node.append(element('li', '', element('i', 'smp-swatch'), element('span', 'smp-name'), element('b', 'smp-amount')));
    }
    parts.forEach(({ value, index }, position) => {
      const [swatch, name, size] = [...this.node.children[position]!.children] as [Element, Element, Element];
      swatch.className = `smp-swatch smp-k${index}`;
      setText(name, this.names[index] ?? '');
      explain(name, this.tooltips);
      setText(size, amount(value, unit, total));
    });
  }
}

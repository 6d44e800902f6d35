import { amount, bars, isWorth } from '../charts/bars';
import { button, element, explain, setDrawing, setText } from './dom';
import type { Screen } from './session';
import type { Panel } from './panel';
import type { Recommendation } from './wire';
import '../../../smp_advisor/charts/data/charts.css';

/** Memory of each group of pipeline stages by category. */
export class MemoryChart implements Panel {
  readonly node: HTMLElement;
  private readonly plot = element('div', 'smp-plot');
  private readonly key: Key;

  constructor(private readonly shown: Recommendation) {
    this.key = new Key(shown.categories, shown.tooltips);
    this.node = element('figure', 'smp-figure', element('figcaption', 'smp-caption', 'Memory per GPU by category'), this.plot, this.key.node);
  }

  draw({ detail: { stages } }: Screen): void {
    const { usable_gib: limit, categories: names } = this.shown;
    setDrawing(this.plot, bars({ unit: 'GiB', names, limit, rows: stages.map(({ label, gib, total_gib: total }) => ({ label, parts: gib, total })) }));
    const peak = stages.find(stage => stage.peak) ?? stages[0];
    this.key.draw(peak?.gib ?? [], 'GiB', stages.length > 1 ? `${peak?.label} (highest peak):` : '');
  }
}

/** Parts of the step time. */
export class TimeChart implements Panel {
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

  draw({ detail }: Screen): void {
    this.node.classList.toggle('smp-void', detail.costs.fit === 'over'); // a plan that cannot run has no speed
    setText(this.range, detail.step_range);
    const row = { label: 'Each step', parts: detail.seconds, total: detail.step_seconds };
    setDrawing(this.plot, bars({ unit: 's', names: this.shown.seconds, rows: [row], limit: null }));
    this.key.draw(detail.seconds, 's');
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

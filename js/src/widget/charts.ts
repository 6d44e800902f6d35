import { Bar, Key, amount, beyond, listed, type Mark } from './bars';
import { element, setText } from './dom';
import type { Costs, Recommendation } from './wire';

/** Memory of each group of pipeline stages, next to the usable memory. */
export class MemoryChart {
  readonly node: HTMLElement;
  private readonly rows = element('div', 'smp-rows');
  private readonly key: Key;
  private readonly keyTitle = element('p', 'smp-note');
  private bars: { row: HTMLElement; label: Element; bar: Bar; total: Element }[] = [];

  constructor(private readonly shown: Recommendation) {
    this.key = new Key(shown.categories, shown.tooltips);
    const usable = `${shown.usable_gib.toFixed(1)} GiB usable`;
    const nominal = shown.nominal_gib ? ` of ${shown.nominal_gib.toFixed(0)} nominal` : '';
    const limit = element('span', 'smp-limit', element('i', 'smp-limit-line'), `${usable}${nominal}`);
    this.node = element('figure', 'smp-figure', element('figcaption', 'smp-caption', 'Memory per GPU', limit));
    this.node.append(this.rows, this.keyTitle, this.key.node);
  }

  draw(costs: Costs): void {
    const { usable_gib: usable, nominal_gib: nominal, categories } = this.shown;
    const totals = costs.stages.map(stage => stage.total_gib);
    const full = 1.03 * Math.max(usable, nominal, ...totals);
    const marks: Mark[] = [
      { value: usable, kind: 'usable', title: `${usable.toFixed(1)} GiB usable` },
      { value: nominal, kind: 'nominal', title: `${nominal.toFixed(1)} GiB nominal` }
    ];
    this.resize(costs.stages.length);
    costs.stages.forEach((stage, index) => {
      const { label, bar, total, row } = this.bars[index]!;
      const size = totals[index]!;
      setText(label, stage.label);
      setText(total, amount(size, 'GiB'));
      row.classList.toggle('smp-over', beyond(size, usable) > 0);
      const text = `${stage.label}: ${size.toFixed(1)} of ${usable.toFixed(1)} GiB usable: ${listed(categories, stage.gib, 'GiB')}`;
      bar.draw(stage.gib, full, 'GiB', text, marks);
    });
    const peak = costs.stages.find(stage => stage.peak) ?? costs.stages[0];
    this.keyTitle.hidden = costs.stages.length < 2;
    setText(this.keyTitle, `${peak?.label ?? ''} (highest peak):`);
    this.key.draw(peak?.gib ?? [], 'GiB');
  }

  private resize(count: number): void {
    while (this.bars.length > count) this.bars.pop()!.row.remove();
    while (this.bars.length < count) {
      const [label, total, bar] = [element('span', 'smp-stage'), element('span', 'smp-total'), new Bar(this.shown.categories)];
      const row = element('div', 'smp-stack', label, bar.node, total);
      this.bars.push({ row, label, bar, total });
      this.rows.append(row);
    }
  }
}

/** Parts of the step time. */
export class TimeChart {
  readonly node: HTMLElement;
  private readonly bar: Bar;
  private readonly key: Key;
  private readonly total = element('span', 'smp-total');
  private readonly range = element('span', 'smp-limit');

  constructor(private readonly shown: Recommendation) {
    this.bar = new Bar(shown.seconds);
    this.key = new Key(shown.seconds, shown.tooltips);
    const row = element('div', 'smp-stack', element('span', 'smp-stage', 'Each step'), this.bar.node, this.total);
    this.node = element('figure', 'smp-figure', element('figcaption', 'smp-caption', 'Step time', this.range), row, this.key.node);
  }

  draw(costs: Costs): void {
    const total = costs.step_seconds;
    setText(this.total, amount(total, 's'));
    setText(this.range, costs.step_range);
    const text = `Step time ${amount(total, 's')} (${costs.step_range}): ${listed(this.shown.seconds, costs.seconds, 's')}`;
    this.bar.draw(costs.seconds, total, 's', text);
    this.key.draw(costs.seconds, 's');
  }
}

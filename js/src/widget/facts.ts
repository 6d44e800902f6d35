import { element, explain, setText } from './dom';
import { assumptions, glossary } from './explanation';
import type { Panel } from './panel';
import type { Screen } from './session';
import type { Recommendation } from './wire';

/** Every figure of the plan, the facts and defaults behind them, the assumptions, and the glossary. */
export class Facts implements Panel {
  readonly node: HTMLElement;
  private readonly values: { value: Element; note: Element }[] = [];

  constructor(shown: Recommendation) {
    const figures = element('dl', 'smp-figures');
    for (const label of shown.figures) {
      const [value, note] = [element('dd', 'smp-number'), element('dd', 'smp-note')];
      figures.append(element('div', 'smp-figure-tile', explain(element('dt', '', label), shown.tooltips), value, note));
      this.values.push({ value, note });
    }
    this.node = element(
      'div',
      'smp-facts-page',
      element('h3', 'smp-title', 'Figures of the plan on the screen'),
      figures,
      element('h3', 'smp-title', 'Facts'),
      factList(shown),
      assumptions(shown),
      shown.glossary.length > 0 && glossary(shown.glossary)
    );
  }

  draw({ detail }: Screen): void {
    this.values.forEach(({ value, note }, index) => {
      setText(value, detail.figures[index]?.[0] ?? '');
      setText(note, detail.figures[index]?.[1] ?? '');
    });
  }
}

/** Model, cluster and job, with marks on inferred values, and the defaults. */
function factList(shown: Recommendation): HTMLElement {
  const list = element('dl', 'smp-facts');
  for (const { label, text, mark, note } of shown.facts) {
    const badge = mark && element('span', 'smp-badge smp-badge-mark', mark);
    list.append(element('dt', '', label), element('dd', '', text, badge && ' ', badge, note && element('span', 'smp-note', ` ${note}`)));
  }
  if (shown.defaults.length > 0) {
    list.append(element('dt', '', 'Defaults'), element('dd', 'smp-note', shown.defaults.join(' · ')));
  }
  return list;
}

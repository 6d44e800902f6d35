import { element, explain, keepKeys, setText } from './dom';
import type { Snapshot, Recommendation } from './wire';

/** Model, cluster and job, with marks on inferred values, and the defaults. */
export function header(shown: Recommendation): HTMLElement {
  const list = element('dl', 'smp-facts');
  for (const { label, text, mark, note } of shown.facts) {
    const badge = mark && element('span', 'smp-badge smp-badge-mark', mark);
    list.append(element('dt', '', label), element('dd', '', text, badge && ' ', badge, note && element('span', 'smp-note', ` ${note}`)));
  }
  if (shown.defaults.length > 0) {
    list.append(element('dt', '', 'Defaults'), element('dd', 'smp-note', shown.defaults.join(' · ')));
  }
  return element('header', 'smp-header', element('h2', 'smp-heading', shown.title), list);
}

/** Settings of the plan, with the recommended value next to each that differs. */
export class Configuration {
  readonly node: HTMLElement;
  private readonly title = keepKeys(element('h3', 'smp-title'));
  private readonly body = element('dl', 'smp-tiles');

  constructor(
    private readonly shown: Recommendation,
    reset: HTMLButtonElement
  ) {
    this.title.tabIndex = -1;
    this.node = element('section', 'smp-configuration', element('div', 'smp-titlebar', this.title, reset), this.body);
  }

  focus(): void {
    this.title.focus();
  }

  /** @param isStale Whether the controls show settings that cannot be combined. The title shows this, so the layout stays. */
  draw(snapshot: Snapshot, isStale: boolean): void {
    const { rows, recommended, tooltips } = this.shown;
    const differs = rows.some((_, index) => snapshot.configuration[index] !== recommended.configuration[index]);
    const title = differs ? 'Your configuration' : 'Recommended configuration';
    setText(this.title, isStale ? 'Last valid configuration' : title);
    const tiles = rows.flatMap((row, index) => {
      const [text, advised] = [snapshot.configuration[index], recommended.configuration[index]];
      if (!text) return [];
      const note = text === advised || !advised ? null : element('span', 'smp-was', `recommended: ${advised}`);
      return [element('div', note ? 'smp-tile smp-changed' : 'smp-tile', explain(element('dt', '', row), tooltips), element('dd', '', text, note))];
    });
    this.body.replaceChildren(...tiles);
  }
}

/** The verdict and the key figures. */
export class Figures {
  readonly node: HTMLElement;
  private readonly verdict = element('p', 'smp-verdict');
  private readonly values: { value: Element; note: Element }[] = [];

  constructor(shown: Recommendation) {
    const list = element('dl', 'smp-figures');
    for (const label of shown.figures) {
      const [value, note] = [element('dd', 'smp-number'), element('dd', 'smp-note')];
      list.append(element('div', 'smp-figure-tile', explain(element('dt', '', label), shown.tooltips), value, note));
      this.values.push({ value, note });
    }
    this.node = element('div', 'smp-key-figures', this.verdict, list);
  }

  draw(snapshot: Snapshot): void {
    const { fits, verdict, figures } = snapshot.costs;
    setText(this.verdict, `${fits ? '✓' : '✗'} ${verdict}`);
    this.verdict.classList.toggle('smp-bad', !fits);
    this.values.forEach(({ value, note }, index) => {
      setText(value, figures[index]?.[0] ?? '');
      setText(note, figures[index]?.[1] ?? '');
    });
  }
}

import { element, keepKeys, setText } from './dom';
import type { Moment, Recommendation } from './wire';

/** What the advice is about, with what was inferred or left at its default marked as such. */
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

/** The plan as a table of techniques and degrees; what differs from the recommendation says so. */
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

  /** @param isStale Whether the controls have gone where there is no configuration; the title tells, so that nothing shifts. */
  draw(moment: Moment, isStale: boolean): void {
    const { rows, recommended } = this.shown;
    const differs = rows.some((_, index) => moment.configuration[index] !== recommended.configuration[index]);
    const title = differs ? 'Your configuration' : 'Recommended configuration';
    setText(this.title, isStale ? 'The last settings that can be combined' : title);
    const tiles = rows.flatMap((row, index) => {
      const [text, advised] = [moment.configuration[index], recommended.configuration[index]];
      if (!text) return [];
      const note = text === advised || !advised ? null : element('span', 'smp-was', `recommended: ${advised}`);
      return [element('div', note ? 'smp-tile smp-changed' : 'smp-tile', element('dt', '', row), element('dd', '', text, note))];
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
      list.append(element('div', 'smp-figure-tile', element('dt', '', label), value, note));
      this.values.push({ value, note });
    }
    this.node = element('div', 'smp-key-figures', this.verdict, list);
  }

  draw(moment: Moment): void {
    const { fits, verdict, figures } = moment.costs;
    setText(this.verdict, `${fits ? '✓' : '✗'} ${verdict}`);
    this.verdict.classList.toggle('smp-bad', !fits);
    this.values.forEach(({ value, note }, index) => {
      setText(value, figures[index]?.[0] ?? '');
      setText(note, figures[index]?.[1] ?? '');
    });
  }
}

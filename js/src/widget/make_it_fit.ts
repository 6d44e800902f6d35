import { button, element } from './dom';
import type { Screen, Session } from './session';
import type { Ahead, Recommendation, Settings, Snapshot } from './wire';

/** Changes that are offered at once. */
const MOST = 4;

/** For a memory bar that is too long: the single moves after which the plan fits, the fastest first, one click each. */
export class MakeItFit {
  readonly node: HTMLElement;
  private readonly list = element('div', 'smp-repairs');
  private drawn = '';

  constructor(
    private readonly shown: Recommendation,
    private readonly ahead: () => Ahead,
    private readonly session: Pick<Session, 'apply' | 'reset'>
  ) {
    this.node = element('section', 'smp-fit', element('h3', 'smp-title', 'Make it fit'), this.list);
  }

  draw({ snapshot: { settings, costs }, controls, problem }: Screen): void {
    this.node.hidden = costs.fit === 'fits' || problem !== '';
    const { by } = this.ahead();
    const moves = controls.flatMap(({ name, label, values, texts }) => {
      const fitting = (by[name] ?? []).flatMap(entry => (entry.problem === undefined && entry.costs.fit === 'fits' ? [entry] : []));
      const best = fitting.sort((one, two) => two.costs.samples_per_second - one.costs.samples_per_second)[0];
      return best ? [{ text: `${label}: ${texts[values.indexOf(best.settings[name]!)] ?? String(best.settings[name])}`, plan: best as Snapshot }] : [];
    });
    moves.sort((one, two) => two.plan.costs.samples_per_second - one.plan.costs.samples_per_second);
    const key = this.node.hidden ? '' : JSON.stringify([settings, moves.map(({ plan }) => plan.settings)]);
    if (key === this.drawn) return;
    this.drawn = key;
    if (!key) return;
    const { recommended } = this.shown;
    this.list.replaceChildren(
      ...moves.slice(0, MOST).map(({ text, plan }) => this.offer(text, plan, () => this.session.apply(plan.settings as Settings))),
      ...(recommended.costs.fit === 'fits' ? [this.offer('The recommended plan', recommended, () => this.session.reset())] : [])
    );
  }

  private offer(text: string, { costs }: Snapshot, act: () => void): HTMLElement {
    const made = button('smp-button smp-repair', '', act);
    const [, value, unit] = costs.headline[0]!;
    made.append(element('b', '', text), element('span', 'smp-note', `${costs.memory}, ${value} ${unit}`));
    return made;
  }
}

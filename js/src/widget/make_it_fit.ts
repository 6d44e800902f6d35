import type { Connection } from './connection';
import { button, element } from './dom';
import { KernelPage, type Deeds } from './kernel_page';
import type { Screen, Session } from './session';
import type { FromKernel, Moment, Recommendation } from './wire';

/** Changes that are offered at once. */
const MOST = 4;

/**
 * For a memory bar that is too long: single changes after which the plan fits, one click each. First the settings, which
 * cost nothing, the fastest plan first; then the training and the machines, by price per hour.
 */
export class MakeItFit {
  readonly node: HTMLElement;
  private readonly list = element('div', 'smp-repairs');
  private readonly ways: KernelPage;
  private drawn = '';

  constructor(
    private readonly shown: Recommendation,
    private readonly session: Session,
    view: string,
    connection: Connection,
    deeds: Deeds
  ) {
    this.ways = new KernelPage('fit', view, connection, deeds);
    this.node = element('section', 'smp-fit', element('h3', 'smp-title', 'Make it fit'), this.list, this.ways.node);
  }

  private isOpen = false;

  /** Open below the picture, with the focus on the first change. */
  open(screen: Screen): void {
    this.isOpen = true;
    this.draw(screen);
    this.node.querySelector('button')?.focus();
  }

  onMessage(message: FromKernel): void {
    this.ways.onMessage(message);
  }

  dispose(): void {
    this.ways.dispose();
  }

  draw(screen: Screen): void {
    const { snapshot: { settings, costs }, controls, problem } = screen;
    if (costs.fit === 'fits' || problem !== '') this.isOpen = false;
    this.node.hidden = !this.isOpen;
    if (this.isOpen) this.ways.draw(screen);
    const moves = controls.flatMap(({ name, label, values, texts }) => {
      const fitting = this.session.entries(name).flatMap(entry => (entry.problem === undefined && entry.costs.fit === 'fits' ? [entry] : []));
      const best = fitting.sort((one, two) => two.costs.rate - one.costs.rate)[0];
      return best ? [{ text: `${label}: ${texts[values.indexOf(best.settings[name]!)] ?? String(best.settings[name])}`, plan: best }] : [];
    });
    moves.sort((one, two) => two.plan.costs.rate - one.plan.costs.rate);
    const key = this.node.hidden ? '' : JSON.stringify([settings, moves.map(({ plan }) => plan.settings)]);
    if (key === this.drawn) return;
    this.drawn = key;
    if (!key) return;
    const { recommended } = this.shown;
    this.list.replaceChildren(
      ...moves.slice(0, MOST).map(({ text, plan }) => offer(text, effectOf(plan, this.shown), () => this.session.apply(plan.settings))),
      ...(recommended.costs.fit === 'fits' ? [offer('The recommended plan', effectOf(recommended, this.shown), () => this.session.reset())] : [])
    );
  }
}

function effectOf({ costs }: Moment, { usable_gib: usable, recommended }: Recommendation): string {
  return `${costs.gib.toFixed(1)} of ${usable.toFixed(1)} GiB per GPU, ${costs.speed} ${recommended.headline[0]?.[2] ?? ''}`;
}

/** One change with its effect, as a button. */
export function offer(text: string, effect: string, act: () => void): HTMLElement {
  const made = button('smp-button smp-repair', '', () => {
    // The button disappears. Without this, the page would take the focus, and its shortcuts the next keys.
    made.closest('.smp')?.querySelector<HTMLElement>('.smp-words')?.focus();
    act();
  });
  made.append(element('b', '', text), element('span', 'smp-note', effect));
  return made;
}

import type { Connection } from './connection';
import { button, element } from './dom';
import { RemotePanel } from './remote_panel';
import type { Screen, Session } from './session';
import type { Ahead, FromKernel, Recommendation, Settings, Snapshot, WayOut } from './wire';

/** Changes that are offered at once. */
const MOST = 4;

/**
 * For a memory bar that is too long: single changes after which the plan fits, one click each. First the settings, which
 * cost nothing, the fastest plan first; then the training and the machines, by price per hour.
 */
export class MakeItFit {
  readonly node: HTMLElement;
  private readonly list = element('div', 'smp-repairs');
  private readonly ways: RemotePanel<{ ways: WayOut[] }>;
  /** On narrow pages the offers open below the memory; wide ones have a place for them. */
  private readonly more = button('smp-button smp-small smp-fit-more', 'Show the changes', () => this.open(!this.node.classList.contains('smp-open')));
  private drawn = '';

  constructor(
    private readonly shown: Recommendation,
    private readonly ahead: () => Ahead,
    private readonly session: Pick<Session, 'apply' | 'reset'>,
    view: string,
    connection: Connection,
    onUse: (way: WayOut, position: number, settings: Settings) => void
  ) {
    this.ways = new RemotePanel('fit', view, connection, ({ ways }, into, { snapshot }) => {
      const made = ways.map((way, position) => offer(capital(way.text), way.note, () => onUse(way, position, snapshot.settings)));
      into.replaceChildren(...(made.length > 0 ? [element('p', 'smp-note', 'Or change the training or the machines, with these settings:'), element('div', 'smp-repairs', ...made)] : []));
    });
    this.node = element('section', 'smp-fit', element('h3', 'smp-title', 'Make it fit', this.more), this.list, this.ways.node);
  }

  private open(isOpen: boolean): void {
    this.node.classList.toggle('smp-open', isOpen);
    this.more.setAttribute('aria-expanded', String(isOpen));
  }

  onMessage(message: FromKernel): void {
    this.ways.onMessage(message);
  }

  dispose(): void {
    this.ways.dispose();
  }

  draw(screen: Screen): void {
    const { snapshot: { settings, costs }, controls, problem } = screen;
    this.node.hidden = costs.fit === 'fits' || problem !== '';
    if (this.node.hidden) this.open(false);
    else this.ways.draw(screen);
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
      ...moves.slice(0, MOST).map(({ text, plan }) => offer(text, effectOf(plan), () => this.session.apply(plan.settings as Settings))),
      ...(recommended.costs.fit === 'fits' ? [offer('The recommended plan', effectOf(recommended), () => this.session.reset())] : [])
    );
  }
}

const capital = (text: string): string => `${text.charAt(0).toUpperCase()}${text.slice(1)}`;

function effectOf({ costs }: Snapshot): string {
  const [, value, unit] = costs.headline[0]!;
  return `${costs.memory}, ${value} ${unit}`;
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

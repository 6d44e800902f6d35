import { button, element, setDrawing, setText } from './dom';
import { fixed, line, number, path, rect } from '../charts/svg';
import type { Screen, Session } from './session';
import type { Control, Costs, Recommendation } from './wire';

/** Fits with the requested probability, with a lower one, does not fit, or cannot be combined. */
export type Fit = Costs['fit'] | 'refused';

/** Positions of a setting while the others are fixed. */
export interface Sweep {
  texts: string[];
  costs: (Costs | null)[];
  /** Why a value cannot be combined with the other settings; empty if it can. */
  problems: string[];
  fits: Fit[];
  current: number;
  recommended: number;
}

/** Every position of a control; undefined while the moves are those of another plan. */
export function sweepOf(control: Control, session: Session, screen: Screen, shown: Recommendation): Sweep | undefined {
  const all = session.entries(control.name);
  const entries = control.values.map(value => all.find(each => each.settings[control.name] === value));
  if (entries.length === 0 || !entries.every(entry => entry !== undefined)) return undefined;
  const costs = entries.map(entry => (entry.problem === undefined ? entry.costs : null));
  return {
    texts: control.texts,
    costs,
    problems: entries.map(entry => entry.problem ?? ''),
    fits: costs.map((of): Fit => of?.fit ?? 'refused'),
    current: control.values.indexOf(screen.settings[control.name]!),
    recommended: control.values.indexOf(shown.recommended.settings[control.name]!)
  };
}

/** From this share of the highest throughput, a higher value has no gain that the estimate resolves. */
const ENOUGH = 0.98;

/** Where a setting fits and where it is fastest, in words: `4 or more fit; fastest at 4`. */
export function reachOf({ fits, texts, costs }: Sweep): string {
  const [first, last, end] = [fits.indexOf('fits'), fits.lastIndexOf('fits'), fits.length - 1];
  if (first < 0) return 'None fits';
  const where = first === 0 && last === end ? '' : first === last ? `Only ${texts[first]} fits` : first === 0 ? `${texts[last]} or fewer fit` : last === end ? `${texts[first]} or more fit` : `${texts[first]} to ${texts[last]} fit`;
  const rates = costs.map((of, index) => (fits[index] === 'fits' ? of!.rate : 0));
  const enough = rates.findIndex(rate => rate >= ENOUGH * Math.max(...rates));
  const speed = first === last ? '' : enough < last ? `${where ? 'fastest' : 'Fastest'} at ${texts[enough]}` : '';
  return [where, speed].filter(Boolean).join('; ');
}

const [HEIGHT, BASE, TOP] = [96, 78, 8];

/** Speed and memory at every position of the control in use, always in the same place. */
export class Curve {
  readonly node: HTMLElement;
  private readonly name = element('b', '');
  private readonly note = element('p', 'smp-note');
  private readonly largest: HTMLButtonElement;
  private readonly plot = element('div', 'smp-curve-plot');
  private width = 0;
  private limit: [name: string, value: Control['values'][number]] | undefined;

  constructor(
    private readonly shown: Recommendation,
    private readonly session: Session
  ) {
    this.largest = button('smp-link-button smp-largest', '', () => {
      if (!this.limit) return;
      session.grab();
      session.move(...this.limit);
      session.commit();
      document.querySelector<HTMLElement>(`[name="${this.limit[0]}"]`)?.focus(); // the button disappears
    });
    this.node = element('div', 'smp-curve-panel', element('div', '', this.name, this.note, this.largest), this.plot);
  }

  /** Before anything is drawn: afterwards, the browser would lay the page out for it. */
  measure(): void {
    this.width = this.plot.clientWidth;
  }

  draw(screen: Screen, inUse: string): void {
    const sliders = screen.controls.filter(({ kind, values }) => kind !== 'checkbox' && values.length > 1);
    const control = sliders.find(({ name }) => name === inUse) ?? sliders.find(({ name }) => name === 'batch_size') ?? sliders[0];
    this.node.hidden = control === undefined;
    if (control === undefined) return;
    const sweep = sweepOf(control, this.session, screen, this.shown);
    setText(this.name, control.label);
    this.node.classList.toggle('smp-older', sweep === undefined);
    this.largest.hidden = true;
    if (sweep === undefined) return;
    const now = sweep.costs[sweep.current];
    const unit = screen.detail.headline[0]?.[2] ?? '';
    setText(this.note, [reachOf(sweep), now ? `${now.speed} ${unit}, ${now.gib.toFixed(1)} GiB` : ''].filter(Boolean).join('. '));
    const limit = sweep.fits.lastIndexOf('fits');
    if (control.name === 'batch_size' && limit >= 0 && limit !== sweep.current) {
      this.limit = [control.name, control.values[limit]!];
      this.largest.hidden = false;
      setText(this.largest, `max ${sweep.texts[limit]}`);
      this.largest.title = 'Largest batch size that fits with the required probability, while the other settings stay';
    }
    setDrawing(this.plot, drawing(sweep, this.width || this.plot.clientWidth || 400, this.shown.usable_gib));
  }
}

function drawing({ texts, costs, fits, current, recommended }: Sweep, wide: number, usable: number): string {
  const step = (wide - 16) / Math.max(texts.length - 1, 1);
  const x = (index: number): number => 8 + index * step;
  const rates = costs.map((of, index) => (of && fits[index] !== 'over' ? of.rate : null));
  const scale = (most: number) => (value: number): number => BASE - ((BASE - TOP - 8) * Math.min(value, most)) / most;
  const [speed, memory] = [scale(Math.max(...rates.map(rate => rate ?? 0), 1e-9)), scale(1.5 * usable)];
  const curve = (style: string, values: (number | null)[], y: (value: number) => number): string => path(style, values.map((value, index) => (value === null ? null : [x(index), y(value)])));
  const zones = fits.map((fit, index) => {
    const [left, right] = [Math.max(8, x(index) - step / 2), Math.min(wide - 8, x(index) + step / 2)];
    return fit === 'fits' ? '' : rect(`smp-zone-${fit}`, left, TOP, right - left, BASE - TOP);
  });
  const here = costs[current];
  const dot = here ? `<circle class="smp-now" cx="${number(x(current))}" cy="${number(speed(here.rate))}" r="5"/>` : '';
  const marks = [line('smp-cursor', x(current), TOP, x(current), BASE), recommended >= 0 && recommended !== current ? line('smp-best-line', x(recommended), TOP, x(recommended), BASE) : ''];
  const words = (at: number, anchor: string, text: string): string => `<text x="${number(at)}" y="93" text-anchor="${anchor}">${text}</text>`;
  const ends = [texts[0]!, texts[texts.length - 1]!].map((text, index) => (wide >= 260 ? text : index ? text.slice(-9) : text.slice(0, 9)));
  // The middle stays clear of the ends, at about 6.5 pixels a letter.
  const room = wide - 40 - 13 * Math.max(...ends.map(text => text.length));
  const key = ['line: speed · dots: memory · hatched: too big', 'line: speed · dots: memory', 'dots: memory', ''].find(text => 6.5 * text.length <= room) ?? '';
  const [first, last] = ends.map(text => text.replace(/&/g, '&amp;').replace(/</g, '&lt;')) as [string, string];
  return (
    `<svg class="smp-curve" width="${fixed(wide, 0)}" height="${HEIGHT}" role="img" aria-label="Curve of speed and memory over ${texts.length} positions">` +
    '<defs><pattern id="smp-hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0v6"/></pattern></defs>' +
    zones.join('') + line('smp-base', 8, BASE, wide - 8, BASE) + curve('smp-need', costs.map(of => of && of.gib), memory) + curve('smp-rate', rates, speed) + marks.join('') + dot +
    words(8, 'start', first) + words(wide / 2, 'middle', key) + words(wide - 8, 'end', last) + '</svg>'
  );
}

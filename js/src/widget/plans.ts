import type { Connection } from './connection';
import { element, setDrawing, setText } from './dom';
import { line, number, path, rect } from '../charts/svg';
import type { Screen, Session } from './session';
import type { FromKernel, Recommendation } from './wire';

const [HEIGHT, LEFT, BASE, TOP] = [284, 44, 258, 14];

/** All plans: what memory buys in speed. A point shows its plan. */
export class Plans {
  readonly node: HTMLElement;
  private readonly title = element('h3', 'smp-title', 'Plans');
  private readonly unit = element('span', 'smp-note');
  private readonly plot = element('div', 'smp-plans-plot');
  private readonly id: string;
  private points: [gib: number, rate: number][] | undefined;
  private screen: Screen | undefined;
  private width = 0;

  constructor(
    private readonly shown: Recommendation,
    view: string,
    connection: Connection,
    session: Session
  ) {
    this.id = `${view}-points`;
    this.node = element('section', 'smp-field-of-plans', element('div', 'smp-heading-line', this.title, this.unit), this.plot);
    this.plot.addEventListener('click', event => {
      const row = (event.target as Element).getAttribute('data-row');
      if (row !== null) session.act('adopt', Number(row));
    });
    const { settings } = shown.recommended;
    connection.request({ kind: 'panel', id: this.id, name: 'points', settings, options: {} }, () => undefined);
  }

  onMessage(message: FromKernel): void {
    if (message.id !== this.id) return;
    if (message.kind === 'panel') this.points = (message.data as { points: [number, number][] }).points;
    if (message.kind === 'failed') this.points = [];
    if (this.screen) this.draw(this.screen);
  }

  /** As for the curve. */
  measure(): void {
    this.width = this.plot.clientWidth;
  }

  draw(screen: Screen): void {
    this.screen = screen;
    const { points = [] } = this;
    const { usable_gib: usable, recommended } = this.shown;
    const { costs } = screen.snapshot;
    const unit = recommended.headline[0]?.[2] ?? 'samples/s';
    this.node.hidden = this.points?.length === 0;
    setText(this.title, this.points ? `${points.length.toLocaleString('en-US')} ${points.length === 1 ? 'plan' : 'plans'}` : 'Plans');
    setText(this.unit, `${unit} against GiB per GPU`);
    const wide = Math.max(this.width || this.plot.clientWidth || 400, 200);
    const scale = this.shown.per_sample;
    const [here, best] = [scale * costs.rate, scale * recommended.costs.rate];
    const most = 1.14 * Math.max(...points.map(([, rate]) => rate), best, Math.min(here, 2 * best));
    const [low, high] = [Math.max(0, Math.min(usable, recommended.costs.gib, ...points.map(([gib]) => gib)) * 0.6), 1.25 * usable];
    const x = (gib: number): number => LEFT + ((Math.min(gib, 0.99 * high) - low) / (high - low)) * (wide - LEFT - 12);
    const y = (rate: number): number => BASE - (Math.min(rate, most) / most) * (BASE - TOP);
    const ticks = steps(most, 3);
    const across = steps(usable, wide < 300 ? 3 : 5).filter(gib => gib > low && x(usable) - x(gib) > 26);
    const front: [number, number][] = [];
    let top = 0;
    for (const [gib, rate] of [...points].sort(([one], [two]) => one - two)) {
      if (rate <= top) continue;
      if (front.length > 0) front.push([x(gib), y(top)]);
      front.push([x(gib), y((top = rate))]);
    }
    if (front.length > 0) front.push([x(usable), y(top)]);
    const isMoved = Math.abs(costs.gib - recommended.costs.gib) > 0.05 || Math.abs(here / best - 1) > 0.005;
    const words = (left: number, low: number, anchor: string, text: string, style = ''): string => `<text x="${number(left)}" y="${number(low)}" text-anchor="${anchor}" class="${style}">${text}</text>`;
    const label = `${isMoved ? 'yours' : 'recommended'} ${costs.gib.toFixed(1)} GiB, ${costs.speed}`;
    const [cx, cy] = [x(costs.gib), y(here)];
    const long = 7.4 * label.length;
    const left = cx + 4 + long < x(usable) ? cx + 4 : Math.max(2, Math.min(cx, x(usable)) - 12 - long);
    setDrawing(
      this.plot,
      `<svg class="smp-plans-chart" width="${wide}" height="${HEIGHT}" role="img" aria-label="${points.length} plans. ${label} ${unit}. The usable memory ends at ${usable.toFixed(1)} GiB.">` +
        rect('smp-beyond', x(usable), TOP - 4, wide - 12 - x(usable), BASE - TOP + 4) +
        ticks.map(rate => line('smp-base', LEFT, y(rate), wide - 12, y(rate)) + words(LEFT - 6, y(rate) + 4, 'end', short(rate))).join('') +
        across.map(gib => words(x(gib), HEIGHT - 10, 'middle', String(gib))).join('') +
        words(x(usable), HEIGHT - 10, 'middle', usable.toFixed(1)) +
        line('smp-wall', x(usable), TOP - 4, x(usable), BASE) +
        points.map(([gib, rate], row) => `<circle class="smp-plan" data-row="${row}" cx="${number(x(gib))}" cy="${number(y(rate))}" r="3"/>`).join('') +
        path('smp-front', front) +
        (isMoved ? `<circle class="smp-ring" cx="${number(x(recommended.costs.gib))}" cy="${number(y(best))}" r="6"/>` : '') +
        `<circle class="smp-chosen${costs.fit === 'over' ? ' smp-over' : ''}" cx="${number(cx)}" cy="${number(cy)}" r="7"/>` +
        words(left, Math.min(cy, front.length > 0 && cy - y(top) < 24 ? y(top) : cy) - 10, 'start', label, 'smp-ink') +
        '</svg>'
    );
  }
}

/** Round values from zero on, about `count` of them. */
function steps(most: number, count: number): number[] {
  const power = 10 ** Math.floor(Math.log10(most / count));
  const step = [1, 2, 5, 10].map(part => part * power).find(size => most / size <= count) ?? 10 * power;
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, index) => Number((index * step).toPrecision(6)));
}

const short = (value: number): string => (value >= 1e6 ? `${value / 1e6}M` : value >= 1e3 ? `${value / 1e3}k` : String(value));

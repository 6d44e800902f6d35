import { element, keepKeys, setText } from './dom';
import type { Screen, Session } from './session';
import type { Costs, Recommendation } from './wire';

const BATCH = 'batch_size';
/** The tank ends at this multiple of the limit, so the wall is at two thirds. */
const SCALE = 1.5;

/**
 * Memory per GPU: a stair for each technique, and the tank with the limit as a wall. The stairs are linear up to the
 * full model, the tank magnifies, and the slope between them is the change of scale. Dragging the edge moves the batch.
 */
export class Picture {
  readonly node: HTMLElement;
  private readonly odds = element('span', 'smp-note');
  private readonly stairs = element('ol', 'smp-stairs');
  private readonly wall = element('i', 'smp-stairs-wall');
  private readonly slope = element('div', 'smp-slope');
  private readonly tank = element('div', 'smp-tank');
  private readonly key = element('p', 'smp-key');
  private readonly parts = new Map<string, HTMLElement>();
  private readonly grip = keepKeys(element('button', 'smp-grip'));
  private width = 0;

  constructor(
    private readonly shown: Recommendation,
    private readonly session: Session
  ) {
    for (const name of ['out', 'state', 'activations', 'rest', 'edge', 'over', 'before', 'best', 'wall', 'size', 'limit', 'free']) {
      const part = element(['size', 'limit', 'free'].includes(name) ? 'em' : 'i', `smp-t-${name}`);
      this.parts.set(name, part);
      this.tank.append(part);
    }
    this.slope.innerHTML = '<i class="smp-s-all"></i><i class="smp-s-stay"></i><i class="smp-s-over"></i><svg preserveAspectRatio="none" viewBox="0 0 100 28"><line y1="0" y2="28"/></svg>';
    this.grip.type = 'button';
    this.grip.tabIndex = -1; // a second handle of the batch slider, for the pointer
    for (const hidden of [this.grip, this.slope, this.tank, this.wall]) hidden.setAttribute('aria-hidden', 'true');
    this.grip.addEventListener('pointerdown', event => this.drag(event));
    this.tank.append(this.grip);
    this.node = element('section', 'smp-charts', element('div', 'smp-heading-line', element('h3', 'smp-title', 'Memory per GPU'), this.odds), this.stairs, this.slope, this.tank, this.key);
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', 'Memory per GPU after each technique');
  }

  /** As for the curve. */
  measure(): void {
    this.width = this.stairs.clientWidth;
  }

  draw(screen: Screen): void {
    const { costs } = screen.snapshot;
    this.node.classList.toggle('smp-older', screen.isWaiting || screen.problem !== '');
    this.node.dataset['fit'] = costs.fit;
    setText(this.odds, screen.problem ? 'of the plan before: these settings cannot be combined' : `fits with ${costs.odds} probability (you requested ${this.shown.required})`);
    this.drawStairs(costs);
    this.drawTank(screen);
  }

  private drawStairs({ rungs: used, gib: need, fit }: Costs): void {
    const { usable_gib: usable } = this.shown;
    const slots = this.slots(used);
    // A technique that is off takes nothing away: its row keeps the place, so that nothing below moves.
    const rungs = slots.map(name => used.find(([title], index) => keyOf(title, index) === name) ?? [`${name}: off`, null] as const);
    this.slope.hidden = this.stairs.hidden = rungs.length < 2; // before it is measured
    this.width ||= this.stairs.clientWidth;
    const sizes: number[] = [];
    rungs.forEach(([title, size], index) => sizes.push(title.endsWith(': off') ? sizes[index - 1]! : (size ?? sizes[index - 1] ?? 0)));
    const last = rungs.map(([title]) => !title.endsWith(': off')).lastIndexOf(true);
    for (let index = last; index < sizes.length; index += 1) sizes[index] = need;
    const most = Math.max(...sizes, usable);
    while (this.stairs.querySelectorAll('li').length > rungs.length) this.stairs.querySelector('li:last-of-type')!.remove();
    while (this.stairs.querySelectorAll('li').length < rungs.length) {
      this.stairs.append(element('li', '', ...['gone', 'still', 'stay', 'over'].map(name => element('i', `smp-k-${name}`)), element('span', '', element('b'), element('span', 'smp-note'), element('span'), element('span', 'smp-note smp-wide'))));
    }
    if (!this.wall.isConnected) this.stairs.append(this.wall);
    const within = Math.min(need, usable);
    const isFlat = this.width >= 590 || this.width === 0;
    const placed: { words: HTMLElement; start: number; isLast: boolean }[] = [];
    [...this.stairs.querySelectorAll('li')].forEach((item, index) => {
      const [title] = rungs[index]!;
      const size = sizes[index]!;
      const before = index > 0 ? sizes[index - 1]! : size;
      const isLast = index === last;
      const isOff = title.endsWith(': off');
      const place = (name: string, left: number, right: number): void => at(item.querySelector(name)!, left / most, (right - left) / most);
      place('.smp-k-gone', size, Math.max(before, size));
      place('.smp-k-still', within, Math.max(size, within));
      place('.smp-k-stay', 0, within);
      place('.smp-k-over', usable, index >= last && need > usable ? need : usable);
      const words = item.lastElementChild as HTMLElement;
      const [name, change, left, state] = words.children;
      setText(name!, title);
      const none = rungs[index]![1] === null;
      item.classList.toggle('smp-off', isOff);
      setText(change!, index > 0 && !none ? `${size > before ? '+' : '−'}${one(Math.abs(before - size))} →` : '');
      setText(left!, isOff ? '' : none ? 'no such plan' : `${one(size)} GiB`);
      const fits = isLast && fit === 'fits' ? (index > 0 && before > usable ? 'fits from here' : 'fits') : isLast && fit === 'risk' ? 'close to the limit' : size > usable ? (index > 0 ? 'still too big' : 'too big') : 'fits';
      setText(state!, none ? '' : `, ${fits}`);
      const start = (index > 0 ? Math.max(size, usable) : usable) / most;
      words.style.left = percent(start);
      words.classList.remove('smp-on-bar');
      placed.push({ words, start, isLast });
    });
    // All widths at once: each one between two changes would be a layout of its own.
    const widths = placed.map(({ words }) => words.offsetWidth);
    placed.forEach(({ words, start, isLast }, index) => {
      if (!isFlat || !this.width || start * this.width + widths[index]! <= this.width) return;
      const wide = widths[index]! / this.width + 0.006;
      const isCovered = 1 - wide < within / most && wide < within / most;
      words.style.left = percent(Math.max(0, (isCovered ? within / most : 1) - wide));
      words.classList.toggle('smp-on-bar', isCovered || (isLast && need > usable));
    });
    const [k, q] = [(size: number): number => (100 * size) / most, (size: number): number => Math.min(100, (100 * size) / (SCALE * usable))];
    const shape = (name: string, a: number, b: number, c: number, d: number): void => {
      (this.slope.querySelector(name) as HTMLElement).style.clipPath = `polygon(${a}% 0,${b}% 0,${c}% 100%,${d}% 100%)`;
    };
    this.wall.style.left = `calc(${k(usable)}% - 1px)`;
    shape('.smp-s-all', 0, Math.min(100, k(SCALE * usable)), 100, 0);
    shape('.smp-s-stay', 0, k(within), q(within), 0);
    shape('.smp-s-over', k(usable), Math.min(k(SCALE * usable), Math.max(k(need), k(usable))), q(Math.max(need, usable)), q(usable));
    const line = this.slope.querySelector('line')!;
    line.setAttribute('x1', String(k(usable)));
    line.setAttribute('x2', String(q(usable)));
  }

  private known: string[] = [];

  /** Techniques of the plan and of all moves from it, in their order. */
  private slots(used: Costs['rungs']): string[] {
    const moves = this.session.screen.controls.flatMap(({ name }) => this.session.entries(name));
    const ladders = [used, this.shown.recommended.costs.rungs, ...moves.flatMap(entry => (entry.problem === undefined ? [entry.costs.rungs] : []))];
    for (const ladder of ladders) {
      ladder.map(([title], index) => keyOf(title, index)).forEach((name, index, all) => {
        if (!this.known.includes(name)) this.known.splice(index > 0 ? this.known.indexOf(all[index - 1]!) + 1 : 0, 0, name);
      });
    }
    return this.known;
  }

  private drawTank({ snapshot: { costs }, before, controls }: Screen): void {
    const { usable_gib: usable, recommended } = this.shown;
    const { gib: need, state, activations, edge, fit } = costs;
    const within = Math.min(need, usable);
    const end = SCALE * usable;
    const q = (size: number): number => Math.min(1, size / end);
    const part = (name: string): HTMLElement => this.parts.get(name)!;
    const place = (name: string, left: number, right: number): void => at(part(name), q(left), q(right) - q(left));
    const isOver = fit === 'over' && need > usable;
    const soft = fit === 'over' ? need : edge;
    part('out').style.left = percent(2 / 3);
    place('state', 0, Math.min(state, within));
    place('activations', Math.min(state, within), Math.min(state + activations, within));
    place('rest', Math.min(state + activations, within), within);
    place('edge', need, Math.max(need, soft));
    place('over', usable, Math.max(usable, need));
    part('wall').style.left = percent(2 / 3);
    const best = recommended.costs.gib;
    part('best').hidden = Math.abs(best - need) < 0.05;
    part('best').style.left = percent(q(best));
    const start = before?.costs.gib;
    const isMoved = start !== undefined && Math.abs(start - need) >= 0.05;
    part('before').hidden = !isMoved;
    part('before').style.width = percent(q(start ?? 0));
    const [size, limit, free] = [part('size'), part('limit'), part('free')];
    const isFar = need > end;
    setText(size, `${need >= 1000 ? Math.round(need).toLocaleString('en-US') : need.toFixed(1)} GiB`);
    const wide = this.tank.clientWidth;
    const isNarrow = wide > 0 && wide < 330; // right of the wall are 110 pixels
    setText(limit, `${usable.toFixed(1)} GiB${isNarrow ? '' : ' usable'}`);
    setText(free, need <= usable ? `${(usable - need).toFixed(1)} GiB free` : isFar ? `${need > 3 * usable ? Math.round(need / usable) : (need / usable).toFixed(1)} ×${isNarrow ? '' : ' the limit'}` : `${(need - usable).toFixed(1)} GiB over`);
    const px = (gib: number): number => q(gib) * wide;
    const wall = px(usable);
    const isInside = px(within) > size.offsetWidth + 16;
    const put = (target: HTMLElement, left: number, style = ''): void => {
      target.style.left = `${Math.max(0, left)}px`;
      target.dataset['on'] = style;
    };
    put(size, isFar ? wall + (wide < 500 ? 6 : 14) : isInside ? 12 : px(soft) + 18, isFar ? 'far' : isInside ? 'bar' : '');
    const gap = free.offsetWidth + 12;
    if (isFar) {
      put(limit, wall - limit.offsetWidth - 16, 'pill');
      put(free, wall + (wide < 500 ? 6 : 14), 'far');
    } else if (!isOver) {
      const ground = soft > usable ? 'pill' : ''; // the soft edge is below
      put(limit, wall + 10, ground);
      put(free, wall - px(soft) > gap + 8 ? wall - gap : wall + 10, ground);
    } else {
      const hasRoom = wide - px(need) > Math.max(gap, limit.offsetWidth) + 30;
      put(limit, hasRoom ? px(need) + 22 : wall - limit.offsetWidth - 18, hasRoom ? '' : 'pill');
      put(free, hasRoom ? px(need) + 22 : wall - gap - 6, hasRoom ? '' : 'pill');
    }
    const batch = controls.find(({ name }) => name === BATCH);
    const canDrag = batch !== undefined && batch.values.length > 1;
    this.grip.hidden = !canDrag;
    this.grip.style.left = percent(q(Math.min(need, 0.985 * end)));
    const entries: [string, string][] = [
      ['state', `model state ${state.toFixed(1)}`],
      ['activations', `activations and logits ${activations.toFixed(1)}`],
      ['rest', `buffers and CUDA ${Math.max(0, need - state - activations).toFixed(1)}`]
    ];
    if (fit !== 'over') entries.push(['edge', `soft edge: below ${edge.toFixed(1)} with ${this.shown.required} probability`]);
    if (!part('best').hidden) entries.push(['best', `thin line: recommended, ${best.toFixed(1)}`]);
    entries.push(isMoved ? ['', `dashed: before, ${start.toFixed(1)}`] : ['', canDrag && part('best').hidden ? 'drag the edge: the batch follows' : '']); // with the thin line, it would be a third line
    const text = JSON.stringify(entries);
    if (this.key.dataset['drawn'] === text) return;
    this.key.dataset['drawn'] = text;
    this.key.replaceChildren(...entries.map(([name, words]) => element('span', name ? '' : 'smp-last', name && element('i', `smp-swatch smp-w-${name}`), words)));
  }

  /** The batch whose memory is nearest to the pointer. */
  private drag(event: PointerEvent): void {
    event.preventDefault();
    this.session.grab();
    const box = this.tank.getBoundingClientRect();
    const onMove = (move: PointerEvent): void => {
      const gib = ((move.clientX - box.left) / box.width) * SCALE * this.shown.usable_gib;
      const sizes = this.session.entries(BATCH).flatMap(entry => (entry.problem === undefined ? [entry] : []));
      const nearest = sizes.reduce<(typeof sizes)[number] | undefined>((best, entry) => (best && Math.abs(best.costs.gib - gib) < Math.abs(entry.costs.gib - gib) ? best : entry), undefined);
      const value = nearest?.settings[BATCH];
      if (value !== undefined && value !== this.session.screen.settings[BATCH]) this.session.move(BATCH, value);
    };
    const onUp = (): void => {
      window.removeEventListener('pointermove', onMove);
      window.removeEventListener('pointerup', onUp);
      this.session.commit();
    };
    window.addEventListener('pointermove', onMove);
    window.addEventListener('pointerup', onUp);
  }
}

/** The name of a technique without its figures; the first is the plan without any. */
const keyOf = (title: string, index: number): string => (index === 0 ? 'start' : title.replace(/ (over|of the) .*| \(.*|,.*/, ''));
const one = (gib: number): string => gib.toLocaleString('en-US', { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const percent = (share: number): string => `${(100 * Math.min(Math.max(share, 0), 1)).toFixed(3)}%`;

function at(target: Element, left: number, width: number): void {
  const { style } = target as HTMLElement;
  style.left = percent(left);
  style.width = percent(width);
}

import { element, explain, setText } from './dom';

const NS = 'http://www.w3.org/2000/svg';

export interface Mark {
  value: number;
  kind: 'usable' | 'nominal';
  title: string;
}

/** One stacked bar: rectangles in percent of the width, so that resizing the page redraws nothing. */
export class Bar {
  readonly node: SVGSVGElement;

  constructor(private readonly names: string[]) {
    this.node = document.createElementNS(NS, 'svg');
    this.node.setAttribute('class', 'smp-bar');
    this.node.setAttribute('role', 'img');
  }

  draw(values: number[], full: number, unit: string, label: string, marks: Mark[] = []): void {
    const limit = marks.find(mark => mark.kind === 'usable')?.value ?? Infinity;
    const total = sum(values);
    const parts = values.map((value, index) => ({ value, index })).filter(part => part.value > 0);
    const shapes = this.shapes(parts.length + 1 + marks.length);
    let start = 0;
    parts.forEach(({ value, index }, position) => {
      const title = `${this.names[index]}: ${amount(value, unit, total)}`;
      place(shapes[position]!, `smp-part smp-c${index}`, start / full, value / full, title);
      start += value;
    });
    const excess = beyond(total, limit);
    place(shapes[parts.length]!, 'smp-excess', (total - excess) / full, excess / full, `${amount(excess, unit)} over the usable memory`);
    marks.forEach((mark, index) => {
      place(shapes[parts.length + 1 + index]!, `smp-mark smp-${mark.kind}`, mark.value / full, 0, mark.title);
    });
    if (this.node.getAttribute('aria-label') !== label) this.node.setAttribute('aria-label', label);
  }

  /** Exactly `count` rectangles, added or removed as needed. */
  private shapes(count: number): SVGRectElement[] {
    while (this.node.children.length < count) this.node.append(document.createElementNS(NS, 'rect'));
    while (this.node.children.length > count) this.node.lastElementChild!.remove();
    return [...this.node.children] as SVGRectElement[];
  }
}

function place(rect: SVGRectElement, className: string, start: number, width: number, title: string): void {
  rect.setAttribute('class', className);
  rect.setAttribute('x', `${(100 * start).toFixed(3)}%`);
  // The style sheet overrides the width of marks.
  rect.setAttribute('width', `${(100 * width).toFixed(3)}%`);
  const label = rect.firstChild ?? rect.appendChild(document.createElementNS(NS, 'title'));
  setText(label as Element, title);
}

/** Color, name and value of each part, in the order of the bar. Parts too small to see are omitted. */
export class Key {
  readonly node = element('ul', 'smp-key');

  /** @param tooltips Definitions of the names that the glossary explains. */
  constructor(
    private readonly names: string[],
    private readonly tooltips: Readonly<Record<string, string>> = {}
  ) {}

  draw(values: number[], unit: string): void {
    const total = sum(values);
    const parts = values.map((value, index) => ({ value, index })).filter(({ value }) => isWorth(value, unit, total));
    while (this.node.children.length > parts.length) this.node.lastElementChild!.remove();
    while (this.node.children.length < parts.length) {
      this.node.append(element('li', '', element('i', 'smp-swatch'), element('span', 'smp-name'), element('b', 'smp-amount')));
    }
    parts.forEach(({ value, index }, position) => {
      const [swatch, name, size] = [...this.node.children[position]!.children] as [Element, Element, Element];
      swatch.className = `smp-swatch smp-k${index}`;
      setText(name, this.names[index] ?? '');
      explain(name, this.tooltips);
      setText(size, amount(value, unit, total));
    });
  }
}

/** The parts as text, for screen readers. */
export function listed(names: string[], values: number[], unit: string): string {
  const total = sum(values);
  const parts = values.flatMap((value, index) => (isWorth(value, unit, total) ? [`${names[index]} ${amount(value, unit, total)}`] : []));
  return parts.join(', ');
}

/**
 * Excess of a total over its limit. The allocator's reserve fills a GPU exactly, and each of the eleven parts is rounded
 * to 0.001: their rounding errors are no excess.
 */
export function beyond(total: number, limit: number): number {
  return total - limit > 0.006 ? total - limit : 0;
}

/**
 * Text of a size or a time, like the kernel's.
 *
 * @param total Sum of which it is a part: parts of one time are all in seconds or all in milliseconds.
 */
export function amount(value: number, unit: string, total = value): string {
  if (unit !== 's') return `${value.toFixed(value < 0.1 ? 2 : 1)} ${unit}`;
  const milliseconds = 1000 * value;
  if (total < 0.9995) return `${milliseconds < 9.95 ? Number(milliseconds.toPrecision(2)) : milliseconds.toFixed(0)} ms`;
  return value < 100 ? `${value.toFixed(value < 0.1 ? 3 : 2)} s` : `${Math.round(value).toLocaleString('en-US')} s`;
}

/** Whether a part is large enough to list: a step takes milliseconds or minutes, memory is always some GiB. */
const isWorth = (value: number, unit: string, total: number): boolean =>
  value > 0 && value >= (unit === 's' ? 0.0005 * total : 0.005);

const sum = (values: number[]): number => values.reduce((total, value) => total + value, 0);

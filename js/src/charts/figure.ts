import { disclosure, element, headerCell, keepKeys, setText } from '../widget/dom';

/** A chart of the kernel, which escapes every text in its drawing; `smp_advisor/charts/chart.py` is the other side. */
export interface Chart {
  title: string;
  /** The drawing as SVG text, as wide as the panel. Marks with figures have a title, and the row of the table. */
  svg: string;
  /** The same figures as a table. */
  columns: string[];
  rows: string[][];
  /** Sentences below the drawing. */
  notes: string[];
  /** Names between which the panel can choose. */
  choices: string[];
}

/** What a chart offers besides its drawing. */
export interface Actions {
  /** Use a mark or a row of the table, and the word for it. */
  use?: { word: string; row: (row: number) => void; offers?: (cells: string[]) => boolean };
}

/** A chart in the page: drawing, figures of the mark under the pointer or the keyboard, key, notes and table. */
export class Figure {
  readonly node: HTMLElement;
  private readonly caption = element('figcaption', 'smp-caption');
  private readonly plot = keepKeys(element('div', 'smp-plot'));
  private readonly readout = element('p', 'smp-readout');
  private readonly notes = element('div', 'smp-chart-notes');
  private readonly table = keepKeys(element('div', 'smp-scroll'));
  private readonly details: HTMLDetailsElement;
  private chart: Chart | undefined;
  private active = -1;

  constructor(private readonly actions: Actions = {}) {
    this.plot.tabIndex = 0;
    this.plot.setAttribute('role', 'group');
    this.readout.setAttribute('aria-live', 'polite');
    // A long table scrolls, also by keyboard.
    this.table.tabIndex = 0;
    this.table.setAttribute('role', 'group');
    this.table.setAttribute('aria-label', 'Table of the chart');
    this.details = disclosure('smp-chart-table', ['Table'], this.table);
    this.details.addEventListener('toggle', () => this.fill());
    this.node = element('figure', 'smp-figure', this.caption, this.plot, this.readout, this.notes, this.details);
    this.plot.addEventListener('pointermove', event => this.activate(this.marks().findIndex(mark => mark.contains(event.target as Node))));
    this.plot.addEventListener('pointerleave', () => this.activate(-1));
    this.plot.addEventListener('focus', () => this.active < 0 && setText(this.readout, this.hint));
    this.plot.addEventListener('keydown', event => this.onKey(event));
    this.plot.addEventListener('click', () => this.use());
  }

  draw(chart: Chart): void {
    this.chart = chart;
    setText(this.caption, chart.title);
    this.plot.setAttribute('aria-label', `${chart.title || 'Curve'}. ${this.hint}`);
    this.notes.replaceChildren(...chart.notes.map(text => element('p', 'smp-note', text)));
    this.plot.innerHTML = chart.svg;
    // Who moves through the marks by keyboard stays at the same one.
    const { active } = this;
    this.active = -1;
    setText(this.readout, '');
    if (active >= 0) this.activate(Math.min(active, this.marks().length - 1));
    this.fill();
  }

  private get hint(): string {
    return `Arrow keys show the figures of each mark${this.actions.use ? `, Enter: ${this.actions.use.word}` : ''}.`;
  }

  /** Elements with figures, points from left to right. */
  private marks(): Element[] {
    const marks = [...this.plot.querySelectorAll('title')].map(title => title.parentElement!);
    const at = (mark: Element): number => Number(mark.getAttribute('cx'));
    return marks.every(mark => mark.tagName === 'circle') ? marks.sort((a, b) => at(a) - at(b)) : marks;
  }

  private activate(index: number): void {
    if (index === this.active) return;
    const marks = this.marks();
    marks[this.active]?.classList.remove('smp-active');
    marks[index]?.classList.add('smp-active');
    this.active = index;
    setText(this.readout, marks[index]?.textContent ?? '');
  }

  private onKey(event: KeyboardEvent): void {
    const last = this.marks().length - 1;
    const next = { ArrowRight: this.active + 1, ArrowDown: this.active + 1, ArrowLeft: this.active - 1, ArrowUp: this.active - 1, Home: 0, End: last }[event.key];
    if (next !== undefined) this.activate(Math.min(Math.max(next, 0), last));
    else if (event.key === 'Enter') this.use();
    else return;
    event.preventDefault();
  }

  private use(): void {
    const row = this.marks()[this.active]?.getAttribute('data-row');
    if (row != null) this.actions.use?.row(Number(row));
  }

  private fill(): void {
    if (!this.details.open || !this.chart) return;
    const { columns, rows } = this.chart;
    const { use } = this.actions;
    const head = element('tr', '', ...columns.map(text => headerCell(text, 'col')), use && headerCell(use.word, 'col'));
    const body = rows.map((row, index) => {
      const cells = row.map((text, column) => (column ? element('td', '', text) : headerCell(text, 'row')));
      return element('tr', '', ...cells, use && element('td', '', (use.offers?.(row) ?? true) && this.button(use, index, row[0] ?? '')));
    });
    this.table.replaceChildren(element('table', 'smp-table smp-figures-table', element('thead', '', head), element('tbody', '', ...body)));
  }

  private button(use: NonNullable<Actions['use']>, row: number, name: string): HTMLButtonElement {
    const made = keepKeys(element('button', 'smp-button smp-small', use.word));
    made.type = 'button';
    made.setAttribute('aria-label', `${use.word}: ${name}`);
    made.addEventListener('click', () => use.row(row));
    return made;
  }
}

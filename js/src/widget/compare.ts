import type { Connection } from './connection';
import { button, element, headerCell, keepKeys, setText } from './dom';
import type { Panel } from './panel';
import { RemotePanel } from './remote_panel';
import type { Screen, Session } from './session';
import type { Compared, FromKernel } from './wire';

const COLUMNS = ['Fit', 'Memory', 'Speed', 'Time', 'Cost'];

/** The tab that compares two plans, keeps plans by name, and lists the history. All of it lives in the kernel. */
export class Compare implements Panel {
  readonly node: HTMLElement;
  private readonly ends: [string, string] = ['Recommended', 'On screen'];
  private readonly panel: RemotePanel<Compared>;
  private readonly name = keepKeys(element('input', 'smp-plan-name'));
  private readonly note = element('p', 'smp-panel-note');

  constructor(
    view: string,
    connection: Connection,
    private readonly session: Session
  ) {
    this.panel = new RemotePanel(
      'compare',
      view,
      connection,
      (data, into) => this.paint(data, into),
      // The version requests new data after every change of the history and the snapshots.
      ({ history }) => ({ first: this.ends[0], second: this.ends[1], version: history.version })
    );
    this.name.placeholder = 'name of the plan';
    this.name.maxLength = 60;
    this.note.setAttribute('role', 'status');
    const keep = (): void => this.keep();
    this.name.addEventListener('keydown', event => event.key === 'Enter' && keep());
    const label = element('label', 'smp-choice', 'Keep this plan as ', this.name);
    const form = element('div', 'smp-keep', label, button('smp-button smp-small', 'Keep', keep), this.note);
    this.node = element('div', 'smp-compare', form, this.panel.node);
  }

  draw(screen: Screen): void {
    this.panel.draw(screen);
  }

  onMessage(message: FromKernel): void {
    this.panel.onMessage(message);
  }

  dispose(): void {
    this.panel.dispose();
  }

  private keep(): void {
    setText(this.note, '');
    this.session.act('keep', this.name.value, text => setText(this.note, text));
    this.name.value = '';
  }

  private paint(data: Compared, into: HTMLElement): void {
    const focused = into.contains(document.activeElement) ? (document.activeElement as HTMLElement).dataset['key'] : undefined;
    const position = data.history.length - 1 - data.position;
    const compared = element('div', 'smp-scroll');
    compared.innerHTML = data.compared;
    into.replaceChildren(
      element('div', 'smp-ends', this.end(0, data), this.end(1, data)),
      compared,
      ...(data.snapshots.length > 0 ? [list('Kept plans', data.snapshots, (line, index) => this.ofSnapshot(line, index, data))] : []),
      list('History, newest first', [...data.history].reverse(), (_, index) => this.ofHistory(index, position), position)
    );
    if (focused) into.querySelector<HTMLElement>(`[data-key="${focused}"]`)?.focus();
  }

  /** Choice of the first or second plan. */
  private end(index: 0 | 1, { plans, chosen }: Compared): HTMLElement {
    const select = keepKeys(element('select', 'smp-select'));
    for (const plan of plans) {
      const option = element('option', '', plan);
      option.value = plan;
      select.append(option);
    }
    this.ends[index] = select.value = chosen[index];
    select.dataset['key'] = `end-${index}`;
    select.addEventListener('change', () => {
      this.ends[index] = select.value;
      this.panel.refresh();
    });
    return element('label', 'smp-choice', index === 0 ? 'Compare ' : 'with ', select);
  }

  private ofSnapshot([name = '']: string[], index: number, data: Compared): HTMLElement[] {
    const actions: [string, () => void][] = [
      ['Load', () => this.session.act('load', name, text => setText(this.note, text))],
      [
        'Compare',
        () => {
          [this.ends[0], this.ends[1]] = [name, data.chosen[0] === name ? 'Recommended' : 'On screen'];
          this.panel.refresh();
        }
      ],
      ['Delete', () => this.session.act('forget', name, text => setText(this.note, text))]
    ];
    return actions.map(([text, action]) => small(text, name, `${text}-${index}`, action));
  }

  private ofHistory(index: number, position: number): HTMLElement[] {
    if (index === position) return [element('span', 'smp-badge', 'on screen')];
    const steps = index - position;
    const act = (): void => this.session.act(steps > 0 ? 'undo' : 'redo', Math.abs(steps));
    return [small('Show', steps > 0 ? `${steps} back` : `${-steps} forward`, `history-${index}`, act)];
  }
}

function list(title: string, lines: string[][], actions: (line: string[], index: number) => HTMLElement[], current = -1): HTMLElement {
  const table = element('table', 'smp-table smp-plans');
  table.append(element('caption', 'smp-title', title));
  table.append(element('thead', '', element('tr', '', ...['Plan', ...COLUMNS, 'Actions'].map(text => headerCell(text, 'col')))));
  const rows = lines.map((line, index) => {
    const [name = '', ...figures] = line;
    const cells = [...figures.map(text => element('td', '', text)), element('td', 'smp-row-actions', ...actions(line, index))];
    const made = element('tr', index === current ? 'smp-current' : '', headerCell(name, 'row'), ...cells);
    if (index === current) made.setAttribute('aria-current', 'true');
    return made;
  });
  table.append(element('tbody', '', ...rows));
  return element('div', 'smp-scroll', table);
}

function small(text: string, of: string, key: string, action: () => void): HTMLButtonElement {
  const made = button('smp-button smp-small', text, action);
  made.dataset['key'] = key;
  made.setAttribute('aria-label', `${text}: ${of}`);
  return made;
}

import { Figure, type Actions, type Chart } from '../charts/figure';
import type { Connection } from './connection';
import type { ControlListener } from './controls';
import { element, keepKeys } from './dom';
import { RemotePanel } from './remote_panel';
import type { Screen, Session } from './session';
import type { Setting, Settings } from './wire';

/** The choice above the chart of a panel. */
interface Choice {
  label: string;
  /** Options of the choice from what the kernel drew, value and text; fewer than two hide it. */
  options: (chart: Chart) => [value: string, text: string][];
  onChange: (value: string) => void;
}

/** A chart that the kernel draws, as wide as the panel, when its tab is open. */
export function chartPanel(
  name: string,
  view: string,
  connection: Connection,
  actions: Actions = {},
  options: (screen: Screen) => Settings = () => ({}),
  choice?: Choice,
  onChart: (chart: Chart) => void = () => undefined
): RemotePanel<Chart> {
  const figure = new Figure(actions);
  const select = keepKeys(element('select', 'smp-select'));
  const label = element('label', 'smp-sweep-choice', choice?.label ?? '', ' ', select);
  select.addEventListener('change', () => {
    choice?.onChange(select.value);
    panel.refresh();
  });
  const panel: RemotePanel<Chart> = new RemotePanel<Chart>(
    name,
    view,
    connection,
    (chart, into) => {
      onChart(chart);
      const offered = choice?.options(chart) ?? [];
      const { value } = select;
      select.replaceChildren(...offered.map(([value, text]) => Object.assign(element('option', '', text), { value })));
      if (offered.some(([option]) => option === value)) select.value = value;
      label.hidden = offered.length < 2;
      if (!figure.node.isConnected) into.append(label, figure.node);
      figure.draw(chart);
    },
    (screen, width) => ({ ...options(screen), width })
  );
  return panel;
}

/** Alternatives by free memory and throughput: a point or a row of the table shows its plan. */
export function alternativesPanel(view: string, connection: Connection, session: Session): RemotePanel<Chart> {
  return chartPanel('alternatives', view, connection, { use: { word: 'Load', row: row => session.act('adopt', row) }, brush: true });
}

/** Days against dollars: other instance types are further lines, and a point or a row searches its cluster. */
export function clustersPanel(view: string, connection: Connection, search: (workload: Readonly<Record<string, string>>) => void): RemotePanel<Chart> {
  let rows: string[] = [];
  const types: string[] = [];
  const adopt = (row: number): void => {
    const [nodes = '', cluster = ''] = (rows[row] ?? '').split(' x ');
    search({ cluster, instance_count: nodes });
  };
  const choice = {
    label: 'Add an instance type',
    options: ({ choices }: Chart): [string, string][] => (types.length < 6 ? ['', ...choices].map(name => [name, name || 'none']) : []),
    onChange: (name: string) => types.push(...(name ? [name] : []))
  };
  const onChart = (chart: Chart): void => void (rows = chart.rows.map(row => row[0] ?? ''));
  return chartPanel('clusters', view, connection, { use: { word: 'Adopt', row: adopt } }, () => ({ instances: types.join() }), choice, onChart);
}

/** The rank map, colored by the column that the user selects. */
export function ranksPanel(view: string, connection: Connection): RemotePanel<Chart> {
  let by = 0;
  const choice = {
    label: 'Colors by',
    options: ({ choices }: Chart): [string, string][] => choices.map((name, index) => [String(index), name]),
    onChange: (value: string) => void (by = Number(value))
  };
  return chartPanel('ranks', view, connection, {}, () => ({ by }), choice);
}

/** Throughput and memory at every position of the slider that moved last, or of another one. */
export function curvesPanel(view: string, connection: Connection, listener: Pick<ControlListener, 'move' | 'commit'>): RemotePanel<Chart> {
  let name = '';
  let moved = '';
  let values: Setting[] = [];
  let sliders: [string, string][] = [];
  const setting = (screen: Screen): Settings => {
    const controls = screen.controls.filter(control => control.kind === 'slider' && control.values.length > 1);
    sliders = controls.map(control => [control.name, control.label]);
    const names = controls.map(control => control.name);
    if (screen.moved !== moved && names.includes(screen.moved)) name = screen.moved;
    moved = screen.moved;
    if (!names.includes(name)) name = names.includes('batch_size') ? 'batch_size' : (names[0] ?? '');
    values = controls.find(control => control.name === name)?.values ?? [];
    return { setting: name };
  };
  const set = (row: number): void => {
    const value = values[row];
    if (value === undefined) return;
    listener.move(name, value);
    listener.commit();
  };
  const choice = {
    label: 'Setting of the curve',
    options: (): [string, string][] => [...sliders].sort(([one], [two]) => Number(two === name) - Number(one === name)),
    onChange: (value: string) => void (name = value)
  };
  return chartPanel('curves', view, connection, { use: { word: 'Set', row: set } }, setting, choice);
}

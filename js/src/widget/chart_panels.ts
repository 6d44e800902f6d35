import { Figure, type Actions, type Chart } from '../charts/figure';
import type { Connection } from './connection';
import { element, keepKeys } from './dom';
import { RemotePanel } from './remote_panel';
import type { Screen, Session } from './session';
import type { Settings } from './wire';

/** The choice above the chart of a panel. */
interface Choice {
  label: string;
  /** Options of the choice from what the kernel drew, value and text; fewer than two hide it. */
  options: (chart: Chart) => [value: string, text: string][];
  onChange: (value: string) => void;
}

/** A chart that the kernel draws, as wide as the panel, when its tab is open. */
function chartPanel(
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
  return chartPanel('alternatives', view, connection, { use: { word: 'Load', row: row => session.act('adopt', row) } });
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

/** The modules of a profile, as wide as the measure that the user selects: a block leads to the control that checkpoints it. */
export function modulesPanel(view: string, connection: Connection, session: Session): RemotePanel<Chart> {
  let rows: string[][] = [];
  const isBlock = (cells: string[]): boolean => cells.at(-1) === 'yes';
  const checkpoint = (row: number): void => {
    const name = 'activation_checkpointing';
    const on = session.screen.controls.find(control => control.name === name)?.values.find(value => value !== false && value !== 'none');
    if (on === undefined || !isBlock(rows[row] ?? [])) return;
    session.move(name, on);
    session.commit();
    document.querySelector<HTMLElement>(`[id="${view}-${name}"]`)?.focus();
  };
  let by = 0;
  const choice = {
    label: 'Size by',
    options: ({ choices }: Chart): [string, string][] => choices.map((name, index) => [String(index), name]),
    onChange: (value: string) => void (by = Number(value))
  };
  const use = { word: 'Checkpoint the blocks', row: checkpoint, offers: isBlock };
  return chartPanel('modules', view, connection, { use }, () => ({ by }), choice, chart => void (rows = chart.rows));
}

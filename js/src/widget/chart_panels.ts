import type { Chart } from '../charts/chart';
import { Figure, type Actions } from '../charts/figure';
import type { Connection } from './connection';
import { element, keepKeys } from './dom';
import { RemotePanel } from './remote_panel';
import type { Session } from './session';

/** A chart whose data the kernel computes when its tab is open. */
export function chartPanel(name: string, view: string, connection: Connection, actions?: Actions): RemotePanel<Chart> {
  const figure = new Figure(actions);
  return new RemotePanel<Chart>(name, view, connection, (chart, into) => {
    if (!figure.node.isConnected) into.append(figure.node);
    figure.draw(chart);
  });
}

/** Alternatives by free memory and throughput: a point or a row of the table shows its plan. */
export function alternativesPanel(view: string, connection: Connection, session: Session): RemotePanel<Chart<'scatter'>> {
  let titles: string[] = [];
  const adopt = (row: number): void => session.act('adopt', row);
  const figure = new Figure({ use: { word: 'Load', row: adopt }, rowOf: text => titles.indexOf(text), brush: true });
  return new RemotePanel<Chart<'scatter'>>('alternatives', view, connection, (chart, into) => {
    titles = chart.data.titles;
    if (!figure.node.isConnected) into.append(figure.node);
    figure.draw(chart);
  });
}

/** Days against dollars: other instance types are further lines, and a point or a row searches its cluster. */
export function clustersPanel(view: string, connection: Connection): RemotePanel<Chart<'frontier'>> {
  let rows: string[] = [];
  let count = 0;
  const types: string[] = [];
  const adopt = (row: number): void => {
    const [nodes = '', cluster = ''] = (rows[row] ?? '').split(' x ');
    const workload = { cluster, instance_count: nodes };
    connection.request({ kind: 'search', id: `${view}-cluster-${(count += 1)}`, workload }, text => figure.say(text));
  };
  const figure = new Figure({ use: { word: 'Adopt', row: adopt }, rowOf: text => rows.indexOf(text.split(':')[0] ?? '') });
  const choice = keepKeys(element('select', 'smp-select'));
  choice.setAttribute('aria-label', 'Add an instance type');
  choice.addEventListener('change', () => {
    types.push(choice.value);
    panel.refresh();
  });
  const panel = new RemotePanel<Chart<'frontier'>>('clusters', view, connection, (chart, into) => {
    rows = chart.rows.map(row => row[0] ?? '');
    const options = ['Add an instance type', ...chart.data.further].map((name, index) => Object.assign(element('option', '', name), { value: index ? name : '' }));
    choice.replaceChildren(...options);
    choice.hidden = options.length < 2 || types.length >= 6;
    if (!figure.node.isConnected) into.append(choice, figure.node);
    figure.draw(chart);
  }, () => ({ instances: types.join() }));
  return panel;
}

/** The rank map, colored by the column that the user selects. */
export function ranksPanel(view: string, connection: Connection): RemotePanel<Chart<'ranks'>> {
  const figure = new Figure();
  const choice = keepKeys(element('select', 'smp-select'));
  const label = element('label', 'smp-sweep-choice', 'Colors by ', choice);
  let chart: Chart<'ranks'> | undefined;
  choice.addEventListener('change', () => chart && figure.draw({ ...chart, data: { ...chart.data, by: Number(choice.value) } }));
  return new RemotePanel<Chart<'ranks'>>('ranks', view, connection, (data, into) => {
    chart = data;
    const options = data.data.columns.map(({ name }, index) => Object.assign(element('option', '', name), { value: String(index) }));
    choice.replaceChildren(...options);
    label.hidden = options.length < 2;
    if (!figure.node.isConnected) into.append(label, figure.node);
    figure.draw(data);
  });
}

import { element, headerCell } from './dom';
import type { Comparison } from './wire';

/** Settings in which two plans differ, their figures, and the price of the difference. */
export function comparisonTable({ names, summary, settings, figures }: Comparison): HTMLElement {
  const table = element('table', 'smp-table smp-comparison');
  table.append(element('caption', 'smp-hidden', `${names[0]} and ${names[1]}`));
  table.append(element('thead', '', element('tr', '', ...['Setting or figure', ...names, 'Change'].map(text => headerCell(text, 'col')))));
  for (const rows of [settings, figures]) if (rows.length > 0) table.append(element('tbody', '', ...rows.map(row)));
  return element('div', 'smp-scroll', element('p', 'smp-difference', summary), table);
}

function row([label = '', ...texts]: string[]): HTMLTableRowElement {
  return element('tr', '', headerCell(label, 'row'), ...texts.map(text => element('td', '', text)));
}

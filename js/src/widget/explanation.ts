import { comparisonTable } from './comparison';
import type { Connection } from './connection';
import { disclosure, element, headerCell, keepKeys, sourceLink } from './dom';
import { RemotePanel } from './remote_panel';
import type { Pitfall, Recommendation, Reference, Step, Term, Why } from './wire';

/** Reasons for the plan on the screen: its difference from the recommended one, the ladder, practices, AWS's reference. */
export function whyPanel(view: string, connection: Connection): RemotePanel<Why> {
  return new RemotePanel('why', view, connection, (data, into) => {
    const open = new Set([...into.querySelectorAll('details[open]')].map(details => details.querySelector('summary')?.textContent));
    into.replaceChildren(...whyParts(data));
    for (const details of into.querySelectorAll('details')) details.open = open.has(details.querySelector('summary')?.textContent);
  });
}

/** A table of the kernel, which escapes every text in it. One with a label can be wider than its place: it scrolls, also by keyboard. */
export function tablePanel(name: string, view: string, connection: Connection, label = ''): RemotePanel<{ html: string }> {
  return new RemotePanel(name, view, connection, ({ html }, into) => {
    into.innerHTML = html;
    if (!label) return;
    keepKeys(into).classList.add('smp-scroll');
    into.tabIndex = 0;
    into.setAttribute('role', 'group');
    into.setAttribute('aria-label', label);
  });
}

function whyParts({ because, compared, steps, reference }: Why): HTMLElement[] {
  return [
    compared === null
      ? element('p', 'smp-because', 'This is the recommended plan.')
      : element('section', 'smp-yours', element('h3', 'smp-title', 'Your plan against the recommended one'), comparisonTable(compared)),
    element('ol', 'smp-steps', ...steps.map(stepItem)),
    disclosure('smp-section', ['How the search chose the recommended plan'], textList(because)),
    ...(reference === null ? [] : [referenceDetails(reference)])
  ];
}

/** Requirements of the plan on the screen for the script and the data. */
export function requirementsPanel(view: string, connection: Connection): RemotePanel<{ pitfalls: Pitfall[] }> {
  return new RemotePanel('requirements', view, connection, ({ pitfalls }, into) => {
    const isOpen = into.querySelector('details')?.open ?? false;
    const title = `Requirements for the script and the data (${pitfalls.length})`;
    const details = disclosure('smp-section', [title], pitfallList(pitfalls));
    details.open = isOpen;
    into.replaceChildren(...(pitfalls.length > 0 ? [details] : []));
  });
}

/** Assumptions of the estimate. */
export function assumptions({ assumptions: texts }: Recommendation): HTMLElement {
  if (texts.length === 0) return element('div');
  return disclosure('smp-section', [`Assumptions of the estimate (${texts.length})`], textList(texts));
}

function textList(texts: string[]): HTMLElement {
  return element('ul', 'smp-list', ...texts.map(text => element('li', '', text)));
}

/** Terms with their definitions and sources. */
export function glossary(terms: Term[]): HTMLElement {
  const items = terms.map(({ term, text, title, url }) =>
    element('li', '', element('span', 'smp-lead', term), `: ${text} `, sourceLink(url, title))
  );
  return disclosure('smp-section', ['Glossary'], element('ul', 'smp-list', ...items));
}

function stepItem(step: Step): HTMLLIElement {
  const kind = { used: 'yes', 'not used': 'no', 'not possible': 'never' }[step.decision];
  const figures = element('dl', 'smp-step-figures');
  for (const [label, value] of step.figures) figures.append(element('div', '', element('dt', '', label), element('dd', '', value)));
  const heading = [element('span', 'smp-step-title', step.title), element('span', `smp-badge smp-badge-${kind}`, step.decision)];
  return element(
    'li',
    '',
    disclosure(
      'smp-step',
      heading,
      element('p', '', step.because),
      step.details !== step.because && element('p', '', step.details),
      step.trade_off ? element('p', 'smp-trade', element('span', 'smp-lead', 'Trade-off: '), step.trade_off) : null,
      step.figures.length > 0 && figures,
      sourceLink(step.source_url, step.source_title)
    )
  );
}

function referenceDetails(reference: Reference): HTMLElement {
  const fits = `${reference.fits ? 'fits' : 'does not fit'} on your cluster: ${reference.needed_gib.toFixed(1)} GiB needed per GPU, by the estimate`;
  const table = element('table', 'smp-table smp-reasons');
  const head = element('tr', '', ...['Setting', 'AWS', 'Here', 'Reason'].map(text => headerCell(text, 'col')));
  table.append(element('thead', '', head));
  const rows = reference.differences.map(({ setting, reference: theirs, recommended, because }) =>
    element('tr', '', headerCell(setting, 'row'), ...[theirs, recommended, because].map(text => element('td', '', text)))
  );
  table.append(element('tbody', '', ...rows));
  return disclosure(
    'smp-section',
    [`Nearest AWS reference: ${reference.name}`],
    element('p', '', `${reference.summary} It ${fits}.`),
    rows.length > 0 && element('div', 'smp-scroll', table),
    element('p', '', reference.extrapolation),
    sourceLink(reference.source_url, "AWS's reference configurations")
  );
}

function pitfallList(pitfalls: Pitfall[]): HTMLElement {
  const items = pitfalls.map(({ id, severity, text, source_url: url }) => {
    const kind = { error: 'never', warning: 'mark', info: 'no' }[severity];
    const mark = element('span', `smp-badge smp-badge-${kind}`, severity);
    return element('li', '', mark, ' ', text, ' ', sourceLink(url, `${id} source`));
  });
  return element('ul', 'smp-list', ...items);
}

import { button, disclosure, element, keepKeys, setText, sourceLink } from './dom';
import { hasExtension, copy, openPlace } from './insert';
import type { CheckedFinding } from './wire';

/** Change of a fix, and the action that writes it. */
export interface Fixing {
  diff: string;
  /** @param inPlace Whether the file itself changes, after a backup. */
  apply: (inPlace: boolean) => void;
}

const GROUPS = [
  ['error', 'Fails, hangs or trains incorrectly'],
  ['warning', 'Wastes memory, time or money'],
  ['info', 'Information']
] as const;

/**
 * Findings by severity, in foldable groups.
 *
 * @param fixing Fix of a finding. Nothing is written before a click.
 */
export function findingGroups(findings: CheckedFinding[], fixing?: (finding: CheckedFinding) => Fixing): HTMLElement[] {
  return GROUPS.flatMap(([severity, title]) => {
    const members = findings.filter(finding => finding.severity === severity);
    if (members.length === 0) return [];
    const group = disclosure(
      'smp-section smp-group',
      [`${title} (${members.length})`],
      ...members.map(finding => details(finding, fixing?.(finding)))
    );
    group.open = true;
    return [group];
  });
}

function details(finding: CheckedFinding, fixing?: Fixing): HTMLElement {
  const kind = { error: 'never', warning: 'mark', info: 'no' }[finding.severity];
  const code = preformatted(`${finding.text}\n${' '.repeat(Math.max(0, finding.column - 1))}^`);
  return disclosure(
    'smp-section',
    [element('span', `smp-badge smp-badge-${kind}`, finding.severity), ` ${finding.place} ${finding.message} (${finding.id})`],
    code,
    element('p', '', finding.consequence),
    element('p', '', element('span', 'smp-lead', 'Instead: '), finding.remedy),
    sourceLink(finding.source_url, finding.source_title),
    hasExtension() && opening(finding),
    copies(finding.place, { place: finding.place, advice: `${finding.place}: ${finding.message} ${finding.remedy}` }),
    finding.fix && fixing && fixDetails(`Fix: ${finding.fix.description}`, finding.place, fixing),
    !!finding.unfixed && element('p', '', `No automatic fix: ${finding.unfixed}.`)
  );
}

/** A diff with buttons to copy and to write it. */
export function fixDetails(title: string, of: string, { diff, apply }: Fixing): HTMLDetailsElement {
  return disclosure(
    'smp-section smp-fix',
    [title],
    preformatted(diff),
    element('p', '', 'Write a copy next to the file, or change the file and keep a backup (.bak).'),
    element(
      'div',
      'smp-check-row',
      named(button('smp-button', 'Write a copy', () => apply(false)), `Write a copy with the fix of ${of}`),
      named(button('smp-button', 'Change the file', () => apply(true)), `Change the file, with the fix of ${of}`)
    ),
    copies(of, { diff })
  );
}

export function unresolvedDetails(unresolved: string[]): HTMLElement[] {
  if (unresolved.length === 0) return [];
  const items = unresolved.map(text => element('li', '', text));
  return [disclosure('smp-section', [`Unresolved parts (${items.length})`], element('ul', 'smp-list', ...items))];
}

/** Button that opens the file at the line. */
function opening({ place, column }: CheckedFinding): HTMLElement {
  const [, path = '', line = '1'] = /^(.*):(\d+)$/.exec(place) ?? [];
  const status = element('span', 'smp-status');
  status.setAttribute('role', 'status');
  const open = button('smp-button smp-small', 'Open', () => {
    setText(status, openPlace(open, { path, line: Number(line), column }) ? '' : 'This file is outside of the folder of JupyterLab.');
  });
  return element('div', 'smp-check-row', named(open, `Open ${place}`), status);
}

/** Copy buttons with their status. Without access to the clipboard, the text is shown and selected. */
function copies(of: string, texts: Record<string, string>): HTMLElement {
  const status = element('span', 'smp-status');
  status.setAttribute('role', 'status');
  const row = element('div', 'smp-check-row');
  for (const [what, text] of Object.entries(texts)) {
    const made = button('smp-button smp-small', `Copy ${what}`, () => {
      void copy(text).then(done => {
        setText(status, done ? `Copied the ${what}.` : 'The clipboard is not available. Select this text.');
        row.querySelector('pre')?.remove();
        if (!done) row.append(selected(text));
      });
    });
    row.append(named(made, `Copy the ${what} of ${of}`));
  }
  row.append(status);
  return row;
}

function selected(text: string): HTMLPreElement {
  const shown = preformatted(text);
  setTimeout(() => {
    shown.focus();
    getSelection()?.selectAllChildren(shown);
  });
  return shown;
}

function preformatted(text: string): HTMLPreElement {
  const made = keepKeys(element('pre', 'smp-pre', text));
  made.tabIndex = 0;
  return made;
}

function named<T extends HTMLElement>(control: T, name: string): T {
  control.setAttribute('aria-label', name);
  return control;
}

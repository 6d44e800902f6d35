/** Elements with text: what comes from a user is only ever text content, never HTML. */

type Child = Node | string | null | undefined | false;

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = '',
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child): child is Node | string => !!child));
  return made;
}

/**
 * Let a focused control have its keys: JupyterLab's command mode takes arrows, Enter and letters from whatever has the
 * focus, unless that very element says otherwise.
 */
export function keepKeys<T extends HTMLElement>(control: T): T {
  control.dataset['lmSuppressShortcuts'] = 'true';
  return control;
}

export function button(className: string, text: string, action: () => void): HTMLButtonElement {
  const made = keepKeys(element('button', className, text));
  made.type = 'button';
  made.addEventListener('click', action);
  return made;
}

/** A link to a page of documentation; nothing is fetched until the user follows it. */
export function sourceLink(url: string, title: string): HTMLAnchorElement | null {
  if (!/^https:\/\//.test(url)) return null;
  const made = keepKeys(element('a', 'smp-link', title || 'Source'));
  made.href = url;
  made.target = '_blank';
  made.rel = 'noopener noreferrer';
  return made;
}

export function disclosure(className: string, summary: Child[], ...body: Child[]): HTMLDetailsElement {
  return element('details', className, keepKeys(element('summary', 'smp-summary', ...summary)), ...body);
}

/** A heading of a table's row or column. */
export function headerCell(text: string, scope: 'row' | 'col'): HTMLTableCellElement {
  const made = element('th', '', text);
  made.scope = scope;
  return made;
}

/** Set text only where it changed: a live region is not read out again, and nothing is laid out for nothing. */
export function setText(target: Element, text: string): void {
  if (target.textContent !== text) target.textContent = text;
}

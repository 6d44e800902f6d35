/** Elements with text. Text from users is always text content, never HTML. */

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
 * Keep the keys of a focused control: JupyterLab's command mode takes arrows, Enter and letters from any element without
 * this attribute.
 */
export function keepKeys<T extends HTMLElement>(control: T): T {
  control.dataset['lmSuppressShortcuts'] = 'true';
  return control;
}

/** Keys that controls use together with Ctrl or Cmd: editing, the history, and moves of the cursor. */
const OWN_KEYS = /^([acvxyz]|Arrow.*|Home|End|Enter|Backspace|Delete|Insert)$/i;

/** Leave JupyterLab its other shortcuts, such as Ctrl+S, while a control inside has the focus. Returns the way back. */
export function passShortcuts(root: HTMLElement): () => void {
  const pass = (event: KeyboardEvent): void => {
    if (!(event.ctrlKey || event.metaKey) || OWN_KEYS.test(event.key)) return;
    const kept = event.target instanceof Element ? event.target.closest<HTMLElement>('[data-lm-suppress-shortcuts]') : null;
    if (kept === null || !root.contains(kept)) return;
    delete kept.dataset['lmSuppressShortcuts'];
    setTimeout(() => keepKeys(kept)); // after JupyterLab has seen the key
  };
  // Before JupyterLab, which listens to the document.
  window.addEventListener('keydown', pass, true);
  return () => window.removeEventListener('keydown', pass, true);
}

export function button(className: string, text: string, action: () => void): HTMLButtonElement {
  const made = keepKeys(element('button', className, text));
  made.type = 'button';
  made.addEventListener('click', action);
  return made;
}

export function disclosure(className: string, summary: Child[], ...body: Child[]): HTMLDetailsElement {
  return element('details', className, keepKeys(element('summary', 'smp-summary', ...summary)), ...body);
}

const drawn = new WeakMap<Element, string>();

/** Set a drawing, which escapes every text of its data, only if it changed: most moves leave most drawings alone. */
export function setDrawing(target: Element, html: string): void {
  if (drawn.get(target) === html) return;
  drawn.set(target, html);
  target.innerHTML = html;
}

/** Set text only if it changed, so that screen readers do not repeat it and the page keeps its layout. */
export function setText(target: Element, text: string): void {
  if (target.textContent !== text) target.textContent = text;
}

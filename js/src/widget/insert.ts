const INSERT_EVENT = 'smp-advisor:insert-cell';

/** Ask the notebook to insert cells below ours, in this order; false when nothing in the page took the request. */
export function insertCells(from: HTMLElement, sources: string[]): boolean {
  const options = { bubbles: true, composed: true, cancelable: true, detail: { sources } };
  return !from.dispatchEvent(new CustomEvent(INSERT_EVENT, options));
}

/** Put text on the clipboard; false where the page may not. */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyByCommand(text);
  }
}

/** The old way, which pages without TLS still have. */
function copyByCommand(text: string): boolean {
  const before = document.activeElement;
  const area = document.createElement('textarea');
  area.value = text;
  area.setAttribute('aria-hidden', 'true');
  area.style.cssText = 'position:fixed;top:0;left:0;opacity:0';
  document.body.append(area);
  area.select();
  try {
    return document.execCommand('copy');
  } catch {
    return false;
  } finally {
    area.remove();
    if (before instanceof HTMLElement) before.focus();
  }
}

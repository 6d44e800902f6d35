const INSERT_EVENT = 'smp-advisor:insert-cell';

/** Request that the notebook insert cells below this one, in order; false if nothing in the page accepts the request. */
export function insertCells(from: HTMLElement, sources: string[]): boolean {
  const options = { bubbles: true, composed: true, cancelable: true, detail: { sources } };
  return !from.dispatchEvent(new CustomEvent(INSERT_EVENT, options));
}

/** Copy text to the clipboard; false if the page may not. */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyByCommand(text);
  }
}

/** The older way, for pages without TLS. */
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

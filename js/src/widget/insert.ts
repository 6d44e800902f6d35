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
    return false;
  }
}

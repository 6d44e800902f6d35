import { type Announcement, INSERT_EVENT, OPEN_EVENT, PLAN_EVENT, type Insertion, type Outcome, type Place } from '../events';

/**
 * Request that the notebook insert cells below this one, or update those that it inserted before; null if nothing in the
 * page answers the request.
 */
export function insertCells(from: HTMLElement, insertion: Insertion): Outcome | null {
  const detail = { ...insertion };
  return request(from, INSERT_EVENT, detail) ? (detail.outcome ?? 'inserted') : null;
}

/** Report the plan on the screen to the notebook, which marks and counts the inserted cells of other plans. */
export function announcePlan(from: HTMLElement, plan: string): Record<string, number> {
  const detail: Announcement = { plan };
  request(from, PLAN_EVENT, detail);
  return detail.stale ?? {};
}

/** Whether the lab extension is there, which can open files, and keeps a view whose output is written again. */
export function hasExtension(): boolean {
  return document.body.dataset['smpAdvisor'] !== undefined;
}

/** Show a place in a file; false if it cannot be opened. */
export function openPlace(from: HTMLElement, place: Place): boolean {
  return request(from, OPEN_EVENT, place);
}

/** Region of inserted cells in the settings of the lab extension; empty for that of the notebook. */
export function preferredRegion(): string {
  return document.body.dataset['smpAdvisorRegion'] ?? '';
}

/** Send an event to the notebook around the view; whether something in the page answered it. */
export function request(from: HTMLElement, name: string, detail: object): boolean {
  return !from.dispatchEvent(new CustomEvent(name, { bubbles: true, composed: true, cancelable: true, detail }));
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

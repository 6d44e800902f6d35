import { button, element } from './dom';
import type { Screen, Session } from './session';

/** Buttons that undo and redo a change of the plan, and their keys. */
export class Undo {
  readonly node: HTMLElement;
  private readonly back: HTMLButtonElement;
  private readonly forward: HTMLButtonElement;

  constructor(private readonly session: Session) {
    this.back = button('smp-button smp-icon', '\u21b6', () => this.session.act('undo', undefined));
    this.forward = button('smp-button smp-icon', '\u21b7', () => this.session.act('redo', undefined));
    this.node = element('div', 'smp-undo', this.back, this.forward);
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', 'History');
  }

  draw({ history: { undo, redo } }: Screen): void {
    name(this.back, 'Undo', 'Ctrl+Z', undo);
    name(this.forward, 'Redo', 'Ctrl+Y', redo);
  }

  /** Ctrl+Z and Ctrl+Y, or Shift+Ctrl+Z, anywhere in the view except in a text that has an undo of its own. */
  onKey(event: KeyboardEvent): void {
    const key = event.key.toLowerCase();
    if (!(event.ctrlKey || event.metaKey) || event.altKey || !'zy'.includes(key) || isText(event.target)) return;
    event.preventDefault();
    event.stopPropagation();
    const button = key === 'y' || event.shiftKey ? this.forward : this.back;
    if (button.getAttribute('aria-disabled') === 'false') button.click();
  }
}

/** A button without an effect keeps the focus, so it is marked rather than disabled. */
function name(target: HTMLButtonElement, title: string, keys: string, change: string): void {
  target.setAttribute('aria-disabled', String(!change));
  target.setAttribute('aria-label', title);
  target.title = change ? `${title} (${keys}): ${change}` : `Nothing to ${title.toLowerCase()}`;
}

function isText(target: EventTarget | null): boolean {
  if (target instanceof HTMLTextAreaElement) return true;
  return target instanceof HTMLInputElement && ['text', 'search', 'number', ''].includes(target.type);
}

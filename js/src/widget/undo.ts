import { button, element } from './dom';
import { same } from './look_ahead';
import type { Screen, Session } from './session';
import type { Settings } from './wire';

/** Under this name the page keeps the plan on the screen when the kernel goes: another kernel does not know it. */
const PLACE = 'smp-advisor:plan';

/** Buttons that undo and redo a change of the plan, and their keys; and the way back to a plan of an earlier kernel. */
export class Undo {
  readonly node: HTMLElement;
  private readonly back: HTMLButtonElement;
  private readonly forward: HTMLButtonElement;

  private readonly again: HTMLButtonElement;

  constructor(private readonly session: Session) {
    this.back = button('smp-button smp-icon', '\u21b6', () => this.session.act('undo', undefined));
    this.forward = button('smp-button smp-icon', '\u21b7', () => this.session.act('redo', undefined));
    const plan = this.remembered();
    this.again = button('smp-button smp-small', 'Back to the plan before the restart', () => {
      sessionStorage.removeItem(PLACE);
      this.session.apply(plan!);
      this.again.hidden = true;
    });
    this.again.hidden = plan === null;
    this.node = element('div', 'smp-undo', this.again, this.back, this.forward);
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', 'History');
  }

  /** Keep the plan on the screen for the next kernel, which starts with the recommended one. */
  remember({ snapshot: { settings } }: Screen): void {
    if (same(settings, this.session.shown.recommended.settings)) return;
    try {
      sessionStorage.setItem(PLACE, JSON.stringify({ of: this.identity, settings }));
    } catch {
      // The frame has no storage, as in VS Code.
    }
  }

  /** Settings of the same request that an earlier kernel had; null without them. */
  private remembered(): Settings | null {
    try {
      const { of, settings } = JSON.parse(sessionStorage.getItem(PLACE) ?? '{}') as { of?: string; settings?: Settings };
      return of === this.identity ? settings! : null;
    } catch {
      return null;
    }
  }

  /** A request, as far as its page shows it. */
  private get identity(): string {
    const { title, recommended } = this.session.shown;
    return JSON.stringify([location.pathname, title, recommended.settings]);
  }

  draw({ history: { undo, redo }, snapshot: { settings } }: Screen): void {
    // Another view of this advice may have taken the offer.
    if (!this.again.hidden) this.again.hidden = same(this.remembered() ?? settings, settings);
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

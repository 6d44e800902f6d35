import type { Connection } from './connection';
import { button, element, keepKeys, setText } from './dom';
import { same } from './look_ahead';
import type { Panel } from './panel';
import type { Screen } from './session';
import type { FromKernel, Settings } from './wire';

const DELAY_MS = 150;
const [USUAL, NARROWEST] = [560, 280];

/**
 * A panel whose data the kernel computes on request: when its tab is first opened, and again when the plan on the screen
 * moves while it is open. Until new data arrives, the older drawing stays, marked as that of the plan before.
 */
export class RemotePanel<Data> implements Panel {
  readonly node: HTMLElement;
  private readonly body = element('div', 'smp-panel-body');
  private readonly note = element('p', 'smp-panel-note');
  private readonly again: HTMLButtonElement;
  private wanted: Settings | undefined;
  private pending = '';
  private timer: ReturnType<typeof setTimeout> | undefined;
  private requests = 0;

  /**
   * @param name Name of the panel in the kernel's table (`notebook/panels`), and part of its requests' ids.
   * @param paint Draws the data into the panel's element.
   * @param options What the user set in the panel, for the kernel, and whatever else requires new data when it changes:
   * for a drawing, the width of the panel.
   */
  constructor(
    private readonly name: string,
    private readonly view: string,
    private readonly connection: Connection,
    private readonly paint: (data: Data, into: HTMLElement, screen: Screen) => void,
    private readonly options: (screen: Screen, width: number) => Settings = () => ({})
  ) {
    if (typeof ResizeObserver !== 'undefined') {
      this.observer = new ResizeObserver(entries => {
        const width = Math.floor(entries[entries.length - 1]!.contentRect.width);
        if (width === 0 || width === this.width) return;
        this.width = width;
        this.refresh();
      });
      this.observer.observe(this.body);
    }
    this.note.setAttribute('role', 'status');
    this.again = button('smp-button smp-small', 'Request again', () => this.screen && this.request(this.screen));
    this.again.hidden = true;
    this.node = element('div', 'smp-panel', element('div', 'smp-panel-state', this.note, this.again), this.body);
  }

  private screen: Screen | undefined;
  private readonly observer: ResizeObserver | undefined;
  private width = 0;

  draw(screen: Screen): void {
    this.screen = screen;
    const settings = { ...screen.snapshot.settings, ...this.chosen(screen) };
    if (this.wanted && same(settings, this.wanted)) return;
    this.wanted = settings;
    this.node.classList.add('smp-older');
    this.node.setAttribute('aria-busy', 'true');
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.request(screen), this.body.childElementCount > 0 ? DELAY_MS : 0);
  }

  /** Request new data, because the user set an option of the panel. */
  refresh(): void {
    if (this.screen) this.draw(this.screen);
  }

  onMessage(message: FromKernel): void {
    if (message.kind === 'failed' && message.id === this.pending) {
      this.pending = '';
      this.fail(message.text);
    }
    if (message.kind !== 'panel' || message.id !== this.pending || !this.screen) return;
    this.pending = '';
    this.settle('');
    this.node.classList.remove('smp-older');
    this.paint(message.data as Data, this.body, this.screen);
  }

  dispose(): void {
    this.observer?.disconnect();
    clearTimeout(this.timer);
  }

  private chosen(screen: Screen): Settings {
    return this.options(screen, Math.max(this.width || this.body.clientWidth || USUAL, NARROWEST));
  }

  private request(screen: Screen): void {
    this.requests += 1;
    this.pending = `${this.view}-${this.name}-${this.requests}`;
    this.node.setAttribute('aria-busy', 'true');
    setText(this.note, this.body.childElementCount > 0 ? 'Updating …' : 'Computing …');
    this.again.hidden = true;
    const { settings } = screen.snapshot;
    const options = this.chosen(screen);
    this.wanted = { ...settings, ...options };
    this.connection.request({ kind: 'panel', id: this.pending, name: this.name, settings, options }, text => this.fail(text));
  }

  private fail(text: string): void {
    this.settle(text);
    this.again.hidden = false;
  }

  /** After a timeout the request stays pending: a late answer is still drawn. */
  private settle(text: string): void {
    this.node.setAttribute('aria-busy', 'false');
    this.again.hidden = true;
    setText(this.note, text);
  }
}

/**
 * A page of the kernel, which escapes every text in it; parts that were open stay open. One with a label can be wider than
 * its place: it scrolls, also by keyboard.
 */
export function htmlPanel(name: string, view: string, connection: Connection, label = ''): RemotePanel<{ html: string }> {
  return new RemotePanel(name, view, connection, ({ html }, into) => {
    const titleOf = (details: Element): string => details.querySelector('summary')?.textContent ?? '';
    const open = new Set([...into.querySelectorAll('details[open]')].map(titleOf));
    into.innerHTML = html;
    into.querySelectorAll('details').forEach(details => (details.open ||= open.has(titleOf(details))));
    into.querySelectorAll('summary').forEach(keepKeys);
    if (!label) return;
    keepKeys(into).classList.add('smp-scroll');
    into.tabIndex = 0;
    into.setAttribute('role', 'group');
    into.setAttribute('aria-label', label);
  });
}

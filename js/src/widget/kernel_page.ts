import type { Connection } from './connection';
import { button, element, keepKeys, setText } from './dom';
import { same } from './look_ahead';
import type { Panel } from './panel';
import type { Action, Screen } from './session';
import type { FromKernel, Settings } from './wire';

const DELAY_MS = 150;
const [USUAL, NARROWEST] = [560, 280];

/** What a button or a form of a page does, as JSON in its `data-smp-do`; `panels.py` writes it. */
interface Deed {
  /** An action on the plan. */
  act?: Action;
  value?: string | number;
  /** Texts of fields of the request to search with, and the position of a change that makes the plan fit. */
  search?: Readonly<Record<string, string>>;
  fit?: number;
  /** Options of the page, which is requested again; a form adds its fields. */
  set?: Settings;
  /** Kind of the cells to insert. */
  insert?: string;
}

export interface Deeds {
  act(action: Action, value: string | number | undefined, fail: (text: string) => void): void;
  /** @param fit Position of a change that makes the plan of the settings fit. */
  search(fields: Readonly<Record<string, string>>, fit: number | undefined, settings: Settings): void;
  insert(kind: string): void;
}

/**
 * A page of the kernel, which escapes every text in it: requested when its tab is first opened, and again when the plan on
 * the screen moves while it is open. Until the new one arrives, the older one stays, marked as that of the plan before.
 */
export class KernelPage implements Panel {
  readonly node: HTMLElement;
  private readonly body = element('div', 'smp-panel-body');
  private readonly note = element('p', 'smp-panel-note');
  private readonly again: HTMLButtonElement;
  private readonly observer: ResizeObserver | undefined;
  private screen: Screen | undefined;
  private wanted: Settings | undefined;
  private options: Settings = {};
  /** Settings of the plan whose page was requested last. */
  private requested: Settings = {};
  private pending = '';
  private timer: ReturnType<typeof setTimeout> | undefined;
  private requests = 0;
  private width = 0;

  /**
   * @param name Name of the panel in the kernel's table (`notebook/panels`), and part of its requests' ids.
   * @param label Of a page that can be wider than its place: it scrolls, also by keyboard.
   */
  constructor(
    private readonly name: string,
    private readonly view: string,
    private readonly connection: Connection,
    private readonly deeds: Deeds,
    private readonly label = ''
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
    this.body.addEventListener('click', event => {
      const target = event.target as Element;
      // A mark of a drawing does what the button of its row does.
      const row = target.closest('svg [data-row]')?.getAttribute('data-row');
      const source = row ? this.body.querySelector(`button[data-row="${row}"]`) : target.closest('button[data-smp-do]');
      if (source) this.perform(deedOf(source));
    });
    this.body.addEventListener('submit', event => {
      event.preventDefault();
      const [{ set }, fields] = [deedOf(event.target as Element), Object.fromEntries(new FormData(event.target as HTMLFormElement)) as Settings];
      (event.target as HTMLFormElement).reset();
      this.perform({ set: { ...set, ...fields } });
    });
    this.body.addEventListener('change', event => {
      if (event.target instanceof HTMLSelectElement) this.perform({ set: { [event.target.name]: event.target.value } });
    });
  }

  draw(screen: Screen): void {
    this.screen = screen;
    const settings = { ...screen.snapshot.settings, ...this.chosen() };
    if (this.wanted && same(settings, this.wanted)) return;
    this.wanted = settings;
    this.node.classList.add('smp-older');
    this.node.setAttribute('aria-busy', 'true');
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.request(screen), this.body.childElementCount > 0 ? DELAY_MS : 0);
  }

  onMessage(message: FromKernel): void {
    if (message.kind === 'failed' && message.id === this.pending) {
      this.pending = '';
      this.fail(message.text);
    }
    if (message.kind !== 'panel' || message.id !== this.pending) return;
    this.pending = '';
    this.settle('');
    this.node.classList.remove('smp-older');
    this.paint((message.data as { html: string }).html);
  }

  dispose(): void {
    this.observer?.disconnect();
    clearTimeout(this.timer);
  }

  private perform({ act, value, search, fit, set, insert }: Deed): void {
    setText(this.note, '');
    if (act) this.deeds.act(act, value, text => setText(this.note, text));
    if (search) this.deeds.search(search, fit, this.requested);
    if (insert) this.deeds.insert(insert);
    if (!set) return;
    this.options = { ...this.options, ...set, turn: this.requests };
    this.refresh();
  }

  private refresh(): void {
    if (this.screen) this.draw(this.screen);
  }

  /** Parts that were open stay open, and the focus stays where it was. */
  private paint(html: string): void {
    const { body } = this;
    const titleOf = (details: Element): string => details.querySelector('summary')?.textContent ?? '';
    const open = new Set([...body.querySelectorAll('details[open]')].map(titleOf));
    const focused = body.contains(document.activeElement) && document.activeElement !== body ? nameOf(document.activeElement!) : undefined;
    // The kernel knows the fields of a submitted form alone: other text stays here.
    const typed = [...body.querySelectorAll<HTMLInputElement>('input[name]')].filter(each => each.value !== each.defaultValue);
    body.innerHTML = html;
    for (const { name, value } of typed) {
      const field = body.querySelector<HTMLInputElement>(`input[name="${name}"]`);
      if (field) field.value = value;
    }
    body.querySelectorAll('details').forEach(details => (details.open ||= open.has(titleOf(details))));
    body.querySelectorAll('pre').forEach(text => (text.tabIndex = 0)); // it scrolls, also by keyboard
    body.querySelectorAll<HTMLElement>('summary, button, input, select, [tabindex]').forEach(keepKeys);
    if (this.label) {
      keepKeys(body).classList.add('smp-scroll');
      body.tabIndex = 0;
      body.setAttribute('role', 'group');
      body.setAttribute('aria-label', this.label);
    }
    if (focused === undefined) return;
    if (!this.label) body.tabIndex = -1; // without a focus here, the notebook's shortcuts would take the next keys
    ([...body.querySelectorAll<HTMLElement>('button, input, select, summary')].find(each => nameOf(each) === focused) ?? body).focus({ preventScroll: true });
  }

  /** What the user set, and the width for drawings. */
  private chosen(): Settings {
    return { ...this.options, width: Math.max(this.width || this.body.clientWidth || USUAL, NARROWEST) };
  }

  private request(screen: Screen): void {
    this.requests += 1;
    this.pending = `${this.view}-${this.name}-${this.requests}`;
    this.node.setAttribute('aria-busy', 'true');
    setText(this.note, this.body.childElementCount > 0 ? 'Updating …' : 'Computing …');
    this.again.hidden = true;
    const { settings } = screen.snapshot;
    const options = this.chosen();
    this.requested = settings;
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

const deedOf = (source: Element): Deed => JSON.parse(source.getAttribute('data-smp-do') ?? '{}') as Deed;

/** What is the same of an element after its page was drawn again. */
const nameOf = (node: Element): string => node.getAttribute('data-smp-do') ?? node.getAttribute('name') ?? node.textContent ?? '';

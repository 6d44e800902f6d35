import type { Connection } from './connection';
import { button, element, keepKeys, setText } from './dom';
import { offer } from './make_it_fit';
import type { Screen } from './session';
import type { Field, FromKernel, Recommendation, Setting, Settings, WayOut } from './wire';

type Input = HTMLInputElement | HTMLSelectElement;

/** Fields that are always on the page, in this order; the others open with a button. */
const FIRST = ['model', 'sequence_length', 'instance_count', 'cluster', 'library', 'objective'];
/** Fields of text with values to choose from. */
const LISTED = new Set(['model', 'cluster']);
/** What follows a value. */
const UNITS: Record<string, string> = { sequence_length: 'tokens', instance_count: '×' };

/** A search that runs, for the strip. */
export interface Searching {
  part: string;
  left: string;
  /** Part that is done, from 0 to 1. */
  share: number;
}

/**
 * What is trained, and where. A changed field searches again in place: the page can be used meanwhile, pinned settings
 * stay, and a search can be canceled. The result is another recommendation, for which the page is drawn again.
 */
export class WorkloadBar {
  readonly node: HTMLElement;
  private readonly inputs = new Map<string, Input>();
  private readonly lists = element('div', '');
  private readonly more = element('div', 'smp-fields smp-more-fields');
  private readonly toggle: HTMLButtonElement;
  private readonly text = element('span', 'smp-search-text');
  private readonly cancel: HTMLButtonElement;
  private readonly again: HTMLButtonElement;
  private readonly back: HTMLButtonElement;
  private readonly ways = element('span', 'smp-ways');
  /** State of the search, and what it offers. */
  readonly status: HTMLElement;
  /** The search that runs; null if none does. */
  searching: Searching | null = null;
  private count = 0;
  /** Request of the suggestions; empty before. */
  private suggestions = '';
  private readonly settings: Settings;
  private running = ''; // id of the search that is shown
  private canceled = '';
  private pins = 0;
  private isSearching = false;
  /** Texts of the fields of the plan on the page, and those that were sent last. */
  private readonly applied = new Map<string, string>();
  private sent = '';
  private held = '';
  private answer = '';
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    shown: Recommendation,
    private readonly view: string,
    private readonly connection: Connection,
    private readonly onHold: () => void
  ) {
    this.settings = shown.recommended.settings;
    const ordered = FIRST.flatMap(name => shown.workload.filter(field => field.name === name));
    const first = element('div', 'smp-fields', ...ordered.map(field => this.field(field)));
    this.more.append(...shown.workload.filter(({ name }) => !FIRST.includes(name)).map(field => this.field(field)));
    this.toggle = button('smp-button smp-small smp-more', '', () => this.open(this.more.hidden));
    this.text.setAttribute('role', 'status');
    this.cancel = button('smp-button smp-small', 'Cancel', () => this.stop());
    this.again = button('smp-button smp-small', 'Search the other settings', () => this.search({}, true));
    this.back = button('smp-button smp-small', 'Back to the fields of the plan', () => this.restore(''));
    this.status = element('div', 'smp-search', this.text, this.cancel, this.again, this.back, this.ways);
    const heading = element('h2', 'smp-heading', shown.title);
    this.node = element('header', 'smp-workload', heading, first);
    if (shown.workload.length > 0) {
      first.append(this.toggle);
      this.node.append(this.more, this.lists);
    }
    this.open(false);
    this.settle('');
  }

  /** Search with other texts of some fields. */
  change(changes: Readonly<Record<string, string>>): void {
    this.search(changes);
  }

  /** Search with the change of the position among those that make the plan of the settings fit. */
  makeItFit(changes: Readonly<Record<string, string>>, fit: number, settings: Settings): void {
    this.search(changes, true, { fit, settings });
  }

  /** Pin a setting at a value that the others exclude, and search them. */
  searchWith(name: string, value: Setting): void {
    this.search({}, true, { pin: { name, value } });
  }

  /** Why the plan on the page is not that of the fields; empty if it is. Nothing is exported or kept meanwhile. */
  get hold(): string {
    return this.held;
  }

  /** Whether the fields that are not always on the page are open. */
  get isOpen(): boolean {
    return !this.more.hidden;
  }

  open(isOpen: boolean): void {
    this.more.hidden = !isOpen;
    setText(this.toggle, isOpen ? 'fewer' : '+ more');
    this.toggle.setAttribute('aria-expanded', String(isOpen));
    this.toggle.title = 'Precision, global batch, deadline, budget, certainty';
  }

  draw(screen: Screen): void {
    if (this.pins === screen.pins.length) return;
    this.pins = screen.pins.length;
    if (!this.isSearching) this.settle(this.answer);
  }

  /** Searches of every view are shown in all of them. */
  onMessage(message: FromKernel): void {
    if (message.kind === 'searching' && message.id === this.canceled) return; // it was on its way
    if (message.kind === 'panel' && message.id === this.suggestions) {
      for (const [name, options] of Object.entries(message.data as Record<string, [string, string][]>)) {
        const list = this.lists.querySelector(`[id="${this.view}-workload-${name}-options"]`);
        list?.replaceChildren(...options.map(([value, text]) => Object.assign(element('option', '', text), { value })));
      }
    }
    if (message.kind === 'searching') {
      this.running = message.id;
      this.run(message.text, message.done, message.total, message.seconds_left);
    } else if (message.kind === 'searched' && this.isSearching) {
      // Texts that mean the present request get no other plan: they become those of the request.
      if (!message.problem && JSON.stringify(this.texts) === this.sent) this.restore('');
      else this.settle(message.problem, message.ways);
    }
  }

  /** The kernel's suggestions for the fields, once one of them has the focus. */
  private suggest(): void {
    if (this.suggestions) return;
    this.suggestions = `${this.view}-fields`;
    this.connection.request({ kind: 'panel', id: this.suggestions, name: 'fields', settings: this.settings, options: {} }, () => (this.suggestions = ''));
  }

  private field(field: Field): HTMLElement {
    const input: Input = keepKeys(field.kind === 'select' ? element('select', 'smp-field-input') : element('input', 'smp-field-input'));
    input.id = `${this.view}-workload-${field.name}`;
    input.name = `workload-${field.name}`;
    if (input instanceof HTMLSelectElement) {
      for (const [value, text] of field.options) {
        const option = element('option', '', value === field.value && value === 'auto' ? field.shown : text);
        option.value = value;
        input.append(option);
      }
    } else {
      input.type = 'text';
      input.placeholder = field.shown;
      input.autocomplete = 'off';
      input.spellcheck = false;
      if (LISTED.has(field.name)) {
        const list = element('datalist', '');
        list.id = `${input.id}-options`;
        input.setAttribute('list', list.id);
        this.lists.append(list); // in the label, its texts would be part of the name
        input.addEventListener('focus', () => this.suggest());
      }
      input.addEventListener('keydown', event => {
        const { key } = event as KeyboardEvent;
        if (key === 'Escape') {
          input.value = this.applied.get(field.name)!;
          this.watch();
        }
        if (key === 'Enter') this.submit(); // in JupyterLab, no `change` follows
      });
    }
    input.value = field.value;
    input.addEventListener('input', () => this.watch());
    input.addEventListener('change', () => this.submit());
    this.inputs.set(field.name, input);
    this.applied.set(field.name, input.value);
    const label = element('label', `smp-field smp-field-${field.name.replaceAll('_', '-')}`, element('span', 'smp-field-label', field.label), input);
    label.dataset['unit'] = UNITS[field.name] ?? '';
    label.title = field.hint || field.shown;
    return label;
  }

  private get texts(): Record<string, string> {
    return Object.fromEntries([...this.inputs].map(([name, { value }]) => [name, value]));
  }

  private get isEdited(): boolean {
    return [...this.inputs].some(([name, { value }]) => value !== this.applied.get(name));
  }

  /** Search with the edited fields, once: Enter and the loss of the focus both end an edit. */
  private submit(): void {
    if (this.isEdited && JSON.stringify(this.texts) !== this.sent) this.search({});
    else this.watch();
  }

  private watch(): void {
    const held = this.isSearching ? SEARCHING : this.isEdited ? EDITED : '';
    this.back.hidden = this.isSearching || !this.isEdited;
    if (held === this.held) return;
    this.held = held;
    if (!this.isSearching && !this.answer && this.pins === 0) setText(this.text, held ? HINT : '');
    this.onHold();
  }

  private restore(answer: string): void {
    for (const [name, input] of this.inputs) input.value = this.applied.get(name)!;
    this.sent = '';
    this.settle(answer);
  }

  /** @param changes Texts of fields. @param again Whether to search without a change, too. @param more A setting to pin, or the position of an offered change. */
  private search(changes: Readonly<Record<string, string>>, again = false, more: Readonly<Record<string, unknown>> = {}): void {
    for (const [name, text] of Object.entries(changes)) {
      const input = this.inputs.get(name);
      if (input) input.value = text;
    }
    this.count += 1;
    const id = `${this.view}-search-${this.count}`;
    const workload = this.texts;
    this.sent = JSON.stringify(workload);
    this.running = id;
    this.run('', 0, 0, null);
    this.connection.request({ kind: 'search', id, workload, again, ...more }, text => this.settle(text));
  }

  private stop(): void {
    this.connection.send({ kind: 'cancel', id: `${this.view}-cancel-${this.count}` });
    this.canceled = this.running;
    this.restore('Canceled. The plan is that of the search before.');
  }

  dispose(): void {
    clearTimeout(this.timer);
  }

  private run(text: string, done: number, total: number, left: number | null): void {
    this.isSearching = true;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.settle(SILENT), SILENT_MS);
    this.answer = '';
    const part = total > 0 ? `cluster ${Math.min(done + 1, total)} of ${total}${text ? `: ${text}` : ''}` : '';
    const time = left === null ? '' : `about ${seconds(left)} left`;
    this.searching = { part, left: time, share: total > 0 ? done / total : 0.04 };
    setText(this.text, 'The plan below is for the fields before. It is replaced when the search ends.');
    this.cancel.hidden = false;
    this.again.hidden = true;
    this.ways.replaceChildren();
    this.status.classList.remove('smp-refused');
    this.node.setAttribute('aria-busy', 'true');
    this.watch();
    this.onHold();
  }

  private settle(answer: string, ways: WayOut[] = []): void {
    this.isSearching = false;
    this.searching = null;
    clearTimeout(this.timer);
    this.answer = answer;
    this.cancel.hidden = true;
    const pinned = this.pins === 1 ? '1 setting is pinned' : `${this.pins} settings are pinned`;
    this.again.hidden = answer !== '' || this.pins === 0;
    setText(this.text, answer || (this.pins > 0 ? `${pinned}: a search keeps ${this.pins === 1 ? 'it' : 'them'}.` : this.isEdited ? HINT : ''));
    this.status.classList.toggle('smp-refused', answer !== '');
    this.ways.replaceChildren(
      ...ways.map(({ text, note, workload }, way) => offer(`Use ${text}`, note, () => this.search(workload, true, { way })))
    );
    this.node.setAttribute('aria-busy', 'false');
    this.watch();
  }
}

function seconds(left: number): string {
  return left < 90 ? `${Math.max(1, Math.round(left))} s` : `${Math.round(left / 60)} min`;
}

/** A search without a sign of life for this long is given up; its result is still accepted. */
const SILENT_MS = 120_000;
const SILENT = 'No answer from the search for 2 min. After a restart of the kernel, run the cell again.';
const HINT = 'Press Enter to search again. Pin a setting to keep it.';
const SEARCHING = 'A search for the changed fields is running. Wait for its plan, or cancel it.';
const EDITED = 'The fields have changed. Press Enter for their plan, or go back to those of this plan.';

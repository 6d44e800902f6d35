import { UPDATE_EVENT } from '../events';
import type { Connection } from './connection';
import { Delivery, planOf } from './delivery';
import { button, disclosure, element, keepKeys, setText } from './dom';
import { same } from './look_ahead';
import { fixed, type Panel } from './panel';
import type { Session } from './session';
import type { FromKernel, Settings } from './wire';

const LOOK_DELAY_MS = 300;

/** Buttons that export code for the plan, and a preview of the code. */
export class Exporter {
  /** The button of the plan, a place for others, and the menu with other cells. */
  readonly actions: HTMLElement;
  readonly preview: Panel;
  readonly status = element('span', 'smp-status');
  private readonly code: HTMLElement = element('div', 'smp-code');
  private readonly details: HTMLDetailsElement;
  private readonly what = choice('Cell', KINDS, () => this.onChoice());
  private readonly sdk = choice('SageMaker SDK', SDKS, () => this.onChoice());
  private readonly insert: HTMLButtonElement;
  private readonly anyway: HTMLButtonElement;
  private readonly menu: HTMLDetailsElement;
  private readonly delivery = new Delivery(this.status, () => this.name());
  readonly offers = this.delivery.offers;
  private inserting = '';
  private kind = '';
  private copying = '';
  private previewing = '';
  private asking = '';
  /** Why no cell can be inserted; empty if one can, or while it is unknown. */
  private refusal = '';
  private drawn: Settings;
  private timer: ReturnType<typeof setTimeout> | undefined;

  /** @param onMakeItFit The plan does not fit: show what would. */
  constructor(
    private readonly session: Session,
    private readonly view: string,
    private readonly connection: Connection,
    onMakeItFit: () => void
  ) {
    this.drawn = session.screen.settings;
    this.status.setAttribute('role', 'status');
    this.insert = button('smp-button smp-primary', '', () => {
      if (this.isUnfit) onMakeItFit();
      else if (session.shown.call) void this.delivery.deliver({ sources: [SEARCH_BATCH], what: 'profile', plan: '', mode: 'update' });
      else this.insertKind(chosen(this.what));
    });
    this.anyway = button('smp-button smp-small', 'Insert it anyway', () => this.insertKind(chosen(this.what)));
    const clipboard = button('smp-button smp-small', 'Copy code', () => {
      setText(this.status, REQUESTED);
      this.copying = this.request();
    });
    // The mark of a cell of another plan has a button for it.
    this.status.addEventListener(UPDATE_EVENT, event => {
      this.insertKind((event as CustomEvent<{ what: string }>).detail.what);
    });
    const choices = element('div', 'smp-choices', this.what, this.sdk, clipboard, this.anyway);
    this.menu = disclosure('smp-menu', ['▾'], choices);
    this.menu.querySelector('summary')!.setAttribute('aria-label', 'Other cells, SDK, copy');
    this.menu.addEventListener('keydown', event => {
      if (event.key !== 'Escape') return;
      this.menu.open = false;
      this.menu.querySelector('summary')!.focus();
    });
    this.menu.addEventListener('focusout', event => {
      if (event.relatedTarget instanceof Node && !this.menu.contains(event.relatedTarget)) this.menu.open = false;
    });
    const rehearse = button('smp-button smp-small smp-wide', 'Rehearse', () => this.insertKind('rehearsal'));
    rehearse.title = 'Insert a cell that runs the script of the plan on this machine, small, and marks the plan';
    this.actions = element('div', 'smp-actions', this.insert, rehearse, this.menu);
    this.details = disclosure('smp-section', ['Code to insert'], this.code);
    this.details.addEventListener('toggle', () => this.refresh());
    this.preview = fixed(this.details);
  }

  /** After a redraw: hide code of other settings, and its status. */
  refresh(): void {
    const { settings, problem } = this.session.screen;
    if (!same(settings, this.drawn)) this.forget();
    this.drawn = settings;
    this.actions.classList.toggle('smp-caution', this.isUnfit);
    this.anyway.title = this.isUnfit ? 'The cell carries a guard that you have to remove' : 'For calls of the size that was profiled';
    this.anyway.hidden = !this.isUnfit && !this.session.shown.call;
    // Disabled, the button would lose the focus.
    const reason = this.connection.isGone ? 'The kernel no longer has this advisor' : problem ? 'These settings cannot be combined' : this.isUnfit || chosen(this.what) !== 'job' ? '' : this.refusal;
    this.insert.setAttribute('aria-disabled', String(reason !== ''));
    this.insert.title = reason;
    if (this.refusal && reason === this.refusal && !this.status.textContent) setText(this.status, reason);
    this.name();
    this.delivery.announce(planOf(this.session.shown.title, this.session.screen.snapshot.settings));
    clearTimeout(this.timer);
    this.previewing = '';
    this.timer = setTimeout(() => this.look(), LOOK_DELAY_MS);
  }

  /** Once the settings stay: whether there is a cell for them, and the code if its place is open. */
  private look(): void {
    const { screen } = this.session;
    if (this.connection.isGone || screen.isWaiting || screen.problem || this.session.hold()) return;
    if (!this.asking) {
      this.looks += 1;
      this.asking = `${this.view}-refusal-${this.looks}`;
      this.connection.request({ kind: 'panel', id: this.asking, name: 'refusal', settings: screen.settings, options: {} }, () => undefined);
    }
    if (this.details.open) this.previewing = this.request();
  }

  private looks = 0;

  /** Text of the button: it inserts cells, or updates those of another plan. */
  private name(): void {
    const kind = chosen(this.what);
    const stale = this.delivery.stale[kind] ?? 0;
    const text = this.isUnfit ? 'Make it fit' : this.session.shown.call ? 'Search the batch' : stale > 0 ? `Update ${stale} ${stale > 1 ? 'cells' : 'cell'}` : label(kind);
    if (text === this.insert.textContent) return;
    const [first, last] = text.split('estimator ');
    this.insert.replaceChildren(...(last ? [first!, element('span', 'smp-wide', 'estimator '), last] : [text]));
  }

  /** Clear the status of earlier settings, but not that of a request in progress. */
  private forget(): void {
    this.asking = this.refusal = '';
    this.name();
    this.delivery.clear();
    if (this.status.textContent !== REQUESTED) setText(this.status, '');
  }

  /** Whether the plan does not fit with the required probability: then it is exported from the menu, with a guard. */
  private get isUnfit(): boolean {
    return this.session.screen.snapshot.costs.fit !== 'fits';
  }

  insertKind(kind: string): void {
    const { problem } = this.session.screen;
    if (problem) return setText(this.status, 'These settings cannot be combined: choose a repair first.');
    this.menu.open = false;
    setText(this.status, REQUESTED);
    this.kind = kind;
    this.inserting = this.request(kind);
  }

  private request(kind = chosen(this.what)): string {
    return this.session.requestCells(kind, chosen(this.sdk), (id, text) => this.fail(id, text));
  }

  private onChoice(): void {
    // Only the cell that starts the job depends on the SDK.
    this.sdk.hidden = chosen(this.what) !== 'job';
    this.forget();
    this.refresh();
  }

  async onMessage(message: FromKernel): Promise<void> {
    if (message.kind === 'failed' && this.isOwn(message.id)) this.fail(message.id, message.text);
    if (message.kind === 'panel' && message.id === this.asking) {
      this.refusal = (message.data as { text: string }).text;
      this.refresh();
    }
    if (message.kind !== 'cells') return;
    const { id, sources } = message;
    if (same(message.settings, this.session.screen.settings)) this.show(sources);
    const plan = planOf(this.session.shown.title, message.settings, this.kind);
    if (id === this.inserting) await this.delivery.deliver({ sources, what: this.kind, plan, mode: 'update' });
    else if (id === this.copying) await this.delivery.copy(sources);
  }

  dispose(): void {
    this.delivery.dispose();
    clearTimeout(this.timer);
  }

  private isOwn(id: string): boolean {
    return [this.inserting, this.copying, this.previewing].includes(id);
  }

  private fail(id: string, text: string): void {
    // A late answer no longer inserts or copies anything.
    if (id === this.inserting) this.inserting = '';
    if (id === this.copying) this.copying = '';
    if (id === this.previewing) this.code.replaceChildren(element('p', 'smp-problem', text));
    else setText(this.status, text);
  }

  private show(sources: string[]): void {
    this.code.replaceChildren(
      ...sources.map(source => {
        const block = element('pre', 'smp-pre', source);
        block.tabIndex = 0;
        block.dataset['lmSuppressShortcuts'] = 'true';
        return block;
      })
    );
  }
}

/** The call that searches the batch of a model whose inputs were tensors. */
const SEARCH_BATCH = `# The inputs for any number of samples: with them, the search chooses the batch.
profile = smpa.profile(model, inputs=lambda batch: make_inputs(batch))
advice = smpa.advise(profile, advice.cluster)
advice`;

/** Cells that can be exported, and SDK versions; same as in `cells.py`. */
const KINDS: Record<string, string> = {
  job: 'Training job',
  local: 'Local run',
  rehearsal: 'Rehearsal',
  monitoring: 'Monitoring',
  permissions: 'Permissions',
  quota: 'Quota and price',
  probe: 'Short job that measures'
};
const SDKS: Record<string, string> = { auto: 'Installed SDK', v2: 'SDK v2', v3: 'SDK v3' };

/** A labeled choice. The first option is selected. */
function choice(label: string, texts: Record<string, string>, action: () => void): HTMLLabelElement {
  const select = keepKeys(element('select', 'smp-select'));
  for (const [value, text] of Object.entries(texts)) {
    const option = element('option', '', text);
    option.value = value;
    select.append(option);
  }
  select.addEventListener('change', action);
  return element('label', 'smp-choice', element('span', 'smp-choice-name', label), select);
}

const label = (kind: string): string => (kind === 'job' ? 'Insert estimator cell' : 'Insert cell');

const chosen = (labeled: HTMLLabelElement): string => labeled.querySelector('select')!.value;

const REQUESTED = 'Waiting for the code from the kernel …';

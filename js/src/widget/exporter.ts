import { UPDATE_EVENT } from '../events';
import { Delivery, planOf } from './delivery';
import { button, disclosure, element, keepKeys, setText } from './dom';
import { same } from './look_ahead';
import { fixed, type Panel } from './panel';
import type { Session } from './session';
import type { FromKernel, Settings } from './wire';

const PREVIEW_DELAY_MS = 200;

/** Buttons that export code for the plan, and a preview of the code. */
export class Exporter {
  readonly actions: HTMLElement;
  readonly choices: HTMLElement;
  readonly preview: Panel;
  readonly status = element('span', 'smp-status');
  private readonly code: HTMLElement = element('div', 'smp-code');
  private readonly details: HTMLDetailsElement;
  private readonly what = choice('Cell', KINDS, () => this.onChoice());
  private readonly sdk = choice('SageMaker SDK', SDKS, () => this.onChoice());
  private readonly insert: HTMLButtonElement;
  private readonly delivery = new Delivery(this.status, () => this.name());
  readonly offers = this.delivery.offers;
  private confirmed = false;
  private inserting = '';
  private kind = '';
  private copying = '';
  private previewing = '';
  private drawn: Settings;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly session: Session) {
    this.drawn = session.screen.settings;
    this.status.setAttribute('role', 'status');
    this.insert = button('smp-button smp-primary', 'Insert estimator cell', () => {
      this.insertKind(chosen(this.what));
    });
    const clipboard = button('smp-button smp-small', 'Copy code', () => {
      if (!this.isConfirmed(chosen(this.what))) return;
      setText(this.status, REQUESTED);
      this.copying = this.request();
    });
    // The mark of a cell of another plan has a button for it.
    this.status.addEventListener(UPDATE_EVENT, event => {
      this.insertKind((event as CustomEvent<{ what: string }>).detail.what);
    });
    this.actions = element('div', 'smp-actions', this.insert);
    this.choices = element('div', 'smp-choices', this.what, this.sdk, clipboard);
    this.details = disclosure('smp-section', ['Code to insert'], this.code);
    this.details.addEventListener('toggle', () => this.refresh());
    this.preview = fixed(this.details);
  }

  /** After a redraw: hide code of other settings, and its status. */
  refresh(): void {
    const { settings, snapshot } = this.session.screen;
    if (!same(settings, this.drawn)) this.forget();
    this.drawn = settings;
    this.actions.classList.toggle('smp-caution', snapshot.costs.fit !== 'fits');
    this.delivery.announce(planOf(this.session.shown.title, this.session.screen.snapshot.settings));
    clearTimeout(this.timer);
    this.previewing = '';
    if (!this.details.open || this.session.hold()) return;
    this.timer = setTimeout(() => (this.previewing = this.request()), PREVIEW_DELAY_MS);
  }

  /** Text of the button: it inserts cells, or updates those of another plan. */
  private name(): void {
    const kind = chosen(this.what);
    const stale = this.delivery.stale[kind] ?? 0;
    if (!this.confirmed) setText(this.insert, stale > 0 ? `Update ${stale} ${stale > 1 ? 'cells' : 'cell'}` : label(kind));
  }

  /** Clear the status of earlier settings, but not that of a request in progress. */
  private forget(): void {
    this.confirmed = false;
    this.name();
    this.delivery.clear();
    if (this.status.textContent !== REQUESTED) setText(this.status, '');
  }

  /**
   * Whether the user may export: at once if the plan fits with the required probability, else with a second click on the
   * same plan. The cell carries a guard as well.
   */
  private isConfirmed(kind: string): boolean {
    const { fit, memory, likely } = this.session.screen.snapshot.costs;
    if (this.confirmed || !STARTS_A_JOB.has(kind) || fit === 'fits') return true;
    this.confirmed = true;
    setText(this.insert, 'Insert it anyway');
    const reason = fit === 'over' ? `The plan does not fit: ${memory}` : `The plan may not fit: ${likely}`;
    setText(this.status, `${reason}. Click again to export it with a guard that you have to remove.`);
    return false;
  }

  insertKind(kind: string): void {
    if (!this.isConfirmed(kind)) return;
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

/** Cells that can be exported, and SDK versions; same as in `cells.py`. */
const KINDS: Record<string, string> = {
  job: 'Training job',
  local: 'Local run',
  monitoring: 'Monitoring',
  permissions: 'Permissions',
  quota: 'Quota and price',
  probe: 'Short job that measures',
  worth: 'Probes of the leading plans'
};
const STARTS_A_JOB = new Set(['job', 'probe', 'worth']);
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

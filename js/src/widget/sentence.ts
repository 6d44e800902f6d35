import { button, element, keepKeys, setText } from './dom';
import { copy } from './insert';
import type { Session, Screen } from './session';
import { ANSWERS } from './strip';
import type { Moment, Recommendation, Setting } from './wire';

const QUIET_MS = 800;

/** Why this plan; after a move what it changed against the recommendation, its Python, and the way back. */
export class Sentence {
  readonly node: HTMLElement;
  private readonly lead = element('b', 'smp-decisive-lead');
  private readonly text = element('span', '');
  private readonly nearest = button('smp-link-button smp-nearest', '', () => this.goNear());
  private readonly code = element('code', '');
  private readonly copied: HTMLButtonElement;
  private readonly python: HTMLElement;
  private readonly back: HTMLButtonElement;
  private readonly spoken = element('span', 'smp-hidden');
  private readonly line: HTMLElement;
  private near: Moment | undefined;
  private timer: ReturnType<typeof setTimeout> | undefined;

  /** @param onBack Called after the way back, whose button disappears. */
  constructor(
    private readonly shown: Recommendation,
    private readonly session: Session,
    onBack: () => void,
    ...lines: HTMLElement[]
  ) {
    this.spoken.setAttribute('role', 'status');
    this.copied = button('smp-link-button', 'Copy', () => void this.copy());
    this.python = element('span', 'smp-python', this.code, ' ', this.copied);
    this.back = button('smp-link-button smp-back', 'Back to recommended', () => {
      session.reset();
      onBack();
    });
    const line = element('p', 'smp-change', this.lead, ' ', this.text, ' ', this.nearest, ' ', this.python, ' ', this.back);
    this.line = keepKeys(line); // a longer text scrolls
    this.node = element('div', 'smp-sentence', line, this.spoken, ...lines);
  }

  draw(screen: Screen): void {
    const { recommended, decisive } = this.shown;
    const changes = changesOf(screen, this.shown);
    const isMoved = changes.length > 0;
    this.near = undefined;
    this.line.tabIndex = isMoved || screen.problem ? -1 : 0; // then a button in it has the focus
    if (screen.problem) this.tell('Not possible with the other settings.', 'Choose a repair below, or keep the setting as it was.');
    else if (!isMoved && this.shown.call) this.tell(`Every figure is for calls ${this.shown.call} on each GPU, the inputs of the profile.`, 'With inputs=lambda batch: ..., the search chooses the batch.');
    else if (!isMoved) this.tell(`Recommended: ${decisive[0]}`, this.shown.measured ? `Measured ${this.shown.measured}` : decisive[1]);
    else {
      const first = changes.find(({ name }) => name === screen.moved) ?? changes[0]!;
      const others = changes.filter(change => change !== first).map(({ label, to }) => `${label.charAt(0).toLowerCase()}${label.slice(1)} ${to}`);
      const more = others.length > 2 ? `${others.slice(0, 2).join(', ')} and ${others.length - 2} more` : others.join(', ');
      this.tell(`${first.label} ${first.from} → ${first.to}${more && `, ${more}`}:`, screen.isWaiting ? 'waiting for the kernel …' : this.effect(screen));
      if (!screen.isWaiting && screen.snapshot.costs.fit !== 'fits') this.near = this.nearestFit(screen);
    }
    this.nearest.hidden = this.near === undefined;
    const moved = screen.controls.find(({ name }) => name === screen.moved);
    if (this.near && moved) setText(this.nearest, `Set ${moved.texts[moved.values.indexOf(this.near.settings[moved.name]!)]}, the nearest that fits`);
    this.python.hidden = this.back.hidden = !isMoved && !screen.problem;
    if (this.python.hidden || screen.problem) this.python.hidden = true;
    setText(this.code, `advice.move(${changes.map(({ name, value }) => `${name}=${literal(value)}`).join(', ')})`);
    setText(this.copied, 'Copy');
    this.back.title = screen.detail.preferred;
    clearTimeout(this.timer);
    const { costs } = recommended === screen.snapshot ? recommended : screen.snapshot;
    // Readers hear the net effect of a gesture once.
    if (isMoved || this.spoken.textContent) {
      this.timer = setTimeout(() => setText(this.spoken, `${ANSWERS[screen.problem ? 'none' : costs.fit][1]}. ${this.lead.textContent} ${this.text.textContent}`), QUIET_MS);
    }
  }

  dispose(): void {
    clearTimeout(this.timer);
  }

  private tell(lead: string, text: string): void {
    setText(this.lead, lead);
    setText(this.text, text);
  }

  private effect({ snapshot: { costs }, detail }: Screen): string {
    const { costs: best } = this.shown.recommended;
    const gib = costs.gib - best.gib;
    const memory = Math.abs(gib) < 0.05 ? 'same memory' : `${gib < 0 ? '−' : '+'}${Math.abs(gib).toFixed(1)} GiB per GPU`;
    if (costs.fit === 'over') return `${memory}; it would not run.`;
    const percent = 100 * (costs.rate / best.rate - 1);
    const unit = this.shown.recommended.headline[0]?.[2] ?? 'samples/s';
    const speed = Math.abs(percent) < 0.05 ? 'same speed' : `${percent < 0 ? '−' : '+'}${Math.abs(percent).toFixed(Math.abs(percent) < 9.95 ? 1 : 0)} % ${unit}`;
    const why = detail.costs.gib === costs.gib && detail.preferred ? ` ${detail.preferred}` : '';
    return `${memory}, ${speed}${costs.fit === 'risk' ? ` if it fits (${costs.odds})` : ''}.${why}`;
  }

  private nearestFit({ moved, controls, settings }: Screen): Moment | undefined {
    const values = controls.find(({ name }) => name === moved)?.values ?? [];
    const here = values.indexOf(settings[moved]!);
    const fitting = this.session.entries(moved).flatMap(entry => (entry.problem === undefined && entry.costs.fit === 'fits' ? [entry] : []));
    const far = (entry: Moment): number => Math.abs(values.indexOf(entry.settings[moved]!) - here);
    return fitting.sort((one, two) => far(one) - far(two))[0];
  }

  private goNear(): void {
    const { moved } = this.session.screen;
    if (this.near) this.session.apply(this.near.settings);
    document.querySelector<HTMLElement>(`[name="${moved}"]`)?.focus();
  }

  private async copy(): Promise<void> {
    setText(this.copied, (await copy(this.code.textContent ?? '')) ? 'Copied' : 'Select and copy it');
  }
}

interface Change {
  name: string;
  label: string;
  value: Setting;
  from: string;
  to: string;
}

/** Settings that are not those of the recommended plan, without those that only follow from another. */
export function changesOf({ settings, controls }: Screen, { recommended, names, rows }: Recommendation): Change[] {
  return Object.entries(settings).flatMap(([name, value]) => {
    if (value === recommended.settings[name]) return [];
    const control = controls.find(each => each.name === name);
    const text = (of: Setting): string => control?.texts[control.values.indexOf(of)] ?? String(of);
    const at = names.indexOf(name);
    if (control === undefined && !recommended.configuration[at]) return [];
    return [{ name, label: control?.label ?? rows[at] ?? name, value, from: recommended.configuration[at] || text(recommended.settings[name]!), to: text(value) }];
  });
}

/** A value as Python writes it. */
const literal = (value: Setting): string => (typeof value === 'boolean' ? (value ? 'True' : 'False') : JSON.stringify(value));

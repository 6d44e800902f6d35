import { button, disclosure, element, keepKeys, setText } from './dom';
import { reachOf, sweepOf, type Sweep } from './curve';
import { RepairBox } from './repair_box';
import type { Screen, Session } from './session';
import { ANSWERS } from './strip';
import type { Control, Recommendation, Setting } from './wire';

type Input = HTMLInputElement | HTMLSelectElement;

/** One labeled control: its values come from the kernel, its element is the browser's. */
class Row {
  readonly node: HTMLElement;
  private readonly input: Input;
  private readonly rail = element('span', 'smp-rail');
  private readonly output = element('output', 'smp-value');
  private readonly note = element('span', 'smp-hidden');
  private readonly fixed = element('span', 'smp-note smp-fixed');
  private readonly reset: HTMLButtonElement;
  private readonly pin: HTMLButtonElement;
  private readonly repairs: RepairBox;
  private control: Control;
  private marked = '';
  private recommended: Setting | undefined;
  /** Whether the value on the screen is another than the recommended one. */
  isChanged = false;
  /** Whether the user drags the slider. */
  private isMoving = false;
  /** The screen, if it has a problem with this control, and its value there. */
  private refused: Screen | undefined;
  private text = '';

  /** @param onUse The row has the focus, or moves. */
  constructor(control: Control, view: string, private readonly session: Session, onUse: (name: string) => void) {
    this.control = control;
    this.input = keepKeys(control.kind === 'select' ? element('select', 'smp-select') : element('input', `smp-${control.kind}`));
    if (this.input instanceof HTMLInputElement) this.input.type = control.kind === 'slider' ? 'range' : 'checkbox';
    this.input.name = control.name;
    this.input.id = `${view}-${control.name}`;
    this.output.setAttribute('for', this.input.id);
    // Screen readers read the slider; its output would repeat it.
    this.output.setAttribute('aria-live', 'off');
    this.rail.setAttribute('aria-hidden', 'true');
    if (control.kind === 'slider') this.input.addEventListener('pointerdown', () => session.grab());
    this.input.addEventListener('focus', () => onUse(this.control.name));
    this.input.addEventListener('input', () => {
      this.isMoving = control.kind === 'slider';
      session.move(this.control.name, this.value);
    });
    this.input.addEventListener('change', () => {
      this.isMoving = false;
      this.drawRepairs();
      session.commit();
    });
    this.input.addEventListener('keydown', event => {
      if ((event as KeyboardEvent).key === 'Escape' && this.repairs.isOpen) session.revert();
    });
    this.repairs = new RepairBox(control.name, control.label, {
      // The button disappears with its box.
      apply: settings => (this.input.focus(), session.apply(settings)),
      searchWith: (name, value) => (this.input.focus(), session.searchWith(name, value)),
      revert: () => this.revert()
    });
    this.pin = button('smp-pin', '', () => session.pin(this.control.name));
    this.pin.innerHTML = '<svg viewBox="0 0 16 16" aria-hidden="true"><path d="M5 2h6l-1 5 2.5 3h-9L6 7zM8 10v5"/></svg>';
    this.pin.dataset['setting'] = control.name;
    this.reset = button('smp-reset', '', () => this.moveTo(this.recommended));
    this.reset.hidden = true;
    const name = element('span', 'smp-label', control.label);
    name.id = `${this.input.id}-name`;
    this.note.id = `${this.input.id}-note`;
    this.input.setAttribute('aria-describedby', this.note.id);
    for (const tool of [this.pin, this.reset]) tool.setAttribute('aria-describedby', name.id);
    const label = element('label', 'smp-control', name, this.place(control));
    const line = element('div', 'smp-line', label, this.fixed, element('div', 'smp-values', this.output, this.reset), this.pin, this.note);
    this.node = element('div', 'smp-row', line, this.repairs.node);
    this.node.dataset['setting'] = control.name;
    this.fill(control);
  }

  /** The input, on its rail if it is a slider. */
  private place(control: Control): HTMLElement {
    return control.kind === 'slider' ? element('span', 'smp-track', this.rail, this.input) : this.input;
  }

  draw(control: Control, screen: Screen, shown: Recommendation, recommendedText: string): void {
    const { recommended } = shown;
    this.node.title = control.help;
    if (control.values.join() !== this.control.values.join()) this.fill(control);
    this.control = control;
    const current = screen.settings[control.name];
    const position = control.values.indexOf(current as Setting);
    const text = control.texts[position] ?? String(current);
    if (this.input instanceof HTMLInputElement && this.input.type === 'checkbox') this.input.checked = current === true;
    else if (position >= 0 && this.input.value !== String(position)) this.input.value = String(position);
    const sweep = sweepOf(control, this.session, screen, shown);
    if (sweep !== undefined) this.mark(control, sweep);
    const calls = control.name === 'batch_size' && shown.call ? `${text === '1' ? ' call' : ' calls'} ${shown.call}` : '';
    const isRefused = screen.problem !== '' && screen.moved === control.name;
    const { costs } = screen.snapshot;
    const figures = screen.isWaiting ? '' : `, ${costs.gib.toFixed(1)} GiB, ${ANSWERS[costs.fit][1]}, ${costs.speed} ${screen.detail.headline[0]?.[2] ?? ''}`;
    if (control.kind === 'slider') this.input.setAttribute('aria-valuetext', isRefused ? `${text}, not possible` : `${text}${calls}${figures}`);
    this.input.dataset['value'] = text;
    setText(this.output, control.kind === 'select' ? '' : `${text}${calls}`);
    this.recommended = recommended.settings[control.name];
    this.isChanged = current !== this.recommended && !!recommendedText;
    this.node.classList.toggle('smp-changed', this.isChanged);
    this.reset.hidden = !this.isChanged || !control.values.includes(this.recommended as Setting);
    setText(this.reset, `↺ ${recommendedText}`);
    this.reset.title = `Back to the recommended value: ${recommendedText}`;
    this.reset.setAttribute('aria-label', `Reset to ${recommendedText}`);
    setText(this.fixed, control.fixed_because || (this.isChanged && this.reset.hidden ? `recommended: ${recommendedText}` : ''));
    this.fixed.title = this.fixed.textContent ?? '';
    if (sweep !== undefined) setText(this.note, reachOf(sweep));
    this.refused = isRefused ? screen : undefined;
    this.text = text;
    this.drawRepairs();
    this.node.classList.toggle('smp-wrong', isRefused);
    const isPinned = screen.pins.includes(control.name);
    this.pin.setAttribute('aria-label', isPinned ? 'Pinned' : 'Pin');
    this.pin.setAttribute('aria-pressed', String(isPinned));
    this.pin.title = isPinned ? 'Pinned: the next search keeps this value' : 'Pin: the next search keeps this value';
  }

  /** While the pointer moves, nothing moves under it: what an impossible value needs opens when it stops. */
  private drawRepairs(): void {
    this.repairs.draw(this.isMoving ? undefined : this.refused, this.text);
  }

  private moveTo(value: Setting | undefined): void {
    if (value === undefined || this.value === value) return;
    this.input.focus(); // the button may disappear
    this.session.grab();
    this.session.move(this.control.name, value);
    this.session.commit();
  }

  /** Show on the rail, or in the list, which positions do not fit or cannot be reached, with the reason. */
  private mark(control: Control, { fits, costs, problems, recommended }: Sweep): void {
    const key = JSON.stringify([control.values, fits, problems, recommended]);
    if (key === this.marked) return;
    this.marked = key;
    if (this.input instanceof HTMLSelectElement) {
      [...this.input.options].forEach((option, index) => {
        const note = fits[index] === 'over' ? ` (does not fit: ${costs[index]!.gib.toFixed(1)} GiB)` : fits[index] === 'refused' ? ' (not possible)' : '';
        option.textContent = `${control.texts[index]}${note}`;
        option.title = problems[index] ?? '';
      });
      return;
    }
    const last = Math.max(control.values.length - 1, 1);
    const zones = fits.flatMap((fit, index) => {
      if (fit === 'fits') return [];
      const made = element('i', `smp-zone smp-zone-${fit}`);
      const [left, right] = [Math.max(0, index - 0.5), Math.min(last, index + 0.5)];
      made.style.left = `${(100 * left) / last}%`;
      made.style.width = `${(100 * (right - left)) / last}%`;
      made.title = `${control.texts[index]}: ${problems[index] || ANSWERS[costs[index]!.fit][1]}`;
      return [made];
    });
    const tick = element('i', 'smp-tick-best');
    tick.style.left = `${(100 * recommended) / last}%`;
    this.rail.replaceChildren(...zones, ...(recommended >= 0 ? [tick] : []));
  }

  private fill(control: Control): void {
    if (this.input instanceof HTMLSelectElement) {
      const options = control.texts.map((text, index) => {
        const option = element('option', '', text);
        option.value = String(index);
        return option;
      });
      this.input.replaceChildren(...options);
    } else if (control.kind === 'slider') {
      Object.assign(this.input, { min: '0', max: String(control.values.length - 1), step: '1' });
    }
    this.input.disabled = control.values.length < 2;
  }

  private revert(): void {
    this.session.revert();
    this.input.focus();
  }

  private get value(): Setting {
    if (this.control.kind === 'checkbox') return (this.input as HTMLInputElement).checked;
    return this.control.values[Number(this.input.value)]!;
  }
}

/** Rows of all controls that apply to the plan, in groups. */
export class Controls {
  readonly node = element('div', 'smp-controls');
  private readonly rows = new Map<string, Row>();
  private readonly groups: { node: HTMLElement; title: HTMLElement; place: HTMLElement }[] = [];

  constructor(
    private readonly view: string,
    private readonly session: Session,
    private readonly onUse: (name: string) => void,
    private readonly afterFirst: HTMLElement
  ) {}

  /** @param inUse Name of the control that the curve shows. */
  draw(screen: Screen, shown: Recommendation, inUse: string): void {
    const { recommended, names: settings } = shown;
    if (this.groups.length === 0) this.addGroups(shown.groups);
    const names = screen.controls.map(control => control.name);
    for (const name of [...this.rows.keys()]) {
      if (names.includes(name)) continue;
      this.rows.get(name)!.node.remove();
      this.rows.delete(name);
    }
    const counts = shown.groups.map(() => ({ shown: 0, changed: 0, free: 0 }));
    screen.controls.forEach(control => {
      const group = this.groups[control.group]!;
      const count = counts[control.group]!;
      let row = this.rows.get(control.name);
      if (!row) {
        row = new Row(control, this.view, this.session, this.onUse);
        this.rows.set(control.name, row);
        group.place.insertBefore(row.node, group.place.children[count.shown] ?? null);
      }
      // The kernel's text, because the control may no longer have a position for the recommended value.
      row.draw(control, screen, shown, recommended.configuration[settings.indexOf(control.name)] ?? '');
      row.node.classList.toggle('smp-use', control.name === inUse);
      count.shown += 1;
      count.changed += Number(row.isChanged);
      count.free += Number(control.values.length > 1);
    });
    counts.forEach(({ changed, free }, index) => {
      const { node, title } = this.groups[index]!;
      node.hidden = free === 0;
      setText(title, changed > 0 ? `${shown.groups[index]} (${changed} changed)` : shown.groups[index]!);
    });
  }

  /** The last group is closed: its settings are rarely changed. */
  private addGroups(titles: string[]): void {
    for (const [index, text] of titles.entries()) {
      const [title, place] = [element('span', 'smp-group-title', text), element('div', '')];
      const node = index < titles.length - 1 ? element('section', '', title, place) : disclosure('smp-group-closed', [title], place);
      this.groups.push({ node, title, place });
      this.node.append(node);
      if (index === 0) this.node.append(this.afterFirst);
    }
  }
}

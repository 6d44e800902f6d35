import { enoughOf, type Sweep } from '../charts/track';
import { button, disclosure, element, keepKeys, setText } from './dom';
import { RepairBox, type RepairListener } from './repair_box';
import type { Screen } from './session';
import { sweepOf, Track } from './sweeps';
import type { Ahead, Control, Recommendation, Setting } from './wire';

/** What the rows of the controls can do. */
export interface ControlListener extends RepairListener {
  /** A value of a moving control. */
  move(name: string, value: Setting): void;
  /** The end of the gesture. */
  commit(): void;
  /** Reasons against the positions of a control, in their order. */
  problems(name: string): (string | undefined)[];
  /** Pin a setting for the next search, or free it. */
  pin(name: string): void;
}

type Input = HTMLInputElement | HTMLSelectElement;

/** One labeled control: its values come from the kernel, its element is the browser's. */
class Row {
  readonly node: HTMLElement;
  private readonly input: Input;
  private readonly marks = element('span', 'smp-marks');
  private readonly output = element('output', 'smp-value');
  private readonly note = element('span', 'smp-advised');
  private readonly reset: HTMLButtonElement;
  private readonly pin: HTMLButtonElement;
  private readonly largest: HTMLButtonElement;
  private readonly repairs: RepairBox;
  private readonly track = new Track();
  private control: Control;
  private marked = '';
  private recommended: Setting | undefined;
  /** Whether the value on the screen is another than the recommended one. */
  isChanged = false;
  /** Where the setting fits, and where it stops to pay. */
  private reach = '';
  /** Position of the largest batch that fits; -1 if none does. */
  private limit = -1;
  /** Whether the user drags the slider. */
  private isMoving = false;
  /** The screen, if it has a problem with this control, and its value there. */
  private refused: Screen | undefined;
  private text = '';

  constructor(control: Control, view: string, private readonly listener: ControlListener) {
    this.control = control;
    this.input = keepKeys(control.kind === 'select' ? element('select', 'smp-select') : element('input', `smp-${control.kind}`));
    if (this.input instanceof HTMLInputElement) this.input.type = control.kind === 'slider' ? 'range' : 'checkbox';
    this.input.name = control.name;
    this.input.id = `${view}-${control.name}`;
    this.output.setAttribute('for', this.input.id);
    // Screen readers read the slider; its output would repeat it.
    this.output.setAttribute('aria-live', 'off');
    this.marks.setAttribute('aria-hidden', 'true');
    this.input.addEventListener('input', () => {
      this.isMoving = control.kind === 'slider';
      listener.move(this.control.name, this.value);
    });
    this.input.addEventListener('change', () => {
      this.isMoving = false;
      this.drawRepairs();
      listener.commit();
    });
    this.input.addEventListener('keydown', event => {
      if ((event as KeyboardEvent).key === 'Escape' && this.repairs.isOpen) listener.revert();
    });
    this.repairs = new RepairBox(control.name, control.label, {
      // The button disappears with its box.
      apply: settings => (this.input.focus(), listener.apply(settings)),
      searchWith: (name, value) => (this.input.focus(), listener.searchWith(name, value)),
      revert: () => this.revert()
    });
    this.pin = button('smp-pin', '', () => listener.pin(this.control.name));
    this.pin.dataset['setting'] = control.name;
    this.reset = button('smp-reset', '', () => this.moveTo(this.recommended));
    this.reset.hidden = true;
    this.largest = button('smp-largest', '', () => this.moveTo(this.control.values[this.limit]));
    this.largest.hidden = true;
    const name = element('span', 'smp-label', control.label);
    name.id = `${this.input.id}-name`;
    this.note.id = `${this.input.id}-note`;
    this.input.setAttribute('aria-describedby', this.note.id);
    for (const tool of [this.pin, this.reset, this.largest]) tool.setAttribute('aria-describedby', name.id);
    const label = element('label', 'smp-control', name, this.place(control), this.output);
    label.title = control.help;
    const line = element('div', 'smp-line', label, this.note, element('div', 'smp-tools', this.pin, this.reset, this.largest));
    this.node = element('div', 'smp-row', line, this.repairs.node);
    this.fill(control);
  }

  /** The input, with its curve if it is a slider. */
  private place(control: Control): HTMLElement {
    return control.kind === 'slider' ? element('span', 'smp-track', this.track.node, this.marks, this.input) : this.input;
  }

  draw(control: Control, screen: Screen, shown: Recommendation, recommendedText: string, ahead: Ahead): void {
    const { recommended } = shown;
    if (control.values.join() !== this.control.values.join()) this.fill(control);
    this.control = control;
    const current = screen.settings[control.name];
    const position = control.values.indexOf(current as Setting);
    const text = control.texts[position] ?? String(current);
    if (this.input instanceof HTMLInputElement && this.input.type === 'checkbox') this.input.checked = current === true;
    else if (position >= 0 && this.input.value !== String(position)) this.input.value = String(position);
    this.mark(control);
    const isRefused = screen.problem !== '' && screen.moved === control.name;
    if (control.kind === 'slider') this.input.setAttribute('aria-valuetext', isRefused ? `${text}, not possible` : text);
    if (control.kind === 'slider') this.drawCurve(sweepOf(control, ahead, screen, shown));
    setText(this.output, control.kind === 'select' ? '' : text);
    this.recommended = recommended.settings[control.name];
    this.isChanged = current !== this.recommended && !!recommendedText;
    this.node.classList.toggle('smp-changed', this.isChanged);
    this.reset.hidden = !this.isChanged || !control.values.includes(this.recommended as Setting);
    setText(this.reset, `↺ ${recommendedText}`);
    this.reset.title = `Back to the recommended value: ${recommendedText}`;
    this.reset.setAttribute('aria-label', `Reset to ${recommendedText}`);
    setText(this.note, control.fixed_because || (this.isChanged && this.reset.hidden ? `recommended: ${recommendedText}` : this.reach));
    this.note.title = this.note.textContent ?? '';
    this.refused = isRefused ? screen : undefined;
    this.text = text;
    this.drawRepairs();
    this.node.classList.toggle('smp-wrong', isRefused);
    const isPinned = screen.pins.includes(control.name);
    setText(this.pin, isPinned ? 'Pinned' : 'Pin');
    this.pin.setAttribute('aria-pressed', String(isPinned));
    this.pin.title = isPinned ? 'Pinned: the next search keeps this value' : 'Pin: the next search keeps this value';
  }

  /** While the pointer moves, nothing moves under it: what an impossible value needs opens when it stops. */
  private drawRepairs(): void {
    this.repairs.draw(this.isMoving ? undefined : this.refused, this.text);
  }

  /** The curve, and for the batch the largest size that fits. Both stay while there is no data of the plan on the screen. */
  private drawCurve(sweep: Sweep | undefined): void {
    this.track.draw(sweep);
    if (sweep !== undefined) this.reach = reachOf(sweep);
    if (this.control.name !== 'batch_size' || sweep === undefined) return;
    this.limit = sweep.fits.lastIndexOf('fits');
    this.largest.hidden = this.limit < 0 || this.input.disabled || this.input.value === String(this.limit);
    setText(this.largest, `max ${sweep.texts[this.limit] ?? ''}`);
    this.largest.title = 'Largest batch size that fits with the required probability, while the other settings stay';
  }

  private moveTo(value: Setting | undefined): void {
    if (value === undefined || this.value === value) return;
    this.input.focus(); // the button may disappear
    this.listener.move(this.control.name, value);
    this.listener.commit();
  }

  /** Show on the track, or in the list, which positions cannot be reached, each with the reason. */
  private mark(control: Control): void {
    const problems = this.listener.problems(control.name);
    const key = `${control.values.join()}|${problems.join('|')}`;
    if (key === this.marked || problems.length !== control.values.length) return;
    this.marked = key;
    if (this.input instanceof HTMLSelectElement) {
      [...this.input.options].forEach((option, index) => {
        option.textContent = `${control.texts[index]}${problems[index] ? ' (not possible)' : ''}`;
        option.title = problems[index] ?? '';
      });
      return;
    }
    const last = Math.max(control.values.length - 1, 1);
    const marks = problems.flatMap((problem, index) => {
      if (!problem || control.kind !== 'slider') return [];
      const made = element('i', 'smp-mark-refused');
      made.style.setProperty('--smp-at', String(index / last));
      made.title = `${control.texts[index]}: ${problem}`;
      return [made];
    });
    this.marks.replaceChildren(...marks);
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
    this.listener.revert();
    this.input.focus();
  }

  private get value(): Setting {
    if (this.control.kind === 'checkbox') return (this.input as HTMLInputElement).checked;
    return this.control.values[Number(this.input.value)]!;
  }
}

/** Where a setting fits and stops to pay, in words: `fits up to 124, no gain beyond 64`. */
export function reachOf(sweep: Sweep): string {
  const { fits, texts } = sweep;
  const [first, last] = [fits.indexOf('fits'), fits.lastIndexOf('fits')];
  if (first < 0) return 'does not fit at any value';
  const end = texts.length - 1;
  const where =
    first === 0 && last === end ? '' : first === last ? `fits only at ${texts[first]}` : first === 0 ? `fits up to ${texts[last]}` : last === end ? `fits from ${texts[first]}` : `fits from ${texts[first]} to ${texts[last]}`;
  const enough = enoughOf(sweep);
  return [where, enough < last ? `no gain beyond ${texts[enough]}` : ''].filter(Boolean).join(', ');
}

/** Rows of all controls that apply to the plan, in groups. */
export class Controls {
  readonly node = element('div', 'smp-controls');
  private readonly rows = new Map<string, Row>();
  private readonly groups: { node: HTMLElement; title: HTMLElement; place: HTMLElement }[] = [];

  constructor(
    private readonly view: string,
    private readonly listener: ControlListener,
    private readonly ahead: () => Ahead
  ) {}

  draw(screen: Screen, shown: Recommendation): void {
    const { recommended, names: settings } = shown;
    if (this.groups.length === 0) this.addGroups(shown.groups);
    const names = screen.controls.map(control => control.name);
    for (const name of [...this.rows.keys()]) {
      if (names.includes(name)) continue;
      this.rows.get(name)!.node.remove();
      this.rows.delete(name);
    }
    const counts = shown.groups.map(() => ({ shown: 0, changed: 0 }));
    screen.controls.forEach(control => {
      const group = this.groups[control.group]!;
      const count = counts[control.group]!;
      let row = this.rows.get(control.name);
      if (!row) {
        row = new Row(control, this.view, this.listener);
        this.rows.set(control.name, row);
        group.place.insertBefore(row.node, group.place.children[count.shown] ?? null);
      }
      // The kernel's text, because the control may no longer have a position for the recommended value.
      row.draw(control, screen, shown, recommended.configuration[settings.indexOf(control.name)] ?? '', this.ahead());
      count.shown += 1;
      count.changed += Number(row.isChanged);
    });
    counts.forEach(({ shown: number, changed }, index) => {
      const { node, title } = this.groups[index]!;
      node.hidden = number === 0;
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
    }
  }
}

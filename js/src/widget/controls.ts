import type { Sweep } from '../charts/track';
import { button, element, keepKeys, setText } from './dom';
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
  private readonly advised = element('span', 'smp-advised');
  private readonly pin: HTMLButtonElement;
  private readonly largest: HTMLButtonElement;
  private readonly repairs: RepairBox;
  private readonly track = new Track();
  private control: Control;
  private marked = '';
  /** Position of the largest batch that fits; -1 if none does. */
  private limit = -1;

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
    this.input.addEventListener('input', () => listener.move(this.control.name, this.value));
    this.input.addEventListener('change', () => listener.commit());
    this.input.addEventListener('keydown', event => {
      if ((event as KeyboardEvent).key === 'Escape' && this.repairs.isOpen) listener.revert();
    });
    this.repairs = new RepairBox(control.name, control.label, {
      apply: settings => listener.apply(settings),
      searchWith: (name, value) => listener.searchWith(name, value),
      revert: () => this.revert()
    });
    this.pin = button('smp-pin', '', () => listener.pin(this.control.name));
    this.pin.setAttribute('aria-label', 'Pin');
    this.pin.dataset['setting'] = control.name;
    this.largest = button('smp-largest', '', () => this.moveToLargest());
    this.largest.hidden = true;
    const name = element('span', 'smp-label', control.label);
    name.id = `${this.input.id}-name`;
    this.pin.setAttribute('aria-describedby', name.id);
    const label = element('label', 'smp-control', name, this.place(control), this.output);
    label.title = control.help;
    this.node = element('div', 'smp-row', label, this.pin, this.advised, this.largest, this.repairs.node);
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
    const isRecommended = current === recommended.settings[control.name];
    const note = isRecommended || !recommendedText ? '' : `recommended: ${recommendedText}`;
    setText(this.advised, control.fixed_because || note);
    this.advised.title = control.fixed_because;
    this.repairs.draw(isRefused ? screen : undefined, text);
    this.node.classList.toggle('smp-wrong', isRefused);
    const isPinned = screen.pins.includes(control.name);
    this.pin.setAttribute('aria-pressed', String(isPinned));
    this.pin.title = isPinned ? 'Pinned: the next search keeps this value' : 'Pin: the next search keeps this value';
  }

  /** The curve, and for the batch the largest size that fits. Both stay while there is no data of the plan on the screen. */
  private drawCurve(sweep: Sweep | undefined): void {
    this.track.draw(sweep);
    if (this.control.name !== 'batch_size' || sweep === undefined) return;
    this.limit = sweep.fits.lastIndexOf('fits');
    this.largest.hidden = this.limit < 0 || this.input.disabled;
    setText(this.largest, `max ${sweep.texts[this.limit] ?? ''}`);
    this.largest.title = 'Largest batch size that fits with the required probability, while the other settings stay';
  }

  private moveToLargest(): void {
    const value = this.control.values[this.limit];
    if (value === undefined || this.input.value === String(this.limit)) return;
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

  remove(): void {
    this.track.dispose();
    this.node.remove();
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

/** Rows of all controls that apply to the plan. */
export class Controls {
  readonly node = element('div', 'smp-controls');
  private readonly rows = new Map<string, Row>();

  constructor(
    private readonly view: string,
    private readonly listener: ControlListener,
    private readonly ahead: () => Ahead
  ) {}

  dispose(): void {
    for (const row of this.rows.values()) row.remove();
  }

  draw(screen: Screen, shown: Recommendation): void {
    const { recommended, names: settings } = shown;
    const names = screen.controls.map(control => control.name);
    for (const name of [...this.rows.keys()]) {
      if (names.includes(name)) continue;
      this.rows.get(name)!.remove();
      this.rows.delete(name);
    }
    screen.controls.forEach((control, index) => {
      let row = this.rows.get(control.name);
      if (!row) {
        row = new Row(control, this.view, this.listener);
        this.rows.set(control.name, row);
        this.node.insertBefore(row.node, this.node.children[index] ?? null);
      }
      // The kernel's text, because the control may no longer have a position for the recommended value.
      row.draw(control, screen, shown, recommended.configuration[settings.indexOf(control.name)] ?? '', this.ahead());
    });
  }
}

import { element, keepKeys, setText } from './dom';
import type { Screen } from './session';
import { sweepOf, Track } from './sweeps';
import type { Ahead, Control, Recommendation, Setting } from './wire';

/** Receives every value of a moving control, and the end of the gesture. */
export interface ControlListener {
  move(name: string, value: Setting): void;
  commit(): void;
}

type Input = HTMLInputElement | HTMLSelectElement;

/** One labeled control: its values come from the kernel, its element is the browser's. */
class Row {
  readonly node: HTMLElement;
  private readonly input: Input;
  private readonly output = element('output', 'smp-value');
  private readonly advised = element('span', 'smp-advised');
  private readonly problem = element('p', 'smp-problem');
  private readonly track = new Track();
  private control: Control;

  constructor(control: Control, view: string, listener: ControlListener) {
    this.control = control;
    this.input = keepKeys(control.kind === 'select' ? element('select', 'smp-select') : element('input', `smp-${control.kind}`));
    if (this.input instanceof HTMLInputElement) this.input.type = control.kind === 'slider' ? 'range' : 'checkbox';
    this.input.name = control.name;
    this.input.id = `${view}-${control.name}`;
    this.output.setAttribute('for', this.input.id);
    // Screen readers read the slider; its output would repeat it.
    this.output.setAttribute('aria-live', 'off');
    this.problem.setAttribute('role', 'alert');
    this.input.addEventListener('input', () => listener.move(this.control.name, this.value));
    this.input.addEventListener('change', () => listener.commit());
    const label = element('label', 'smp-control', element('span', 'smp-label', control.label), this.place(control), this.output);
    label.title = control.help;
    this.node = element('div', 'smp-row', label, this.advised, this.problem);
    this.fill(control);
  }

  /** The input, with its curve if it is a slider. */
  private place(control: Control): HTMLElement {
    return control.kind === 'slider' ? element('span', 'smp-track', this.track.node, this.input) : this.input;
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
    if (control.kind === 'slider') this.input.setAttribute('aria-valuetext', text);
    if (control.kind === 'slider') this.track.draw(sweepOf(control, ahead, screen, shown));
    setText(this.output, control.kind === 'select' ? '' : text);
    const isRecommended = current === recommended.settings[control.name];
    setText(this.advised, isRecommended || !recommendedText ? '' : `recommended: ${recommendedText}`);
    setText(this.problem, screen.problem && screen.moved === control.name ? screen.problem : '');
    this.node.classList.toggle('smp-wrong', screen.problem !== '' && screen.moved === control.name);
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

import type { Controls } from './controls';
import { element, keepKeys, setText } from './dom';
import { curveKey } from './sweeps';
import type { Screen } from './session';
import type { Recommendation } from './wire';

/** The configuration: its controls, what follows from them, and the effect of the last move. */
export class Settings {
  readonly node: HTMLElement;
  private readonly derived = element('span', 'smp-note');
  /** Effect of the last move; next to the memory. */
  readonly change = keepKeys(element('p', 'smp-change'));

  constructor(
    private readonly shown: Recommendation,
    private readonly controls: Controls
  ) {
    this.change.setAttribute('role', 'status');
    this.change.tabIndex = 0; // a longer text scrolls
    const title = element('h3', 'smp-title', 'Settings ', this.derived);
    this.node = element('section', 'smp-settings', title, curveKey(), controls.node);
  }

  draw(screen: Screen): void {
    const { rows, names } = this.shown;
    this.controls.draw(screen, this.shown);
    // Rows without a control follow from the others.
    const controlled = new Set(screen.controls.map(control => control.name));
    const derived = names.flatMap((name, index) => {
      const text = screen.snapshot.configuration[index];
      return text && !controlled.has(name) ? [`${rows[index]} ${text}`] : [];
    });
    setText(this.derived, derived.join(', '));
    setText(this.change, screen.problem ? REFUSED : screen.summary || HINT);
    this.change.classList.toggle('smp-hint', !screen.problem && !screen.summary);
    this.change.classList.toggle('smp-refused', screen.problem !== '');
  }
}

const REFUSED = 'Not possible with the other settings: choose a repair, or keep the setting as it was.';
const HINT = 'Change a setting to see its effect on memory and throughput.';

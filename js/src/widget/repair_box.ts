import { button, element, setText } from './dom';
import type { Screen } from './session';
import type { Setting, Settings } from './wire';

export interface RepairListener {
  /** Set all controls at once. */
  apply(settings: Settings): void;
  /** Back to the last settings that could be combined. */
  revert(): void;
  /** Search the other settings for the requested value. */
  searchWith(name: string, value: Setting): void;
}

/** Why a position cannot be reached, and the ways to reach it. */
export class RepairBox {
  readonly node: HTMLElement;
  private readonly reason = element('p', 'smp-problem');
  private readonly ways = element('div', 'smp-repairs');
  private drawn = '';

  constructor(
    private readonly name: string,
    private readonly label: string,
    private readonly listener: RepairListener
  ) {
    this.reason.setAttribute('role', 'alert');
    this.node = element('div', 'smp-repair-box', this.reason, this.ways);
    this.node.hidden = true;
    this.node.addEventListener('keydown', event => {
      if (event.key === 'Escape') this.listener.revert();
    });
  }

  get isOpen(): boolean {
    return !this.node.hidden;
  }

  /** @param screen The screen, if it has a problem with this control. @param text Text of the requested value. */
  draw(screen: Screen | undefined, text: string): void {
    this.node.hidden = screen === undefined;
    setText(this.reason, screen?.problem ?? '');
    const key = screen ? JSON.stringify([text, screen.repairs, screen.snapshot.settings]) : '';
    if (key === this.drawn) return;
    this.drawn = key;
    if (!screen) return;
    const repairs = screen.repairs.map(({ text: instruction, effect, settings }) => {
      const made = button('smp-button smp-repair', '', () => this.listener.apply(settings));
      made.append(element('b', '', instruction), element('span', 'smp-note', effect));
      return made;
    });
    const { name } = this;
    const search = button('smp-button smp-repair', '', () => this.listener.searchWith(name, screen.settings[name]!));
    search.append(element('b', '', `Pin ${this.label.toLowerCase()} ${text} and search the other settings`), element('span', 'smp-note', 'the best plan with this value'));
    const back = button('smp-button smp-small', `Keep the ${this.label.toLowerCase()} as it was`, () => this.listener.revert());
    this.ways.replaceChildren(...repairs, search, back);
  }
}

import { element, keepKeys, setText } from './dom';
import type { Screen } from './session';
import type { Costs, Recommendation } from './wire';
import type { Searching } from './workload_bar';

export type Answer = Costs['fit'] | 'call' | 'none' | 'wait' | 'search';

/** Sign and words of each state; `figures.py` has the same. */
export const ANSWERS: Record<Answer, [sign: string, words: string]> = {
  fits: ['✓', 'Fits'],
  risk: ['!', 'At risk'],
  over: ['✗', 'Does not fit'],
  call: ['!', 'Batch not searched'],
  none: ['?', 'Not possible'],
  wait: ['…', 'Updating'],
  search: ['…', 'Searching']
};

/** The line that stays on the screen: verdict, memory, speed, price and the button. Its lower edge is the tank in small. */
export class Strip {
  readonly node: HTMLElement;
  private readonly sign = element('span', 'smp-sign');
  private readonly words = keepKeys(element('h2', 'smp-words'));
  private readonly figures = [0, 1, 2].map(() => ({ value: element('b'), unit: element('span', 'smp-unit'), more: element('span', 'smp-wide') }));
  private readonly fill = element('i', 'smp-gauge-fill');
  private readonly excess = element('i', 'smp-gauge-over');
  private readonly gauge = element('div', 'smp-gauge', this.fill, this.excess, element('u'));
  private readonly tag = element('span', 'smp-tag', 'measured');
  private readonly mark = element('span', 'smp-tag', 'rehearsed');

  /** @param actions The button of the plan, and what else can be inserted. */
  constructor(
    private readonly shown: Recommendation,
    actions: HTMLElement
  ) {
    this.sign.setAttribute('aria-hidden', 'true');
    this.gauge.setAttribute('aria-hidden', 'true');
    this.words.tabIndex = -1;
    this.words.setAttribute('name', 'verdict'); // another recommendation is drawn with the focus here
    this.tag.hidden = !shown.measured;
    this.tag.title = shown.measured;
    const parts = this.figures.map(({ value, unit, more }, index) =>
      element('div', `smp-figure-${index + 1} smp-fact${index ? '' : ' smp-memory'}`, value, ' ', unit, more, index === 1 && this.tag)
    );
    this.node = element('section', 'smp-verdict', this.sign, this.words, this.mark, ...parts, actions, this.gauge);
    this.node.setAttribute('role', 'group'); // not a landmark: there is one in each view
    this.node.setAttribute('aria-label', 'Verdict');
  }

  /** @param hold Why the plan is not that of the fields; empty if it is. */
  draw(screen: Screen, hold: string, search: Searching | null): void {
    const { costs } = screen.snapshot;
    const { usable_gib: usable } = this.shown;
    const answer: Answer = search ? 'search' : screen.problem ? 'none' : screen.isWaiting ? 'wait' : costs.fit === 'fits' && this.shown.call ? 'call' : costs.fit;
    const [sign, words] = ANSWERS[answer];
    this.node.dataset['answer'] = answer;
    this.node.classList.toggle('smp-older', screen.isWaiting || (!!hold && !search));
    setText(this.sign, sign);
    this.mark.hidden = !screen.rehearsed;
    this.mark.title = screen.rehearsed;
    setText(this.words, hold && !search ? `${words} (before)` : words);
    const [speed, time, money] = screen.detail.headline;
    const run = time?.[2] === 'days' || time?.[2] === 'hours' ? `, ${costs.time}` : '';
    const hourly = money?.[3] ? `, ${money[3].replace('/', ' per ')}` : '';
    const texts: [string, string, string][] = search
      ? [[search.part, '', ''], [search.left, '', ''], ['', '', '']]
      : screen.problem
        ? [['–', `of ${usable.toFixed(1)} GiB`, ''], ['–', speed?.[2] ?? '', ''], ['–', money?.[2] ?? '', '']]
        : [
            costs.memory ? ['', costs.memory, ''] : [costs.gib.toLocaleString('en-US', { minimumFractionDigits: 1, maximumFractionDigits: 1 }), `of ${usable.toFixed(1)} GiB`, ''],
            [costs.speed, `${speed?.[2] ?? ''}${this.shown.call && `, each ${this.shown.call}`}`, ''],
            [costs.money, money?.[2] ?? '', `${run}${hourly}`]
          ];
    this.figures.forEach(({ value, unit, more }, index) => {
      const [number, of, rest] = texts[index]!;
      setText(value, number);
      setText(unit, of);
      setText(more, rest);
    });
    const share = search ? search.share : (Math.min(costs.gib, usable) / usable) * (2 / 3);
    this.fill.style.width = `${100 * share}%`;
    this.excess.style.width = search ? '0' : `${(200 / 3) * Math.min(Math.max(costs.gib / usable - 1, 0), 0.5)}%`;
  }
}

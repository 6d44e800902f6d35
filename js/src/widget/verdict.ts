import { button, element, keepKeys, setText } from './dom';
import { same } from './look_ahead';
import type { Screen } from './session';
import type { Costs, Recommendation, Snapshot } from './wire';

type Answer = Costs['fit'] | 'none';

/** Sign and words of each state; `headline.py` has the same. */
const ANSWERS: Record<Answer, [sign: string, words: string]> = {
  fits: ['✓', 'Fits'],
  risk: ['!', 'At risk'],
  over: ['✗', 'Does not fit'],
  none: ['?', 'Not possible']
};

/** The answer: whether the plan fits, how fast, how long and how much, what decides, and the way to export it. */
export class Verdict {
  readonly node: HTMLElement;
  private readonly sign = element('span', 'smp-sign');
  private readonly words = keepKeys(element('h2', 'smp-words'));
  private readonly memory = element('p', 'smp-memory');
  private readonly likely = element('p', 'smp-note');
  private readonly figures = [0, 1, 2].map(() => ({
    about: element('span', 'smp-about'),
    value: element('b', 'smp-large'),
    unit: element('span', 'smp-unit'),
    note: element('span', ''),
    range: element('p', 'smp-note smp-range')
  }));
  private readonly lead = element('b', 'smp-decisive-lead');
  private readonly reason = element('span', '');
  private readonly because = keepKeys(element('p', 'smp-because', this.lead, ' ', this.reason));
  private readonly reset: HTMLButtonElement;

  /**
   * @param actions Buttons that export the plan.
   * @param status Lines below the answer: state of the kernel and of the export.
   */
  constructor(
    private readonly shown: Recommendation,
    onReset: () => void,
    actions: HTMLElement,
    ...status: HTMLElement[]
  ) {
    this.sign.setAttribute('aria-hidden', 'true');
    this.words.tabIndex = -1;
    this.words.setAttribute('name', 'verdict'); // another recommendation is drawn with the focus here
    // A longer text is complete with the focus.
    this.because.tabIndex = 0;
    this.because.setAttribute('role', 'group');
    this.because.setAttribute('aria-label', 'Reason');
    this.reset = button('smp-button smp-small', 'Reset to recommended', () => {
      onReset();
      // The button disappears. Without this, the page would take the focus, and its shortcuts the next keys.
      this.words.focus();
    });
    this.node = element(
      'section',
      'smp-verdict',
      element('div', 'smp-answer', this.sign, element('div', '', this.words, this.memory, this.likely)),
      ...this.figures.map(parts => this.figure(parts)),
      element('div', 'smp-act', actions),
      element('div', 'smp-decisive', this.because, this.reset),
      element('div', 'smp-status-line', ...status)
    );
    this.node.setAttribute('role', 'group'); // not a landmark: there is one in each view
    this.node.setAttribute('aria-label', 'Verdict');
  }

  /** A large figure; the pointer and the focus show its interval. */
  private figure({ about, value, unit, note, range }: (typeof this.figures)[number]): HTMLElement {
    const node = keepKeys(element('div', 'smp-headline', element('p', '', about, ' ', value), element('div', 'smp-below', element('p', 'smp-note', unit, ' ', note), range)));
    node.tabIndex = 0;
    node.setAttribute('role', 'group');
    return node;
  }

  /** @param hold Why the plan is an older one than that of the fields; empty if it is not. */
  draw(screen: Screen, hold: string): void {
    const { recommended, decisive, rows } = this.shown;
    const { costs } = screen.snapshot;
    const answer: Answer = screen.problem ? 'none' : costs.fit;
    const [sign, words] = ANSWERS[answer];
    this.node.dataset['answer'] = answer;
    // A plan that cannot run has no speed and no price. The note is for readers of the screen.
    const isVoid = answer === 'over';
    // The kernel has yet to answer with the figures of these settings.
    this.node.classList.toggle('smp-older', !!hold || (!screen.problem && !same(screen.settings, screen.snapshot.settings)));
    setText(this.sign, sign);
    setText(this.words, hold ? `${words} (plan of the fields before)` : words);
    setText(this.memory, screen.problem ? 'Cannot be combined' : costs.memory);
    setText(this.likely, screen.problem ? '' : costs.likely);
    this.figures.forEach(({ about, value, unit, note, range }, index) => {
      // The figures of another plan are never shown as those of this one.
      const [word, number, of, below, ends] = costs.headline[index] ?? ['', '', '', '', ''];
      setText(about, screen.problem ? '' : word);
      setText(value, screen.problem ? '–' : number);
      setText(unit, screen.problem ? '' : of);
      setText(note, screen.problem ? '' : isVoid ? '(if it fitted)' : below && `at ${below}`);
      setText(range, screen.problem || !ends ? '' : `95 %: ${ends}`);
    });
    const isRecommended = !screen.problem && differences(rows, screen.snapshot, recommended).length === 0;
    const [lead, reason] = screen.problem
      ? ['', `${screen.problem.charAt(0).toUpperCase()}${screen.problem.slice(1)}`]
      : isRecommended
        ? [`Recommended: ${decisive[0]}`, decisive[1]]
        : [...compared(rows, screen.snapshot, recommended)];
    setText(this.lead, lead ?? '');
    setText(this.reason, reason ?? '');
    this.reset.hidden = isRecommended;
    this.reset.title = screen.snapshot.preferred;
  }
}

/** What differs from the recommended plan, and what it costs. */
function compared(rows: string[], now: Snapshot, recommended: Snapshot): [string, string] {
  const changes = differences(rows, now, recommended).map(
    index => `${rows[index]} ${now.configuration[index] || 'none'} (recommended ${recommended.configuration[index] || 'none'})`
  );
  return [`Your plan, ${against(now, recommended)}.`, `${changes.join(', ')}. ${now.preferred}`];
}

function differences(rows: string[], now: Snapshot, recommended: Snapshot): number[] {
  return rows.map((_, index) => index).filter(index => now.configuration[index] !== recommended.configuration[index]);
}

function against(now: Snapshot, recommended: Snapshot): string {
  const percent = 100 * (now.costs.samples_per_second / recommended.costs.samples_per_second - 1);
  if (now.costs.fit === 'over') return 'which does not fit';
  const risk = now.costs.fit === 'risk' ? ' if it fits' : '';
  if (Math.abs(percent) < 0.5) return `as fast as the recommended one${risk}`;
  const size = Math.abs(percent).toFixed(Math.abs(percent) < 9.95 ? 1 : 0);
  return `${size} % ${percent < 0 ? 'slower' : 'faster'} than the recommended one${risk}`;
}

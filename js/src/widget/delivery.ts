import { digest } from '../digest';
import type { Insertion } from '../events';
import { button, element, setText } from './dom';
import { announcePlan, copy, insertCells } from './insert';
import type { Settings } from './wire';

/** Cells whose code is the same for every plan. */
const INDEPENDENT = new Set(['monitoring']);

const ANNOUNCE_DELAY_MS = 300;

/** Puts cells into the notebook, or on the clipboard, and reports it. */
export class Delivery {
  /** Offers after the user edited the cells inserted before; empty at other times. */
  readonly offers = element('span', 'smp-offers');
  private announced = '';
  /** Inserted cells that are for another plan, by their kind. */
  stale: Record<string, number> = {};
  private timer: ReturnType<typeof setTimeout> | undefined;

  /** @param onStale The notebook has counted the cells of other plans. */
  constructor(
    private readonly status: HTMLElement,
    private readonly onStale: () => void = () => undefined
  ) {}

  /** Insert cells, or update those inserted before. */
  async deliver(insertion: Insertion): Promise<void> {
    this.offers.replaceChildren();
    const cells = insertion.sources.length > 1 ? 'cells' : 'cell';
    switch (insertCells(this.status, insertion)) {
      case 'inserted':
        this.settle(insertion);
        return setText(this.status, inserted(insertion));
      case 'updated':
        this.settle(insertion);
        return setText(this.status, `Updated the ${cells} inserted before.`);
      case 'unchanged':
        return setText(this.status, `The ${cells} inserted before ${cells === 'cell' ? 'has' : 'have'} this code already.`);
      case 'edited':
        return this.offer(insertion, cells);
      case null:
        return this.copy(insertion.sources);
    }
  }

  async copy(sources: string[]): Promise<void> {
    this.offers.replaceChildren();
    setText(this.status, (await copy(sources.join('\n\n\n'))) ? copied(sources.length) : FALL_BACK);
  }

  /** Forget the offers: they are for other settings. */
  clear(): void {
    this.offers.replaceChildren();
  }

  /** Report the plan on the screen to the notebook, once it stays for a moment. */
  announce(plan: string): void {
    if (plan === this.announced) return;
    this.announced = plan;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.stale = announcePlan(this.status, plan);
      this.onStale();
    }, ANNOUNCE_DELAY_MS);
  }

  dispose(): void {
    clearTimeout(this.timer);
  }

  /** Cells that were just written are for the plan on the screen. */
  private settle({ what }: Insertion): void {
    this.stale = { ...this.stale, [what]: 0 };
    this.onStale();
  }

  private offer(insertion: Insertion, cells: string): void {
    setText(this.status, `You edited the ${cells} inserted before.`);
    const offered = (text: string, mode: Insertion['mode']): HTMLButtonElement =>
      button('smp-button', text, () => {
        // The button disappears. Without this, the page would take the focus.
        this.status.tabIndex = -1;
        this.status.focus();
        void this.deliver({ ...insertion, mode });
      });
    this.offers.replaceChildren(offered('Replace my edits', 'replace'), offered(`Insert new ${cells}`, 'add'));
  }
}

/** Fingerprint of the plan on the screen, with which the notebook marks cells of other plans. */
export function planOf(title: string, settings: Settings, what = ''): string {
  if (INDEPENDENT.has(what)) return '';
  const sorted = Object.entries(settings).sort(([one], [two]) => (one < two ? -1 : 1));
  return digest(JSON.stringify([title, sorted]));
}

function inserted({ sources }: Insertion): string {
  return sources.length > 1
    ? `Inserted ${sources.length} cells below: the training script, then the estimator.`
    : 'Inserted a cell below.';
}

/** In one cell, the first line would also write the estimator to the file of the script. */
function copied(cells: number): string {
  const where = cells > 1 ? 'two new cells: first the script, then the estimator' : 'a new cell';
  return `Copied to the clipboard; paste it in ${where}.`;
}

const FALL_BACK = 'Run %smp_export in a new cell to get the code.';

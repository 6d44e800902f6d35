/**
 * Draws SVG text as wide as its place. The width is observed: reading it between two changes of the page would compute
 * the layout each time.
 */
export class Fitted {
  private readonly observer: ResizeObserver | undefined;
  private width = 0;
  private drawn = '';

  /** @param draw Drawing for a width in pixels, which escapes every text of its data; undefined for none yet. */
  constructor(
    private readonly node: HTMLElement,
    private readonly narrowest: number,
    private readonly draw: (width: number) => string | undefined
  ) {
    if (typeof ResizeObserver === 'undefined') return;
    this.observer = new ResizeObserver(entries => {
      const width = Math.floor(entries[entries.length - 1]!.contentRect.width);
      if (width === this.width || width === 0) return;
      this.width = width;
      this.paint();
    });
    this.observer.observe(node);
  }

  /** Draw again; true if the drawing changed. */
  paint(): boolean {
    const svg = this.draw(Math.max(this.width || 560, this.narrowest));
    if (svg === undefined || svg === this.drawn) return false;
    this.node.innerHTML = this.drawn = svg;
    return true;
  }

  dispose(): void {
    this.observer?.disconnect();
  }
}

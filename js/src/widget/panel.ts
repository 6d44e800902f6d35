import type { Screen } from './session';
import type { FromKernel } from './wire';

/** A part of the page with data of its own. A tab draws its panel only while it is open. */
export interface Panel {
  readonly node: HTMLElement;
  draw(screen: Screen): void;
  onMessage?(message: FromKernel): void;
  dispose?(): void;
}

/** A panel whose content never changes. */
export function fixed(node: HTMLElement): Panel {
  return { node, draw: () => undefined };
}

/** Several panels, one below the other. */
export function stacked(className: string, ...panels: Panel[]): Panel {
  const node = document.createElement('div');
  node.className = className;
  node.append(...panels.map(panel => panel.node));
  return {
    node,
    draw: screen => panels.forEach(panel => panel.draw(screen)),
    onMessage: message => panels.forEach(panel => panel.onMessage?.(message)),
    dispose: () => panels.forEach(panel => panel.dispose?.())
  };
}

import { element, keepKeys } from './dom';
import type { Panel } from './panel';
import type { Screen } from './session';
import type { FromKernel } from './wire';

interface Tab {
  button: HTMLButtonElement;
  page: HTMLElement;
  panel: Panel;
}

/** Tabs with one panel each. Only the open panel is drawn, so that a closed one costs nothing. */
export class Tabs {
  readonly node: HTMLElement;
  private readonly list = element('div', 'smp-tablist');
  private readonly pages = element('div', 'smp-pages');
  private readonly tabs = new Map<string, Tab>();
  private open = '';
  private screen: Screen | undefined;

  constructor(private readonly view: string) {
    this.list.setAttribute('role', 'tablist');
    this.list.setAttribute('aria-label', 'Details of the plan');
    this.list.addEventListener('keydown', event => this.onKey(event));
    this.node = element('section', 'smp-tabs', this.list, this.pages);
  }

  /** Add a tab. The first one is open. @param count Number next to the title, if there is one. */
  add(name: string, title: string, panel: Panel, count?: number): this {
    const [tabId, pageId] = [`${this.view}-tab-${name}`, `${this.view}-page-${name}`];
    const tab = keepKeys(element('button', 'smp-tab', title, count ? element('span', 'smp-count', ` ${count}`) : null));
    tab.type = 'button';
    tab.id = tabId;
    tab.setAttribute('role', 'tab');
    tab.setAttribute('aria-controls', pageId);
    tab.addEventListener('click', () => this.show(name));
    const page = keepKeys(element('div', 'smp-page', panel.node));
    page.id = pageId;
    page.tabIndex = 0;
    page.setAttribute('role', 'tabpanel');
    page.setAttribute('aria-labelledby', tabId);
    this.tabs.set(name, { button: tab, page, panel });
    this.list.append(tab);
    this.pages.append(page);
    this.show(this.open || name);
    return this;
  }

  /** Name of the open tab. */
  get current(): string {
    return this.open;
  }

  /** Open a tab, also from other parts of the page. */
  show(name: string): void {
    this.open = name;
    for (const [key, { button, page }] of this.tabs) {
      const isOpen = key === name;
      button.setAttribute('aria-selected', String(isOpen));
      button.tabIndex = isOpen ? 0 : -1;
      page.hidden = !isOpen;
    }
    if (this.screen) this.tabs.get(name)?.panel.draw(this.screen);
  }

  draw(screen: Screen): void {
    this.screen = screen;
    this.tabs.get(this.open)?.panel.draw(screen);
  }

  onMessage(message: FromKernel): void {
    for (const { panel } of this.tabs.values()) panel.onMessage?.(message);
  }

  dispose(): void {
    for (const { panel } of this.tabs.values()) panel.dispose?.();
  }

  private onKey(event: KeyboardEvent): void {
    const names = [...this.tabs.keys()];
    const here = names.indexOf(this.open);
    const last = names.length - 1;
    const next = { ArrowRight: here === last ? 0 : here + 1, ArrowLeft: here === 0 ? last : here - 1, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.show(names[next]!);
    this.tabs.get(this.open)!.button.focus();
  }
}

import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { IRenderMime, IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import { Panel, Widget } from '@lumino/widgets';

/** Marks an output of the advisor, next to its widget view and its picture. */
export const ADVISOR_MIME = 'application/vnd.smp-advisor.view+json';

/** Notebook and widget model of an output. */
interface IShown {
  panel: NotebookPanel;
  model: string;
}

const shown = new WeakMap<Node, IShown>();

/** The advisor whose output contains `node`, also in a tab of its own. */
export function advisorAt(node: Node | null): IShown | null {
  for (let at = node; at !== null; at = at.parentNode) {
    const advisor = shown.get(at);
    if (advisor) return advisor;
  }
  return null;
}

const WIDGET_MIME = 'application/vnd.jupyter.widget-view+json';
const PICTURE_MIME = 'text/html';
/** Before ipywidgets' renderer, which has -10. */
const RANK = -20;
/** Message of ipywidgets' renderer if the kernel has no such widget. */
const NOT_FOUND = /^Error displaying widget/;
/** A live widget appears earlier, so that the picture does not flicker. */
const PICTURE_AFTER_MS = 1000;
/** Doubles with each attempt: a new one gives up a view that a slow page may still be building. */
const RETRY_MS = 1500;
const LAST_RETRY_MS = 60_000;

/**
 * Shows an advisor's widget, or its picture while there is no widget.
 *
 * ipywidgets' own renderer shows "model not found" in a notebook that is opened again without its kernel, although the
 * output contains a picture of the advisor.
 */
export class AdvisorRenderer extends Panel implements IRenderMime.IRenderer {
  private live: Widget | null = null;
  /** Model of the widget in the output. */
  private widget: unknown;
  private picture: Widget | null = null;
  private timers: ReturnType<typeof setTimeout>[] = [];

  constructor(private readonly panel: NotebookPanel) {
    super();
  }

  private get rendermime(): IRenderMimeRegistry {
    return this.panel.content.rendermime;
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const identity = (model.data[ADVISOR_MIME] as { model_id?: unknown } | undefined)?.model_id;
    // The kernel writes the output again after moves, so that the notebook saves the plan on the screen. The view stays.
    // The simpler view of a page that cannot load this one is another widget in the same output.
    const widget = (model.data[WIDGET_MIME] as { model_id?: unknown } | undefined)?.model_id;
    if (widget !== undefined && widget === this.widget && this.look()) return;
    this.widget = widget;
    shown.set(this.node, { panel: this.panel, model: typeof identity === 'string' ? identity : '' });
    this.stop();
    this.picture?.dispose();
    this.picture = null;
    this.later(PICTURE_AFTER_MS, () => void this.showPicture(model));
    this.attempt(model, RETRY_MS);
  }

  override dispose(): void {
    this.stop();
    super.dispose();
  }

  /**
   * Request the widget from ipywidgets' renderer, repeatedly, because a renderer that is created before ipywidgets knows
   * the kernel of this notebook never shows a widget.
   */
  private attempt(model: IRenderMime.IMimeModel, delay: number): void {
    this.live?.dispose();
    const live = (this.live = this.rendermime.createRenderer(WIDGET_MIME));
    live.hide();
    this.insertWidget(0, live);
    // The promise of a renderer that waits for a kernel may never settle, so its output is checked as well.
    live.renderModel(model).then(
      () => this.look(),
      () => undefined
    );
    this.later(delay, () => {
      if (!this.look() && !this.isLost && delay < LAST_RETRY_MS) this.attempt(model, 2 * delay);
    });
  }

  /** Show the widget if it exists. */
  private look(): boolean {
    if (this.live === null || this.live.isDisposed || this.live.node.childElementCount === 0) return false;
    this.stop();
    this.picture?.dispose();
    this.picture = null;
    this.live.show();
    return true;
  }

  private get isLost(): boolean {
    return NOT_FOUND.test(this.live?.node.textContent ?? '');
  }

  private async showPicture(model: IRenderMime.IMimeModel): Promise<void> {
    if (this.look() || !(PICTURE_MIME in model.data)) return;
    const picture = (this.picture = this.rendermime.createRenderer(PICTURE_MIME));
    this.addWidget(picture);
    await picture.renderModel(model);
  }

  private later(delay: number, action: () => void): void {
    this.timers.push(setTimeout(() => !this.isDisposed && action(), delay));
  }

  private stop(): void {
    this.timers.forEach(clearTimeout);
    this.timers = [];
  }
}

/** Render advisors in every notebook, until disposed. */
export function renderAdvisors(tracker: INotebookTracker): IDisposable {
  const prepare = (_: unknown, panel: NotebookPanel): void => {
    const createRenderer = (): AdvisorRenderer => new AdvisorRenderer(panel);
    // Not safe, like ipywidgets' own renderer: an untrusted notebook shows the picture.
    panel.content.rendermime.addFactory({ safe: false, mimeTypes: [ADVISOR_MIME], createRenderer }, RANK);
  };
  tracker.forEach(panel => prepare(null, panel));
  tracker.widgetAdded.connect(prepare);
  return new DisposableDelegate(() => tracker.widgetAdded.disconnect(prepare));
}

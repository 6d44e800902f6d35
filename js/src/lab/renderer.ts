import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { IRenderMime } from '@jupyterlab/rendermime';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import { Panel } from '@lumino/widgets';

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
/** Messages of ipywidgets' renderer if the kernel has no such widget, or the page cannot draw it. */
const FAILED = /^Error displaying widget/;
/** A live widget appears earlier, so that the picture does not flicker. */
const PICTURE_AFTER_MS = 1000;
/** Doubles with each attempt. */
const AGAIN_AFTER_MS = 1000;

/**
 * Shows an advisor's widget, or its picture while there is no widget.
 *
 * ipywidgets' own renderer shows "model not found" in a notebook that is opened again without its kernel, although the
 * output contains a picture of the advisor.
 */
export class AdvisorRenderer extends Panel implements IRenderMime.IRenderer {
  private live: IRenderMime.IRenderer | null = null;
  /** Model of the widget in the output. */
  private widget: unknown;
  private picture: IRenderMime.IRenderer | null = null;
  private model: IRenderMime.IMimeModel | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private pause = AGAIN_AFTER_MS;
  /** Follows ipywidgets' renderer: its promise may settle long before it has a widget, or never. */
  private readonly observer = new MutationObserver(() => this.look());

  constructor(
    private readonly panel: NotebookPanel,
    private readonly started: Promise<void>
  ) {
    super();
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const identity = (model.data[ADVISOR_MIME] as { model_id?: unknown } | undefined)?.model_id;
    // The kernel writes the output again after moves, so that the notebook saves the plan on the screen. The view stays.
    // The simpler view of a page that cannot load this one is another widget in the same output.
    const widget = (model.data[WIDGET_MIME] as { model_id?: unknown } | undefined)?.model_id;
    if (widget !== undefined && widget === this.widget && this.isLive) return;
    this.widget = widget;
    this.model = model;
    shown.set(this.node, { panel: this.panel, model: typeof identity === 'string' ? identity : '' });
    this.replacePicture(null);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.showPicture(), PICTURE_AFTER_MS);
    void this.showWidget(model);
  }

  override dispose(): void {
    clearTimeout(this.timer);
    this.observer.disconnect();
    super.dispose();
  }

  private get isLive(): boolean {
    return this.live !== null && this.live.node.childElementCount > 0;
  }

  /**
   * Request the widget from ipywidgets' renderer.
   *
   * A page that is slow to load can draw a restored notebook before ipywidgets is activated. ipywidgets replaces that
   * renderer in a step of its own once the notebook has a session; one that was created earlier never gets a widget.
   */
  private async showWidget(model: IRenderMime.IMimeModel): Promise<void> {
    await this.started;
    await this.panel.sessionContext.ready;
    await new Promise(resolve => setTimeout(resolve, 0));
    const { rendermime } = this.panel.content;
    if (this.isDisposed || model !== this.model || rendermime.getFactory(WIDGET_MIME) === undefined) return;
    this.live?.dispose();
    this.live = rendermime.createRenderer(WIDGET_MIME);
    this.live.hide();
    this.insertWidget(0, this.live);
    this.observer.observe(this.live.node, { childList: true });
    await this.live.renderModel(model);
  }

  /** Show the widget if it exists, and the picture if it never will. */
  private look(): void {
    if (this.isLive) {
      clearTimeout(this.timer);
      this.replacePicture(null);
      this.live?.show();
    } else if (FAILED.test(this.live?.node.textContent ?? '')) {
      this.live?.dispose();
      this.live = null;
      this.showPicture();
      if (this.model !== null) void this.lookAgain(this.model);
    }
  }

  /** Try again while the kernel has the widget: on a slow page, ipywidgets can report this before it has restored it. */
  private async lookAgain(model: IRenderMime.IMimeModel): Promise<void> {
    const kernel = this.panel.sessionContext.session?.kernel;
    const reply = await kernel?.requestCommInfo({ target_name: 'jupyter.widget' }).catch(() => undefined);
    if (reply?.content.status !== 'ok' || !(String(this.widget) in reply.content.comms)) return;
    await new Promise(resolve => setTimeout(resolve, this.pause));
    this.pause *= 2;
    if (model === this.model && !this.isDisposed) void this.showWidget(model);
  }

  private showPicture(): void {
    if (this.isLive || this.picture !== null || this.model === null || !(PICTURE_MIME in this.model.data)) return;
    const picture = this.panel.content.rendermime.createRenderer(PICTURE_MIME);
    this.replacePicture(picture);
    void picture.renderModel(this.model);
  }

  private replacePicture(picture: IRenderMime.IRenderer | null): void {
    this.picture?.dispose();
    this.picture = picture;
    if (picture !== null) this.addWidget(picture);
  }
}

/** Render advisors in every notebook, until disposed; `started` is when all extensions are active. */
export function renderAdvisors(tracker: INotebookTracker, started: Promise<void>): IDisposable {
  const prepare = (_: unknown, panel: NotebookPanel): void => {
    const createRenderer = (): AdvisorRenderer => new AdvisorRenderer(panel, started);
    // Not safe, like ipywidgets' own renderer: an untrusted notebook shows the picture.
    panel.content.rendermime.addFactory({ safe: false, mimeTypes: [ADVISOR_MIME], createRenderer }, RANK);
  };
  tracker.forEach(panel => prepare(null, panel));
  tracker.widgetAdded.connect(prepare);
  return new DisposableDelegate(() => tracker.widgetAdded.disconnect(prepare));
}

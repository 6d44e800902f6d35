import type { NotebookPanel } from '@jupyterlab/notebook';
import type { IRenderMime } from '@jupyterlab/rendermime';
import { Widget } from '@lumino/widgets';
import { afterEach, expect, test, vi } from 'vitest';
import { ADVISOR_MIME, AdvisorRenderer } from '../src/lab/renderer';

const WIDGET_MIME = 'application/vnd.jupyter.widget-view+json';
const MODEL = {
  data: { [ADVISOR_MIME]: { model_id: 'm1' }, [WIDGET_MIME]: { model_id: 'm1' }, 'text/html': '<p>the picture</p>' }
} as unknown as IRenderMime.IMimeModel;

/** Draws its type as JupyterLab and ipywidgets draw pictures and widgets, or reports that the page has no such widget. */
class Drawn extends Widget implements IRenderMime.IRenderer {
  constructor(private readonly type: string) {
    super();
  }

  async renderModel(): Promise<void> {
    if (this.type === WIDGET_MIME && !page.hasWidget) {
      page.reports += 1;
      this.node.textContent = 'Error displaying widget: model not found';
      return;
    }
    const made = document.createElement('p');
    made.textContent = this.type;
    this.node.append(made);
  }
}

const page = { types: new Set<string>(), comms: {}, hasWidget: true, reports: 0, start: (): void => {} };

/** A notebook's renderer of the advisor. */
function drawn(): AdvisorRenderer {
  vi.useFakeTimers();
  const started = new Promise<void>(resolve => (page.start = resolve));
  const rendermime = {
    getFactory: (type: string) => (page.types.has(type) ? {} : undefined),
    createRenderer: (type: string) => new Drawn(type)
  };
  const kernel = { requestCommInfo: async () => ({ content: { status: 'ok', comms: page.comms } }) };
  const sessionContext = { ready: Promise.resolve(), session: { kernel } };
  const renderer = new AdvisorRenderer({ sessionContext, content: { rendermime } } as unknown as NotebookPanel, started);
  void renderer.renderModel(MODEL);
  return renderer;
}

afterEach(() => {
  vi.useRealTimers();
});

test('a restored notebook that is drawn before ipywidgets is active shows the widget, and the picture until then', async () => {
  Object.assign(page, { types: new Set(['text/html']), hasWidget: true });
  const renderer = drawn();
  await vi.advanceTimersByTimeAsync(5000);
  expect(renderer.node.textContent).toBe('text/html');
  page.types.add(WIDGET_MIME);
  page.start();
  await vi.advanceTimersByTimeAsync(5000);
  expect(renderer.node.textContent).toBe(WIDGET_MIME);
  renderer.dispose();
});

test.each([
  ['is requested again while the kernel has it', { m1: {} }, 3],
  ['that the kernel does not have is requested once', {}, 1]
])('a widget %s, and the picture is shown', async (_, comms, reports) => {
  Object.assign(page, { types: new Set(['text/html', WIDGET_MIME]), comms, hasWidget: false, reports: 0 });
  const renderer = drawn();
  page.start();
  await vi.advanceTimersByTimeAsync(4500);
  expect(page.reports).toBe(reports);
  expect(renderer.node.textContent).toBe('text/html');
  page.hasWidget = true;
  await vi.advanceTimersByTimeAsync(5000);
  expect(renderer.node.textContent).toBe(reports > 1 ? WIDGET_MIME : 'text/html');
  renderer.dispose();
});

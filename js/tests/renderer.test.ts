import type { NotebookPanel } from '@jupyterlab/notebook';
import type { IRenderMime } from '@jupyterlab/rendermime';
import { Widget } from '@lumino/widgets';
import { expect, test, vi } from 'vitest';
import { ADVISOR_MIME, AdvisorRenderer } from '../src/lab/renderer';

const WIDGET_MIME = 'application/vnd.jupyter.widget-view+json';
const MODEL = {
  data: { [ADVISOR_MIME]: { model_id: 'm1' }, [WIDGET_MIME]: { model_id: 'm1' }, 'text/html': '<p>the picture</p>' }
} as unknown as IRenderMime.IMimeModel;

/** Draws its type, as ipywidgets and JupyterLab draw widgets and pictures. */
class Drawn extends Widget implements IRenderMime.IRenderer {
  constructor(private readonly type: string) {
    super();
  }

  async renderModel(): Promise<void> {
    const made = document.createElement('p');
    made.textContent = this.type;
    this.node.append(made);
  }
}

test('a restored notebook that is drawn before ipywidgets is active shows the widget, and the picture until then', async () => {
  vi.useFakeTimers();
  const types = new Set(['text/html']);
  const rendermime = {
    getFactory: (type: string) => (types.has(type) ? {} : undefined),
    createRenderer: (type: string) => new Drawn(type)
  };
  let start = (): void => {};
  const started = new Promise<void>(resolve => (start = resolve));
  const panel = { sessionContext: { ready: Promise.resolve() }, content: { rendermime } } as unknown as NotebookPanel;
  const renderer = new AdvisorRenderer(panel, started);
  await renderer.renderModel(MODEL);
  await vi.advanceTimersByTimeAsync(5000);
  expect(renderer.node.textContent).toBe('text/html');
  types.add(WIDGET_MIME);
  start();
  await vi.advanceTimersByTimeAsync(5000);
  expect(renderer.node.textContent).toBe(WIDGET_MIME);
  renderer.dispose();
  vi.useRealTimers();
});

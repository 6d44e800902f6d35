import type { RenderProps } from '@anywidget/types';
import { MemoryChart, TimeChart } from './charts';
import { Checker } from './checker';
import { Controls } from './controls';
import { button, element, setText } from './dom';
import { explanation, LadderTable } from './explanation';
import { Exporter } from './exporter';
import { Configuration, Figures, header } from './header';
import { Paste } from './paste';
import { Session, type Screen } from './session';
import type { FromKernel, Traits } from './wire';
import './widget.css';

let views = 0;

/** One view of the advisor. */
function render({ model, el }: RenderProps<Traits>): () => void {
  // Views of one model in several pages share one kernel, so the name must be unique among all of them.
  const view = `smp${++views}-${Math.random().toString(36).slice(2, 8)}`;
  const session = new Session(model, view, screen => draw(screen));
  const { shown } = session;

  const reset = button('smp-button', 'Reset to recommended', () => {
    session.reset();
    // The button disappears. Without this, the page would take the focus, and its shortcuts the next keys.
    configuration.focus();
  });
  const configuration = new Configuration(shown, reset);
  const figures = new Figures(shown);
  const memory = new MemoryChart(shown);
  const time = new TimeChart(shown);
  const controls = new Controls(view, session);
  const ladder = new LadderTable();
  const exporter = new Exporter(session);
  const checker = new Checker(view, request => model.send(request));
  const paste = new Paste(view, request => model.send(request));
  const summary = element('p', 'smp-change');
  summary.setAttribute('aria-live', 'polite');
  const stale = element('p', 'smp-stale', 'These settings cannot be combined. The figures are for the last valid configuration.');

  function draw(screen: Screen): void {
    configuration.draw(screen.snapshot, screen.problem !== '');
    figures.draw(screen.snapshot);
    memory.draw(screen.snapshot.costs);
    time.draw(screen.snapshot.costs);
    controls.draw(screen, shown);
    setText(summary, screen.problem ? '' : screen.summary || HINT);
    summary.hidden = screen.problem !== '';
    summary.classList.toggle('smp-hint', !screen.summary);
    stale.hidden = screen.problem === '';
    reset.hidden = same(screen);
    root.setAttribute('aria-busy', String(session.isBusy));
    exporter.refresh();
  }

  function same(screen: Screen): boolean {
    return Object.entries(shown.recommended.settings).every(([name, value]) => screen.settings[name] === value);
  }

  const root = element(
    'section',
    'smp',
    header(shown),
    configuration.node,
    figures.node,
    element(
      'div',
      'smp-bench',
      element('section', 'smp-left', element('h3', 'smp-title', 'Try other settings'), controls.node, summary),
      element('section', 'smp-right', memory.node, time.node, stale)
    ),
    exporter.actions,
    explanation(shown, ladder),
    checker.node,
    paste.node,
    exporter.preview
  );
  root.setAttribute('aria-label', 'SMP Advisor');
  const onState = (): void => {
    session.onState();
    ladder.draw(model.get('_state').ladder);
  };
  const onMessage = (message: FromKernel): void => {
    checker.onMessage(message);
    paste.onMessage(message);
    void exporter.onMessage(message);
  };
  model.on('change:_state', onState);
  model.on('msg:custom', onMessage);
  draw(session.screen);
  ladder.draw(model.get('_state').ladder);
  el.append(root);
  model.send({ kind: 'ready' });

  return () => {
    model.off('change:_state', onState);
    model.off('msg:custom', onMessage);
    exporter.dispose();
  };
}

const HINT = 'Change a setting to see its effect on memory and throughput.';

export default { render };

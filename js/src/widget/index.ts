import type { RenderProps } from '@anywidget/types';
import { MemoryChart, TimeChart } from './charts';
import { Checker } from './checker';
import { Controls } from './controls';
import { button, element, setText } from './dom';
import { explanation } from './explanation';
import { Exporter } from './exporter';
import { Configuration, Figures, header } from './header';
import { Paste } from './paste';
import { Session, type Screen } from './session';
import type { FromKernel, Traits } from './wire';
import './widget.css';

let views = 0;

/** One view of the advisor. */
function render({ model, el }: RenderProps<Traits>): () => void {
  // Views of one model in several pages talk to one kernel: the name must be unique among all of them.
  const view = `smp${++views}-${Math.random().toString(36).slice(2, 8)}`;
  const session = new Session(model, view, screen => draw(screen));
  const { shown } = session;

  const reset = button('smp-button', 'Back to recommended', () => {
    session.reset();
    // The button goes with what it undid; the focus must not fall to the page, whose shortcuts would take the next keys.
    configuration.focus();
  });
  const configuration = new Configuration(shown, reset);
  const figures = new Figures(shown);
  const memory = new MemoryChart(shown);
  const time = new TimeChart(shown);
  const controls = new Controls(view, session);
  const exporter = new Exporter(session);
  const checker = new Checker(view, request => model.send(request));
  const paste = new Paste(view, request => model.send(request));
  const words = element('p', 'smp-words');
  words.setAttribute('aria-live', 'polite');
  const stale = element('p', 'smp-stale', 'The figures are those of the last settings that can be combined.');

  function draw(screen: Screen): void {
    configuration.draw(screen.moment, screen.problem !== '');
    figures.draw(screen.moment);
    memory.draw(screen.moment.costs);
    time.draw(screen.moment.costs);
    controls.draw(screen, shown);
    setText(words, screen.problem ? '' : screen.words || HINT);
    words.hidden = screen.problem !== '';
    words.classList.toggle('smp-hint', !screen.words);
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
      element('section', 'smp-left', element('h3', 'smp-title', 'Try other settings'), controls.node, words),
      element('section', 'smp-right', memory.node, time.node, stale)
    ),
    exporter.actions,
    explanation(shown),
    checker.node,
    paste.node,
    exporter.preview
  );
  root.setAttribute('aria-label', 'SMP advisor');
  const onState = (): void => session.onState();
  const onMessage = (message: FromKernel): void => {
    checker.onMessage(message);
    paste.onMessage(message);
    void exporter.onMessage(message);
  };
  model.on('change:_state', onState);
  model.on('msg:custom', onMessage);
  draw(session.screen);
  el.append(root);
  model.send({ kind: 'ready' });

  return () => {
    model.off('change:_state', onState);
    model.off('msg:custom', onMessage);
    exporter.dispose();
  };
}

const HINT = 'Move a setting: what it does to memory and speed is said here.';

export default { render };

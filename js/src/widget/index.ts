import type { RenderProps } from '@anywidget/types';
import { PRESENT_EVENT } from '../events';
import { CELL, Checker, SCRIPT } from './checks';
import { Connection } from './connection';
import { Controls } from './controls';
import { Curve } from './curve';
import { button, disclosure, element, passShortcuts, setText } from './dom';
import { Exporter } from './exporter';
import { KernelPage, type Deeds } from './kernel_page';
import { fixed, stacked } from './panel';
import { Picture } from './picture';
import { Plans } from './plans';
import { hasExtension } from './insert';
import { MakeItFit } from './make_it_fit';
import { Sentence } from './sentence';
import { Session, type Screen } from './session';
import { Strip } from './strip';
import { Tabs } from './tabs';
import { Undo } from './undo';
import type { FromKernel, Traits } from './wire';
import { WorkloadBar } from './workload_bar';
import './widget.css';

let views = 0;
/** Views that were opened, however often each is drawn again. */
let opened = 0;

/** One view of the advisor. It is drawn again for another recommendation, with the same parts open. */
function render({ model, el }: RenderProps<Traits>): () => void {
  const number = ++opened;
  let drawn = model.get('_recommendation');
  let page = compose(model, el, {}, number);
  const onRecommendation = (): void => {
    if (drawn === model.get('_recommendation')) return;
    drawn = model.get('_recommendation');
    const kept = page.leave();
    el.replaceChildren();
    page = compose(model, el, kept, number);
  };
  // They come together, and their events in any order: no page draws the state of another recommendation.
  const onState = (): void => {
    onRecommendation();
    page.onState();
  };
  model.on('change:_recommendation', onRecommendation);
  model.on('change:_state', onState);
  const onOlder = (): void => page.redraw();
  model.on('change:_older', onOlder);
  return () => {
    model.off('change:_recommendation', onRecommendation);
    model.off('change:_state', onState);
    model.off('change:_older', onOlder);
    page.leave();
  };
}

/** What stays when the page is drawn again. */
interface Kept {
  tab?: string;
  isBarOpen?: boolean;
  areDetailsOpen?: boolean;
  /** Name of the element with the focus. */
  focus?: string;
}

/**
 * The page of one recommendation: the request, the strip that stays, the sentence, the picture, settings next to all
 * plans, and the details.
 *
 * This function only composes. What belongs to a part is in the part's class.
 */
function compose(model: RenderProps<Traits>['model'], el: HTMLElement, kept: Kept, number: number): { leave: () => Kept; onState: () => void; redraw: () => void } {
  // Views of one model in several pages share one kernel, so the name must be unique among all of them.
  const view = `smp${++views}-${Math.random().toString(36).slice(2, 8)}`;
  const connection = new Connection(model, isGone => {
    bench.inert = isGone;
    exporter.refresh();
    if (isGone) undo.remember(session.screen);
  });
  const session = new Session(model, view, connection, screen => draw(screen));
  const { shown } = session;
  let inUse = '';

  const workload = new WorkloadBar(shown, view, connection, () => draw(session.screen));
  session.hold = () => workload.hold;
  session.searchWith = (name, value) => workload.searchWith(name, value);
  const deeds: Deeds = {
    act: (action, value, fail) => session.act(action, value, fail),
    search: (fields, fit, settings) => {
      toVerdict();
      if (fit === undefined) workload.change(fields);
      else workload.makeItFit(fields, fit, settings);
    },
    insert: kind => exporter.insertKind(kind)
  };
  const fit = new MakeItFit(shown, session, view, connection, deeds);
  const exporter = new Exporter(session, view, connection, () => fit.open(session.screen));
  const strip = new Strip(shown, exporter.actions);
  // The button of the way back disappears. Without this, the page would take the focus, and its shortcuts the next keys.
  const toVerdict = (): void => strip.node.querySelector('h2')!.focus({ preventScroll: true });
  const status = element('div', 'smp-status-line', exporter.status, exporter.offers);
  const sentence = new Sentence(shown, session, toVerdict, workload.status, status);
  const picture = new Picture(shown, session);
  const use = (name: string): void => {
    if (name === inUse) return;
    inUse = name;
    drawSettings(session.screen);
  };
  const curve = new Curve(shown, session);
  const controls = new Controls(view, session, use, curve.node);
  const plans = new Plans(shown, view, connection, session);
  const undo = new Undo(session);
  const html = (name: string, label = ''): KernelPage => new KernelPage(name, view, connection, deeds, label);
  const measure = button('smp-button smp-small', 'Measure this', () => exporter.insertKind('probe'));
  measure.title = 'Insert the cell of a short job that measures this step on one or two nodes';
  const tabs = new Tabs(view)
    .add('time', 'Step time', stacked('smp-costs', html('costs', 'Step time and memory by part'), fixed(measure)))
    .add('why', 'Why', html('why', 'Reasons'))
    .add('clusters', 'Other clusters', html('clusters'))
    .add('alternatives', 'Plans', html('alternatives'))
    .add('script', 'Your script', stacked('smp-script', exporter.preview, html('requirements'), new Checker(SCRIPT, view, connection), new Checker(CELL, view, connection)))
    .add('run', 'Start and watch', html('start'))
    .add('facts', 'Facts', stacked('', html('facts', 'Figures and facts'), html('ranks', 'Contents of every GPU')));
  const details = disclosure('smp-details', [element('b', '', 'Details'), ' ', element('span', 'smp-note', 'step time, why, other clusters, plans, script, start and watch, facts')], tabs.node);
  details.addEventListener('toggle', () => draw(session.screen));

  function drawSettings(screen: Screen): void {
    controls.draw(screen, shown, inUse || 'batch_size');
    curve.draw(screen, inUse);
  }

  function draw(screen: Screen): void {
    if (screen.moved && screen.moved !== inUse) inUse = screen.moved;
    for (const part of [picture, curve, plans]) part.measure();
    setText(older, model.get('_older') ?? '');
    older.hidden = !older.textContent;
    workload.draw(screen);
    undo.draw(screen);
    strip.draw(screen, workload.hold, workload.searching);
    sentence.draw(screen);
    picture.draw(screen);
    drawSettings(screen);
    plans.draw(screen);
    fit.draw(screen);
    if (details.open) tabs.draw(screen);
    exporter.refresh();
    root.setAttribute('aria-busy', String(session.isBusy));
    root.dataset['state'] = workload.searching ? 'searching' : '';
  }

  const older = element('p', 'smp-older-view');
  older.setAttribute('role', 'status');
  const settings = element('section', 'smp-settings', element('h3', 'smp-title', 'Settings ', element('span', 'smp-note', 'in AWS’s order')), controls.node);
  const bench = element('div', 'smp-bench', picture.node, fit.node, element('div', 'smp-two', settings, plans.node));
  const root = element(
    'section',
    'smp',
    element('div', 'smp-top', workload.node, connection.node, undo.node),
    strip.node,
    older,
    sentence.node,
    bench,
    details
  );
  root.setAttribute('aria-label', number === 1 ? 'SMP Advisor' : `SMP Advisor, view ${number}`);
  root.addEventListener('keydown', event => undo.onKey(event));
  const keepShortcuts = passShortcuts(root);
  const onMessage = (message: FromKernel): void => {
    if (message.kind === 'ahead') return session.onAhead(message);
    connection.answered(message.id);
    if (message.kind === 'failed') session.onFailure(message.id, message.text);
    workload.onMessage(message);
    tabs.onMessage(message);
    plans.onMessage(message);
    fit.onMessage(message);
    void exporter.onMessage(message);
  };
  model.on('msg:custom', onMessage);
  workload.open(kept.isBarOpen ?? false);
  details.open = kept.areDetailsOpen ?? false;
  if (kept.tab) tabs.show(kept.tab);
  el.append(root);
  draw(session.screen);
  let wide = root.clientWidth;
  const resized = typeof ResizeObserver === 'undefined' ? undefined : new ResizeObserver(() => {
    if (root.clientWidth !== wide && (wide = root.clientWidth) > 0) draw(session.screen);
  });
  resized?.observe(root);
  if (kept.focus) el.querySelector<HTMLElement>(`[name="${kept.focus}"]`)?.focus();
  // The extension can come after the view: only then the kernel may write the output again.
  const report = (): void => connection.send({ kind: 'ready', keeps: hasExtension() });
  document.addEventListener(PRESENT_EVENT, report);
  report();

  return {
    redraw: () => draw(session.screen),
    onState: () => {
      connection.answered(model.get('_state').answers);
      session.onState();
    },
    leave: () => {
      const focused = el.contains(document.activeElement) ? document.activeElement?.getAttribute('name') : null;
      model.off('msg:custom', onMessage);
      keepShortcuts();
      document.removeEventListener(PRESENT_EVENT, report);
      connection.dispose();
      exporter.dispose();
      tabs.dispose();
      resized?.disconnect();
      sentence.dispose();
      workload.dispose();
      fit.dispose();
      return { tab: tabs.current, isBarOpen: workload.isOpen, areDetailsOpen: details.open, ...(focused ? { focus: focused } : {}) };
    }
  };
}

export default { render };

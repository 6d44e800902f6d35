import type { RenderProps } from '@anywidget/types';
import { PRESENT_EVENT } from '../events';
import { alternativesPanel, clustersPanel, modulesPanel } from './chart_panels';
import { MemoryChart, TimeChart } from './charts';
import { Checker } from './checker';
import { Compare } from './compare';
import { Connection } from './connection';
import { Controls } from './controls';
import { element, passShortcuts } from './dom';
import { requirementsPanel, tablePanel, whyPanel } from './explanation';
import { Exporter } from './exporter';
import { Facts } from './facts';
import { stacked } from './panel';
import { hasExtension } from './insert';
import { MakeItFit } from './make_it_fit';
import { Paste } from './paste';
import { runPanel } from './run_panel';
import { Session, type Screen } from './session';
import { Settings } from './settings';
import { Tabs } from './tabs';
import { Undo } from './undo';
import { Verdict } from './verdict';
import type { Ahead, FromKernel, Traits } from './wire';
import { WorkloadBar } from './workload_bar';
import './widget.css';

let views = 0;
/** Views that were opened, however often each is drawn again. */
let opened = 0;

/** One view of the advisor. It is drawn again for another recommendation, with the same parts open. */
function render({ model, el }: RenderProps<Traits>): () => void {
  const number = ++opened;
  let page = compose(model, el, {}, number);
  const onRecommendation = (): void => {
    const kept = page.leave();
    el.replaceChildren();
    page = compose(model, el, kept, number);
  };
  model.on('change:_recommendation', onRecommendation);
  return () => {
    model.off('change:_recommendation', onRecommendation);
    page.leave();
  };
}

/** What stays when the page is drawn again. */
interface Kept {
  tab?: string;
  isBarOpen?: boolean;
  /** Name of the element with the focus. */
  focus?: string;
}

/**
 * The page of one recommendation: the workload, the verdict, settings next to charts, and tabs with the details.
 *
 * This function only composes. What belongs to a part is in the part's class.
 */
function compose(model: RenderProps<Traits>['model'], el: HTMLElement, kept: Kept, number: number): { leave: () => Kept } {
  // Views of one model in several pages share one kernel, so the name must be unique among all of them.
  const view = `smp${++views}-${Math.random().toString(36).slice(2, 8)}`;
  const connection = new Connection(model, isGone => {
    settings.node.inert = isGone;
    if (isGone) undo.remember(session.screen);
  });
  const session = new Session(model, view, connection, screen => draw(screen));
  const { shown } = session;

  const workload = new WorkloadBar(shown, view, connection, () => draw(session.screen));
  session.hold = () => workload.hold;
  session.searchWith = (name, value) => workload.searchWith(name, value);
  const ahead = (): Ahead => model.get('_ahead');
  const exporter = new Exporter(session);
  const verdict = new Verdict(shown, () => session.reset(), exporter.actions, connection.node, exporter.status, exporter.offers, exporter.choices);
  const controls = new Controls(view, session, ahead);
  const settings = new Settings(shown, controls);
  const memory = new MemoryChart(shown);
  const fit = new MakeItFit(shown, ahead, session, view, connection, (...of) => workload.makeItFit(...of));
  const time = new TimeChart(shown, () => exporter.insertKind('probe'));
  const ladder = tablePanel('ladder', view, connection);
  const undo = new Undo(session);
  const checker = new Checker(view, (request, fail) => connection.request(request, fail));
  const paste = new Paste(view, (request, fail) => connection.request(request, fail));
  const tabs = new Tabs(view)
    .add('why', 'Why', whyPanel(view, connection))
    .add('alternatives', 'Alternatives', alternativesPanel(view, connection, session))
    .add('clusters', 'Cluster size', clustersPanel(view, connection, changes => workload.change(changes)))
    .add('ranks', 'Rank map', tablePanel('ranks', view, connection, 'Contents of every GPU'))
    .add('compare', 'Compare', new Compare(view, connection, session))
    .add('script', 'Script', stacked('smp-script', exporter.preview, requirementsPanel(view, connection), checker, paste))
    .add('run', 'Run', runPanel(view, connection, () => exporter.insertKind('worth')))
    .add('facts', 'Assumptions and facts', new Facts(shown), shown.assumptions.length);

  if (shown.has_modules) tabs.add('modules', 'Modules', modulesPanel(view, connection, session));

  function draw(screen: Screen): void {
    workload.draw(screen);
    undo.draw(screen);
    verdict.draw(screen, workload.hold);
    settings.draw(screen);
    memory.draw(screen);
    fit.draw(screen);
    time.draw(screen);
    ladder.draw(screen);
    tabs.draw(screen);
    exporter.refresh();
    root.setAttribute('aria-busy', String(session.isBusy));
    // The figures of the last valid plan are not those of settings that cannot be combined.
    for (const part of [memory, time]) part.node.classList.toggle('smp-no-figures', screen.problem !== '');
  }

  const charts = element('section', 'smp-charts', memory.node, settings.change);
  charts.setAttribute('role', 'group');
  charts.setAttribute('aria-label', 'Memory');
  const root = element(
    'section',
    'smp',
    element('div', 'smp-top', workload.node, undo.node),
    verdict.node,
    element('div', 'smp-bench', charts, element('div', 'smp-left', settings.node, time.node), fit.node, ladder.node, tabs.node)
  );
  root.setAttribute('aria-label', number === 1 ? 'SMP Advisor' : `SMP Advisor, view ${number}`);
  root.addEventListener('keydown', event => undo.onKey(event));
  const keepShortcuts = passShortcuts(root);
  const onState = (): void => {
    connection.answered(model.get('_state').answers);
    session.onState();
  };
  const onMessage = (message: FromKernel): void => {
    connection.answered(message.id);
    if (message.kind === 'failed') session.onFailure(message.id, message.text);
    workload.onMessage(message);
    tabs.onMessage(message);
    ladder.onMessage(message);
    fit.onMessage(message);
    void exporter.onMessage(message);
  };
  const onAhead = (): void => draw(session.screen);
  model.on('change:_state', onState);
  model.on('change:_ahead', onAhead);
  model.on('msg:custom', onMessage);
  workload.open(kept.isBarOpen ?? false);
  if (kept.tab) tabs.show(kept.tab);
  draw(session.screen);
  el.append(root);
  if (kept.focus) el.querySelector<HTMLElement>(`[name="${kept.focus}"]`)?.focus();
  // The extension can come after the view: only then the kernel may write the output again.
  const report = (): void => connection.send({ kind: 'ready', keeps: hasExtension() });
  document.addEventListener(PRESENT_EVENT, report);
  report();

  return {
    leave: () => {
      const focused = el.contains(document.activeElement) ? document.activeElement?.getAttribute('name') : null;
      model.off('change:_state', onState);
      model.off('change:_ahead', onAhead);
      model.off('msg:custom', onMessage);
      keepShortcuts();
      document.removeEventListener(PRESENT_EVENT, report);
      connection.dispose();
      exporter.dispose();
      tabs.dispose();
      ladder.dispose();
      workload.dispose();
      fit.dispose();
      return { tab: tabs.current, isBarOpen: workload.isOpen, ...(focused ? { focus: focused } : {}) };
    }
  };
}

export default { render };

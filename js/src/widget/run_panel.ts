import type { Connection } from './connection';
import { button, disclosure, element, keepKeys } from './dom';
import type { Panel } from './panel';
import { RemotePanel } from './remote_panel';

/** Request and prices of the plan on the screen, or the run that was started; `panels.py` is the other side. */
interface Start {
  /** Prices of the run and of a probe, and whether the probe is worth it. */
  lines: string[];
  request: string;
  /** What starts the job, and a small run on this machine, once each; empty if it cannot be started. */
  job: string;
  local: string;
  /** Whether a probe is worth its price. */
  probe: boolean;
  /** Runs of the notebook's folder, newest first: name, and the magic that watches it. */
  runs: [name: string, watch: string][];
  /** The run that was started: a page of the kernel, which escapes every text in it. */
  run: string;
  watch: string;
  /** Whether the run can be ended. */
  stop?: boolean;
}

/** Start the plan: off until the account's options are given, and confirmed once, next to the request and its price. */
export function runPanel(view: string, connection: Connection, onProbes: () => void): Panel {
  const given = keepKeys(element('input', 'smp-paste'));
  given.placeholder = 'role=arn:aws:iam::111122223333:role/Training data=s3://bucket/tokens';
  let [options, confirm, polls, stop] = ['', '', 0, false];
  const request = (text: string, start: string, end = false): void => {
    [options, confirm, polls, stop] = [text, start, polls + 1, end];
    panel.refresh();
  };
  const show = button('smp-button', 'Show request and price', () => request(given.value.trim(), ''));
  show.disabled = true;
  given.addEventListener('input', () => (show.disabled = given.value.trim() === ''));
  const panel = new RemotePanel<Start>(
    'start',
    view,
    connection,
    (data, into) => into.replaceChildren(...(data.run ? started(data, end => request(options, confirm, end)) : offered(data, start => request(options, start), onProbes))),
    () => ({ options, confirm, polls, stop })
  );
  const label = element('label', 'smp-paste-label', element('span', '', 'Options of your account and the job, as for %smp_start --option'), given);
  const node = element('div', 'smp-run', label, element('div', 'smp-check-row', show, element('span', 'smp-note', 'Shows what would be sent to AWS and its price. Nothing is started.')), panel.node);
  return { node, draw: screen => panel.draw(screen), onMessage: message => panel.onMessage(message), dispose: () => panel.dispose() };
}

function offered({ lines, request, job, local, probe, runs }: Start, start: (token: string) => void, onProbes: () => void): HTMLElement[] {
  const code = keepKeys(element('pre', 'smp-pre', request));
  code.tabIndex = 0;
  const action = (text: string, note: string, act: () => void, style = ''): HTMLElement =>
    element('div', 'smp-check-row', button(`smp-button ${style}`, text, act), element('span', 'smp-note', note));
  const actions = element(
    'div',
    '',
    job !== '' && action('Start the job for this price', 'Creates the SageMaker training job of the request. It is billed until it ends.', () => start(job), 'smp-primary'),
    job !== '' && probe && action('Insert the probes', 'Inserts the cells of short jobs that measure the leading plans first.', onProbes),
    local !== '' && action('Start a small run on this machine', 'Trains a small copy of the model in two processes here, without AWS and without cost.', () => start(local))
  );
  const watched = runs.map(([name, watch]) => element('li', '', `${name}: `, element('code', '', watch)));
  const list = watched.length > 0 ? [element('h3', 'smp-title', 'Runs in this folder'), element('ul', '', ...watched)] : [];
  return [...lines.map(line => element('p', '', line)), ...(request ? [disclosure('smp-section', ['Request'], code)] : []), actions, ...list];
}

function started({ run, watch, stop }: Start, refresh: (end: boolean) => void): HTMLElement[] {
  const page = element('div', '');
  page.innerHTML = run;
  const end = stop && button('smp-button', 'Stop the run', () => refresh(true));
  if (end) end.title = 'Ends its processes, or the job on AWS, which is billed until it has stopped';
  return [page, element('div', 'smp-check-row', button('smp-button', 'Refresh', () => refresh(false)), end, element('code', '', watch))];
}

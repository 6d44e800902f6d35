import type { Screen, Session } from '../src/widget/session';
import { Undo } from '../src/widget/undo';
import type { RenderProps } from '@anywidget/types';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { INSERT_EVENT } from '../src/events';
import widget from '../src/widget/index';
import type { FromKernel, Positions, Traits } from '../src/widget/wire';
import { ahead, CONTROLS, FakeModel, HOSTILE, REFUSED, settings, state } from './fixtures';

/** Wait until an assertion holds, however slow the machine is. */
const settles = (holds: () => void): Promise<void> => vi.waitFor(holds, { timeout: 60_000 });

let model: FakeModel;
let el: HTMLElement;
let dispose: () => void;

function render(into: FakeModel): [HTMLElement, () => void] {
  const host = document.createElement('div');
  document.body.append(host);
  return [host, widget.render({ model: into.asModel, el: host } as unknown as RenderProps<Traits>)];
}

beforeEach(() => {
  model = new FakeModel();
  [el, dispose] = render(model);
  model.emit('msg:custom', ahead(16, 1));
  open();
});

afterEach(() => {
  dispose();
  document.body.replaceChildren();
  vi.unstubAllGlobals();
});

const open = (): void => {
  const details = el.querySelector<HTMLDetailsElement>('.smp-details')!;
  details.open = true;
  details.dispatchEvent(new Event('toggle'));
};
const text = (selector: string): string => el.querySelector(selector)!.textContent!;
const slider = (name: string): HTMLInputElement => el.querySelector(`input[name=${name}]`)!;
const press = (name: string): void => [...el.querySelectorAll('button')].find(b => b.textContent === name)!.click();

function slide(name: string, position: number): void {
  slider(name).value = String(position);
  slider(name).dispatchEvent(new Event('input'));
  slider(name).dispatchEvent(new Event('change'));
}

/** The kernel's answer to the last request for cells. */
function reply(sources: string[], at = settings(16, 1)): void {
  const { request } = model.sent.at(-1) as { request: { id: string } };
  model.emit('msg:custom', { kind: 'cells', id: request.id, settings: at, sources } satisfies FromKernel);
}

/** The kernel's answer to the next request for the data of a panel. */
async function fill(name: string, data: unknown): Promise<void> {
  const isRequest = (message: Record<string, unknown>): boolean => message['kind'] === 'panel' && message['name'] === name;
  await settles(() => expect(model.sent.some(isRequest)).toBe(true));
  const { id } = model.sent.filter(isRequest).at(-1) as { id: string };
  model.sent.splice(0, model.sent.length, ...model.sent.filter(message => !isRequest(message)));
  model.emit('msg:custom', { kind: 'panel', id, name, data } satisfies FromKernel);
}

test("a user's text is never markup", () => {
  expect(el.querySelector('img, script')).toBeNull();
  expect(text('.smp-heading')).toBe(HOSTILE);
});

test('the reasons are the page of the kernel for the plan on the screen, whose open parts stay open', async () => {
  press('Why');
  await fill('why', { html: '<details><summary>Techniques</summary></details>' });
  el.querySelector<HTMLDetailsElement>('.smp-panel-body details')!.open = true;
  slide('batch_size', 2);
  model.answer(24, 1);
  await fill('why', { html: '<details><summary>Techniques</summary></details><details><summary>Why</summary></details>' });
  expect([...el.querySelectorAll<HTMLDetailsElement>('.smp-panel-body details')].map(each => each.open)).toEqual([true, false]);
});

test('the plan of a kernel that is gone is offered to the next one with the same recommendation', () => {
  sessionStorage.clear();
  let applied: unknown;
  const settings = { batch_size: 16 };
  const session = (title: string): Session =>
    ({ shown: { title, recommended: { settings } }, apply: (to: unknown) => (applied = to) }) as unknown as Session;
  const offer = (title: string): HTMLButtonElement => new Undo(session(title)).node.querySelector('button')!;
  const undo = new Undo(session('GPT'));
  undo.remember({ snapshot: { settings } } as unknown as Screen);
  expect(offer('GPT').hidden).toBe(true);
  undo.remember({ snapshot: { settings: { batch_size: 8 } } } as unknown as Screen);
  expect(offer('Llama').hidden).toBe(true);
  const button = offer('GPT');
  expect([button.hidden, button.textContent]).toEqual([false, 'Back to the plan before the restart']);
  button.click();
  expect(applied).toEqual({ batch_size: 8 });
  expect([button.hidden, offer('GPT').hidden]).toEqual([true, true]);
});

test('undo and redo are buttons and keys that name the change', () => {
  const state = model.get('_state');
  model.set('_state', { ...state, history: { undo: 'Batch size 8 → 16.', redo: '' } });
  model.emit('change:_state');
  const [, undo, redo] = [...el.querySelectorAll<HTMLButtonElement>('.smp-undo button')];
  expect(undo!.title).toBe('Undo (Ctrl+Z): Batch size 8 → 16.');
  expect(redo!.getAttribute('aria-disabled')).toBe('true');
  slider('batch_size').dispatchEvent(new KeyboardEvent('keydown', { key: 'z', ctrlKey: true, bubbles: true }));
  expect(model.sent.at(-1)).toMatchObject({ kind: 'act', action: 'undo' });
  const sent = model.sent.length;
  slider('batch_size').dispatchEvent(new KeyboardEvent('keydown', { key: 'y', ctrlKey: true, bubbles: true }));
  expect(model.sent).toHaveLength(sent);
});

test('buttons, forms, choices and marks of a page of the kernel do what it says', async () => {
  press('Start and watch');
  const deed = (of: object): string => JSON.stringify(of).replace(/"/g, '&quot;');
  const html = `<form data-smp-do="${deed({ set: { stop: false } })}"><input name="value"><button>Keep</button></form>
    <select name="first"><option>Recommended</option><option>mine</option></select>
    <svg><circle data-row="1"/></svg><button type="button" data-row="1" data-smp-do="${deed({ act: 'adopt', value: 1 })}">Load</button>`;
  await fill('start', { html });
  el.querySelector('.smp-panel-body circle')!.dispatchEvent(new MouseEvent('click', { bubbles: true }));
  expect(model.sent.at(-1)).toMatchObject({ kind: 'act', action: 'adopt', value: 1 });
  const form = el.querySelector<HTMLFormElement>('.smp-panel-body form')!;
  form.querySelector('input')!.value = 'mine';
  form.dispatchEvent(new SubmitEvent('submit', { bubbles: true, cancelable: true }));
  await settles(() => expect(model.sent.at(-1)).toMatchObject({ kind: 'panel', name: 'start', options: { stop: false, value: 'mine' } }));
  model.emit('msg:custom', { kind: 'failed', id: model.sent.at(-1)!['id'] as string, text: 'There are too many.' });
  expect(text('[role=tabpanel]:not([hidden]) .smp-panel-note')).toBe('There are too many.');
  const select = el.querySelector<HTMLSelectElement>('.smp-panel-body select')!;
  select.value = 'mine';
  select.focus();
  select.dispatchEvent(new Event('change', { bubbles: true }));
  await settles(() => expect(model.sent.at(-1)).toMatchObject({ kind: 'panel', name: 'start', options: { first: 'mine' } }));
  model.emit('msg:custom', { kind: 'panel', id: model.sent.at(-1)!['id'] as string, name: 'start', data: { html } });
  expect(document.activeElement).toBe(el.querySelector('.smp-panel-body select'));
});

test('a plan without a cell is told before the click', async () => {
  const insert = el.querySelector<HTMLButtonElement>('.smp-primary')!;
  await fill('refusal', { text: 'The script trains in fp32.' });
  expect([insert.getAttribute('aria-disabled'), insert.title, text('.smp-status')]).toEqual(['true', 'The script trains in fp32.', 'The script trains in fp32.']);
  slide('batch_size', 2);
  model.answer(24, 1);
  await fill('refusal', { text: '' });
  expect([insert.getAttribute('aria-disabled'), text('.smp-status')]).toEqual(['false', '']);
});

test('the view reports to the kernel', () => {
  expect(model.sent).toContainEqual({ kind: 'ready', keeps: false });
});

test('every focusable element keeps its keys from the notebook', () => {
  const focusable = el.querySelectorAll<HTMLElement>('a, button, input, select, summary, [tabindex]');
  expect(focusable.length).toBeGreaterThan(8);
  for (const one of focusable) expect(one.dataset['lmSuppressShortcuts']).toBe('true');
});

test('a slider stands on allowed values only and says which', () => {
  slide('batch_size', 2);
  expect(slider('batch_size').getAttribute('aria-valuetext')).toBe('24, 24.0 GiB, Fits, 240 samples/s');
  expect(text('.smp-memory')).toBe('24.0 of 30.0 GiB');
  expect(text('.smp-change')).toContain('Batch size 16 → 24: +8.0 GiB per GPU, +50 % samples/s.');
  expect(text('.smp-change code')).toBe('advice.move(batch_size=24)');
  model.answer(24, 1);
  expect(text('.smp-change')).toContain('A larger batch must gain.');
});

test('the view says whether the kernel is where the screen is', () => {
  const root = el.querySelector('.smp')!;
  slide('batch_size', 2);
  expect(root.getAttribute('aria-busy')).toBe('true');
  model.answer(24, 1);
  expect(root.getAttribute('aria-busy')).toBe('false');
});

test('a combination that cannot be says why beside its control, and all else stays', () => {
  slide('tensor_parallel_degree', 2);
  const row = slider('tensor_parallel_degree').closest('.smp-row')!;
  expect(row.querySelector('[role=alert]')!.textContent).toBe(REFUSED);
  expect(text('.smp-words')).toBe('Not possible');
  // The figures of the last valid plan are not those of these settings.
  expect([...el.querySelectorAll('.smp-fact > b')].map(one => one.textContent)).toEqual(['–', '–', '–']);
  expect(text('.smp-change')).toContain('Choose a repair below');
  press('Insert estimator cell');
  expect(text('.smp-status')).toContain('cannot be combined');
});

test('two views of one model stay in step', () => {
  const [other, disposeOther] = render(model);
  slide('batch_size', 2);
  model.answer(24, 1);
  expect(other.querySelector('.smp-memory')!.textContent).toBe('24.0 of 30.0 GiB');
  disposeOther();
});

test('the cells go to who takes them, in order', () => {
  const taken: string[][] = [];
  const take = (event: Event): void => {
    taken.push((event as CustomEvent<{ sources: string[] }>).detail.sources);
    event.preventDefault();
  };
  document.addEventListener('smp-advisor:insert-cell', take);
  press('Insert estimator cell');
  reply(['%%writefile train.py', 'estimator']);
  document.removeEventListener('smp-advisor:insert-cell', take);
  expect(taken).toEqual([['%%writefile train.py', 'estimator']]);
  expect(text('.smp-status')).toBe('Inserted 2 cells below: the training script, then the estimator.');
});

test('what was inserted is no longer said once it is no longer what is on screen', () => {
  const take = (event: Event): void => event.preventDefault();
  document.addEventListener('smp-advisor:insert-cell', take);
  press('Insert estimator cell');
  slide('batch_size', 2);
  expect(text('.smp-status')).toContain('Waiting');
  press('Insert estimator cell');
  reply(['estimator'], settings(24, 1));
  expect(text('.smp-status')).toBe('Inserted a cell below.');
  slide('batch_size', 1);
  expect(text('.smp-status')).toBe('');
  press('Insert estimator cell');
  reply(['estimator']);
  const what = el.querySelector<HTMLSelectElement>('.smp-choice select')!;
  what.value = 'quota';
  what.dispatchEvent(new Event('change'));
  expect(text('.smp-status')).toBe('');
  document.removeEventListener('smp-advisor:insert-cell', take);
});

test('two cells that are copied are to be pasted apart: in one, the estimator would go into the script', async () => {
  vi.stubGlobal('navigator', { clipboard: { writeText: vi.fn().mockResolvedValue(undefined) } });
  press('Copy code');
  reply(['%%writefile train.py', 'estimator']);
  await settles(() => expect(text('.smp-status')).toContain('two new cells: first the script, then the estimator'));
});

test('going back leaves the focus in the view, where the button was', () => {
  slide('batch_size', 2);
  const back = [...el.querySelectorAll('button')].find(one => one.textContent === 'Back to recommended')!;
  back.focus();
  back.click();
  expect(back.hidden).toBe(true);
  expect(document.activeElement).toBe(el.querySelector('.smp-words'));
});

test('the recommended value is told in words, even where its control has no such position any more', () => {
  const here = model.get('_state');
  const recommended = model.get('_recommendation');
  recommended.recommended = { ...recommended.recommended, configuration: ['sixteen', '1'] };
  model.set('_state', { ...here, settings: settings(8, 1) });
  model.set('_controls', CONTROLS.map(one => ({ ...one, values: [8], texts: ['8'] })));
  const [other, disposeOther] = render(model);
  expect(other.querySelector('.smp-fixed')!.textContent).toBe('recommended: sixteen');
  disposeOther();
});

test('where nobody takes them they go to the clipboard, else to the magic', async () => {
  const writeText = vi.fn().mockResolvedValueOnce(undefined).mockRejectedValueOnce(new Error('not allowed'));
  vi.stubGlobal('navigator', { clipboard: { writeText } });
  press('Insert estimator cell');
  reply(['estimator']);
  await settles(() => expect(text('.smp-status')).toBe('Copied to the clipboard; paste it in a new cell.'));
  expect(writeText).toHaveBeenCalledWith('estimator');
  press('Insert estimator cell');
  reply(['estimator']);
  await settles(() => expect(text('.smp-status')).toBe('Run %smp_export in a new cell to get the code.'));
});

test('what is exported, and for which SDK, is chosen beside the button', () => {
  const [what, sdk] = [...el.querySelectorAll<HTMLSelectElement>('.smp-choice select')] as [HTMLSelectElement, HTMLSelectElement];
  const choose = (select: HTMLSelectElement, value: string): void => {
    select.value = value;
    select.dispatchEvent(new Event('change'));
  };
  choose(sdk, 'v3');
  press('Insert estimator cell');
  expect(model.sent.at(-1)).toMatchObject({ kind: 'export', what: 'job', sdk: 'v3' });
  choose(what, 'monitoring');
  expect(sdk.closest('label')!.hidden).toBe(true);
  press('Insert cell');
  expect(model.sent.at(-1)).toMatchObject({ kind: 'export', what: 'monitoring' });
});

test('only the newest click is answered, once', () => {
  const taken = vi.fn((event: Event) => event.preventDefault());
  document.addEventListener('smp-advisor:insert-cell', taken);
  press('Insert estimator cell');
  const first = model.sent.at(-1) as { request: { id: string } };
  press('Insert estimator cell');
  model.emit('msg:custom', { kind: 'cells', id: first.request.id, settings: settings(16, 1), sources: ['old'] });
  expect(taken).not.toHaveBeenCalled();
  reply(['new']);
  expect(taken).toHaveBeenCalledOnce();
  document.removeEventListener('smp-advisor:insert-cell', taken);
});

test("the kernel's refusal is a sentence under the buttons", () => {
  press('Insert estimator cell');
  const { request } = model.sent.at(-1) as { request: { id: string } };
  model.emit('msg:custom', { kind: 'failed', id: request.id, text: 'It cannot be written.' });
  expect(text('.smp-status')).toBe('It cannot be written.');
});

test('code of other settings than those on screen is not shown', () => {
  press('Copy code');
  slide('batch_size', 2);
  reply(['code for 16'], settings(16, 1));
  expect(text('.smp-code')).toBe('');
});

test('a view that is gone no longer listens', () => {
  dispose();
  expect(model.listening).toBe(0);
});

test('a script is checked by its path, and a place of the report is copied', async () => {
  el.querySelector<HTMLInputElement>('.smp-path')!.value = 'train.py';
  press('Check script');
  const { kind, id, text: asked } = model.sent.at(-1) as { kind: string; id: string; text: string };
  expect([kind, asked]).toEqual(['check', 'train.py']);
  const html =
    '<div><code data-smp-text="place">train.py:3:8</code><span data-smp-copy="place" data-smp-of="train.py:3:8"></span></div>';
  model.emit('msg:custom', { kind: 'checked', id: 'another view', summary: 'not ours', html: '', corrected: '' } satisfies FromKernel);
  expect(el.textContent).not.toContain('not ours');
  const sent = model.sent.length;
  model.emit('msg:custom', { kind: 'checked', id, summary: '2.', html, corrected: '' } satisfies FromKernel);
  expect(model.sent.length).toBe(sent);
  const write = vi.spyOn(navigator.clipboard, 'writeText').mockResolvedValueOnce();
  press('Copy place');
  await settles(() => expect(write).toHaveBeenCalledWith('train.py:3:8'));
});

test('a corrected cell is one click away', () => {
  el.querySelector<HTMLTextAreaElement>('textarea.smp-paste')!.value = 'PyTorch()';
  press('Check the cell');
  const { id } = model.sent.at(-1) as { id: string };
  model.emit('msg:custom', { kind: 'checked', id, summary: '1 error.', html: '', corrected: 'PyTorch(x=1)' } satisfies FromKernel);
  const inserted: string[][] = [];
  el.addEventListener(INSERT_EVENT, event => inserted.push((event as CustomEvent<{ sources: string[] }>).detail.sources));
  press('Insert corrected cell');
  expect(inserted).toEqual([['PyTorch(x=1)']]);
});

test('a position that cannot be reached, or does not fit, is marked on the rail with the reason', () => {
  const titles = (name: string): (string | null)[] => [...slider(name).closest('.smp-track')!.querySelectorAll('.smp-zone')].map(mark => mark.getAttribute('title'));
  expect(titles('tensor_parallel_degree')).toEqual([`4: ${REFUSED}`]);
  expect(titles('batch_size')).toEqual(['32: Does not fit']);
});

test('a repair is a button, and the way back is another', () => {
  slide('tensor_parallel_degree', 2);
  const { id } = model.get('_request');
  const refused = { ...state(16, 1, id), settings: settings(16, 4), moved: 'tensor_parallel_degree', problem: REFUSED };
  const repair = { text: 'Use batch size 8', effect: '8 of 30 GiB, fits', settings: settings(8, 4) };
  model.set('_state', { ...refused, repairs: [repair] });
  model.emit('change:_state');
  const box = slider('tensor_parallel_degree').closest('.smp-row')!.querySelector<HTMLElement>('.smp-repair-box')!;
  expect([...box.querySelectorAll('button')].map(one => one.textContent)).toEqual([
    'Use batch size 88 of 30 GiB, fits',
    'Pin degree 4 and search the other settingsthe best plan with this value',
    'Keep the degree as it was'
  ]);
  expect(el.querySelector('.smp-charts.smp-older')).not.toBeNull();
  box.querySelector('button')!.click();
  expect(model.get('_request')).toMatchObject({ settings: settings(8, 4) });
  model.answer(8, 4);
  expect(box.hidden).toBe(true);
  slide('tensor_parallel_degree', 2);
  press('Keep the degree as it was');
  expect(slider('tensor_parallel_degree').value).toBe('2');
});

test('a pin is sent to the kernel and shown at once', () => {
  const pin = el.querySelector<HTMLButtonElement>('.smp-pin[data-setting=batch_size]')!;
  pin.click();
  expect(pin.getAttribute('aria-pressed')).toBe('true');
  expect(model.sent.at(-1)).toMatchObject({ kind: 'act', action: 'pin', value: 'batch_size' });
  expect(text('.smp-search-text')).toBe('1 setting is pinned: a search keeps it.');
  press('Search the other settings');
  expect(model.sent.at(-1)).toMatchObject({ kind: 'search', again: true });
});

test('a changed field searches with all fields, shows progress, and can be canceled', () => {
  const field = el.querySelector<HTMLInputElement>('[name=workload-model]')!;
  field.value = '30B';
  field.dispatchEvent(new Event('change'));
  expect(model.sent.at(-1)).toMatchObject({ kind: 'search', workload: { model: '30B', library: 'auto', max_days: '' } });
  const { id } = model.sent.at(-1) as { id: string };
  model.emit('msg:custom', { kind: 'searching', id, done: 4, total: 16, text: '8 x p4d', seconds_left: 6.2 } satisfies FromKernel);
  expect(text('.smp-verdict')).toContain('Searching');
  expect(text('.smp-verdict')).toContain('cluster 5 of 16: 8 x p4d');
  press('Cancel');
  expect(model.sent.at(-1)).toMatchObject({ kind: 'cancel' });
  model.emit('msg:custom', { kind: 'searching', id, done: 5, total: 16, text: '', seconds_left: 6 } satisfies FromKernel);
  model.emit('msg:custom', { kind: 'searched', id: '', problem: '', ways: [] } satisfies FromKernel);
  expect(text('.smp-search-text')).toContain('Canceled'); // although a report was on its way
  expect(field.value).toBe('10B');
  field.value = '30B';
  field.dispatchEvent(new Event('change'));
  const ways = [{ text: '8 nodes', note: '20 GiB per GPU', workload: { max_days: '30' } }];
  model.emit('msg:custom', { kind: 'searched', id, problem: 'Nothing fits.', ways } satisfies FromKernel);
  expect(text('.smp-search-text')).toBe('Nothing fits.');
  press('Use 8 nodes20 GiB per GPU');
  expect(model.sent.at(-1)).toMatchObject({ kind: 'search', workload: { model: '30B', max_days: '30' } });
});

test('what the fields say and what is exported are the same plan', () => {
  const field = el.querySelector<HTMLInputElement>('[name=workload-model]')!;
  const exports = (): unknown[] => model.sent.filter(({ kind }) => kind === 'export');
  field.value = '30B';
  field.dispatchEvent(new Event('input'));
  expect(text('.smp-words')).toBe('Fits (before)');
  press('Insert estimator cell');
  press('Copy code');
  expect(exports()).toEqual([]);
  expect(text('.smp-status')).toContain('The fields have changed. Press Enter');
  field.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter' }));
  expect(model.sent.at(-1)).toMatchObject({ kind: 'search', workload: { model: '30B' } });
  field.dispatchEvent(new Event('change')); // the loss of the focus does not search twice
  expect(model.sent.filter(({ kind }) => kind === 'search')).toHaveLength(1);
  press('Insert estimator cell');
  expect(exports()).toEqual([]);
  const { id } = model.sent.at(-1) as { id: string };
  model.emit('msg:custom', { kind: 'searched', id, problem: 'Nothing fits.', ways: [] } satisfies FromKernel);
  press('Insert estimator cell');
  expect(exports()).toEqual([]);
  press('Back to the fields of the plan');
  expect(field.value).toBe('10B');
  expect(text('.smp-words')).toBe('Fits');
  press('Insert estimator cell');
  expect(exports()).toHaveLength(1);
});

test('Escape takes an edit back', () => {
  const field = el.querySelector<HTMLInputElement>('[name=workload-max_days]')!;
  field.value = '3';
  field.dispatchEvent(new Event('input'));
  field.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }));
  expect(field.value).toBe('');
  expect(text('.smp-words')).toBe('Fits');
});

test('a text that means the present request becomes that of the request', () => {
  const field = el.querySelector<HTMLInputElement>('[name=workload-model]')!;
  field.value = '10 billion';
  field.dispatchEvent(new Event('input'));
  field.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter' }));
  model.emit('msg:custom', { kind: 'searched', id: '', problem: '', ways: [] });
  expect(field.value).toBe('10B');
  expect(text('.smp-words')).toBe('Fits');
});

test('the button names the cells that it updates, and a plan that cannot run has no speed', async () => {
  const count = (event: Event): void => {
    if (event.type === 'smp-advisor:plan') (event as CustomEvent<{ stale: object }>).detail.stale = { job: 2 };
    event.preventDefault();
  };
  document.addEventListener('smp-advisor:plan', count);
  slide('batch_size', 2);
  await settles(() => expect(text('.smp-actions button')).toBe('Update 2 cells'));
  document.removeEventListener('smp-advisor:plan', count);
  slide('batch_size', 3);
  expect(text('.smp-actions button')).toBe('Make it fit');
  expect(text('.smp-change')).toContain('it would not run. Set 24, the nearest that fits');
});

test('shortcuts of JupyterLab pass, keys of a control do not', async () => {
  const focused = slider('batch_size');
  const passes = (key: string): boolean => {
    let seen = false;
    const watch = (event: Event): void => void (seen = !(event.target as HTMLElement).closest('[data-lm-suppress-shortcuts]'));
    document.addEventListener('keydown', watch, { capture: true, once: true });
    focused.dispatchEvent(new KeyboardEvent('keydown', { key, ctrlKey: true, bubbles: true }));
    return seen;
  };
  expect(passes('s')).toBe(true);
  await settles(() => expect(focused.dataset['lmSuppressShortcuts']).toBe('true'));
  expect(passes('z')).toBe(false);
  expect(passes('ArrowLeft')).toBe(false);
});

test('another recommendation is drawn in place, with the same tab and focus', () => {
  [...el.querySelectorAll<HTMLButtonElement>('[role=tab]')].at(-1)!.click();
  el.querySelector<HTMLElement>('[name=workload-library]')!.focus();
  const { controls, ...rest } = model.get('_recommendation');
  model.set('_recommendation', { ...rest, title: '30B on 8 × p4d', controls: { ...controls, of_another_library: controls['tensor_parallel_degree']! } });
  // They come together, with events in any order, and these controls have a position without a move.
  const [batch, degree] = CONTROLS as [Positions, Positions];
  model.set('_controls', [{ ...batch, values: [...batch.values, 48] }, { ...degree, name: 'of_another_library' }]);
  model.set('_state', state(16, 1));
  model.emit('change:_state');
  model.emit('change:_recommendation');
  expect(el.querySelectorAll('.smp')).toHaveLength(1);
  expect(text('.smp-heading')).toBe('30B on 8 × p4d');
  expect([...el.querySelectorAll('[role=tab]')].at(-1)!.getAttribute('aria-selected')).toBe('true');
  expect(document.activeElement?.getAttribute('name')).toBe('workload-library');
});

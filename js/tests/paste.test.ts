import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { Paste } from '../src/widget/paste';
import type { FromKernel, Pasted } from '../src/widget/wire';
import { HOSTILE } from './fixtures';

const READ: Pasted = {
  summary: '1 error.',
  read: [`It is ${HOSTILE}.`],
  findings: [],
  unresolved: [`Line 1: ${HOSTILE}`],
  diff: `-${HOSTILE}\n+better\n`,
  corrected: 'better\n',
  comparison: { gain: 'It gains.', rows: [['batch_size', '8', '16', HOSTILE]] }
};

const send = vi.fn();
let paste: Paste;

beforeEach(() => {
  paste = new Paste('view', send);
  document.body.append(paste.node);
});

afterEach(() => {
  send.mockReset();
  document.body.replaceChildren();
});

const field = (): HTMLTextAreaElement => paste.node.querySelector('textarea')!;
const press = (name: string): void => [...paste.node.querySelectorAll('button')].find(b => b.textContent === name)!.click();
const answer = (id: string, what = READ): void => paste.onMessage({ kind: 'pasted', id, ...what } satisfies FromKernel);

test('the text goes to the kernel by the button and by the keys that run a cell', () => {
  field().value = 'x = 1';
  press('Check the cell');
  expect(send).toHaveBeenLastCalledWith({ kind: 'paste', id: 'view-paste-1', text: 'x = 1' }, expect.any(Function));
  const enter = new KeyboardEvent('keydown', { key: 'Enter', ctrlKey: true, bubbles: true, cancelable: true });
  const outside = vi.fn();
  document.body.addEventListener('keydown', outside);
  field().dispatchEvent(enter);
  expect(send).toHaveBeenCalledTimes(2);
  expect(enter.defaultPrevented).toBe(true);
  expect(outside).not.toHaveBeenCalled(); // the notebook must not run its own cell
  field().dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }));
  expect(send).toHaveBeenCalledTimes(2); // Enter is a line of the text
});

test("only the newest question's answer is shown, and all of it is text", () => {
  press('Check the cell');
  press('Check the cell');
  answer('view-paste-1');
  answer('other-paste-2');
  expect(paste.node.textContent).not.toContain('It gains.');
  answer('view-paste-2');
  expect(paste.node.textContent).toContain('It gains.');
  expect(paste.node.querySelector('img, script')).toBeNull();
  expect(paste.node.querySelector('[role=status]')!.textContent).toBe('1 error.');
  expect([...paste.node.querySelectorAll('th[scope=row]')].map(cell => cell.textContent)).toEqual(['batch_size']);
});

test('the corrected cell is handed to the notebook, and nothing is offered where nothing changes', () => {
  press('Check the cell');
  answer('view-paste-1');
  const inserted = vi.fn((event: Event) => event.preventDefault());
  document.body.addEventListener('smp-advisor:insert-cell', inserted);
  press('Insert corrected cell');
  expect((inserted.mock.calls[0]![0] as CustomEvent).detail).toMatchObject({ sources: ['better\n'] });
  press('Check the cell');
  answer('view-paste-2', { ...READ, diff: '', corrected: '', comparison: null });
  expect(paste.node.textContent).not.toContain('corrected');
});

test('what can be focused keeps its keys and has a name', () => {
  press('Check the cell');
  answer('view-paste-1');
  for (const one of paste.node.querySelectorAll<HTMLElement>('button, textarea, summary, [tabindex]'))
    expect(one.dataset['lmSuppressShortcuts']).toBe('true');
  expect(field().closest('label')!.textContent).toContain('Cell, dictionary, recipe or request');
  expect(document.getElementById(field().getAttribute('aria-describedby')!)!.textContent).toContain('never runs it');
});

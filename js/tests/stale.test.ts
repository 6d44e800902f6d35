import type { Notebook } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { expect, test, vi } from 'vitest';
import { OWNED, ownedBy } from '../src/lab/ownership';
import { markStale } from '../src/lab/stale';

const OWNER = { from: 'advisor', model: 'm1' };
const OWN = ownedBy(OWNER, { sources: ['x'], what: 'job', plan: 'p', mode: 'update' }, 0);
const TRANS = { __: (text: string) => text } as unknown as TranslationBundle;

test('the button of a cell of another plan stays while the plan moves, until the cell has the plan or is the user\'s', () => {
  const node = document.createElement('div');
  const metadata: Record<string, unknown> = { [OWNED]: OWN };
  const notebook = { widgets: [{ node, model: { getMetadata: (key: string) => metadata[key] } }] } as unknown as Notebook;
  const [earlier, later] = [vi.fn(), vi.fn()];
  expect(markStale(notebook, OWNER, 'p1', TRANS, earlier)).toEqual({ job: 1 });
  const pressed = node.querySelector('button')!;
  expect(markStale(notebook, OWNER, 'p2', TRANS, later)).toEqual({ job: 1 });
  expect(node.querySelectorAll('button')).toHaveLength(1);
  expect(node.contains(pressed)).toBe(true);
  pressed.click();
  expect(earlier).not.toHaveBeenCalled();
  expect(later).toHaveBeenCalledExactlyOnceWith('job');
  expect(markStale(notebook, OWNER, 'p', TRANS, later)).toEqual({});
  expect(node.childElementCount).toBe(0);
  markStale(notebook, OWNER, 'p2', TRANS, later);
  delete metadata[OWNED];
  expect(markStale(notebook, OWNER, 'p2', TRANS, later)).toEqual({});
  expect(node.childElementCount).toBe(0);
});

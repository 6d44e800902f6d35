import { expect, test } from 'vitest';
import type { Insertion, Mode } from '../src/events';
import { type ICell, isInsertion, isStale, ownedBy, ownedOf, plannedChange } from '../src/lab/ownership';

const OWNER = { from: 'advisor', model: 'm1' };

function insertion(sources: string[], mode: Mode = 'update', what = 'job'): Insertion {
  return { sources, what, plan: 'p', mode };
}

/** Cells of a notebook after an insertion below the advisor. */
function after(sources: string[], what = 'job'): ICell[] {
  const made = sources.map((source, part) => ({ source, owned: ownedBy(OWNER, insertion(sources, 'update', what), part) }));
  return [{ source: 'advise', owned: null }, ...made, { source: 'tail', owned: null }];
}

const change = (cells: ICell[], made: Insertion, owner = OWNER): unknown => {
  const { outcome, targets, released } = plannedChange(cells, owner, made);
  return [outcome, targets, released];
};

test('cells are inserted once, then updated in place', () => {
  expect(change([{ source: 'advise', owned: null }], insertion(['a', 'b']))).toEqual(['inserted', [-1, -1], []]);
  expect(change(after(['a', 'b']), insertion(['a', 'c']))).toEqual(['updated', [1, 2], []]);
  expect(change(after(['a', 'b']), insertion(['a', 'b']))).toEqual(['unchanged', [1, 2], []]);
});

test('an edited cell is neither overwritten nor doubled without a decision', () => {
  const cells = after(['a', 'b']);
  cells[2]!.source = 'mine';
  expect(change(cells, insertion(['a', 'c']))).toEqual(['edited', [-1, -1], []]);
  expect(change(cells, insertion(['a', 'c'], 'replace'))).toEqual(['updated', [1, 2], []]);
  expect(change(cells, insertion(['a', 'c'], 'add'))).toEqual(['inserted', [-1, -1], [1, 2]]);
  cells[2]!.source = 'c'; // edited to what it would become
  expect(change(cells, insertion(['a', 'c']))).toEqual(['unchanged', [1, 2], []]);
});

test('a deleted part is inserted again, and a copy of a cell is left alone', () => {
  const cells = after(['a', 'b']);
  expect(change([cells[0]!, cells[2]!], insertion(['a', 'c']))).toEqual(['updated', [-1, 1], []]);
  expect(change([...cells, cells[1]!], insertion(['x', 'b']))).toEqual(['updated', [1, 2], []]);
});

test('cells of another kind or of another advisor are not touched', () => {
  expect(change(after(['a']), insertion(['q'], 'update', 'quota'))).toEqual(['inserted', [-1], []]);
  expect(change(after(['a']), insertion(['b']), { from: 'second', model: 'm2' })).toEqual(['inserted', [-1], []]);
  expect(change(after(['a']), insertion(['b']), { from: 'second view', model: 'm1' })).toEqual(['updated', [1], []]);
});

test('metadata of other tools is not taken for an inserted cell', () => {
  for (const metadata of [undefined, null, 1, {}, { from: 'a', model: 'b', what: 'job', text: 1, plan: '', part: 0 }]) {
    expect(ownedOf(metadata)).toBeNull();
  }
});

test('a cell is stale if its plan is another one, unless no plan matters to it', () => {
  const owned = ownedBy(OWNER, insertion(['a']), 0);
  expect([isStale(owned, 'p'), isStale(owned, 'q'), isStale({ ...owned, plan: '' }, 'q')]).toEqual([false, true, false]);
});

test('an event without cells inserts nothing', () => {
  expect(isInsertion(insertion(['a']))).toBe(true);
  for (const detail of [null, {}, insertion([]), { ...insertion([]), sources: [1] }, { sources: ['a'] }]) {
    expect(isInsertion(detail)).toBe(false);
  }
});

import { expect, test } from 'vitest';
import { describe } from '../src/widget/change_summary';
import type { Snapshot } from '../src/widget/wire';
import cases from './change_summaries.json';

test.each(cases)('a move is summarized: $name', ({ rows, before, after, moved, usable_gib, summary }) => {
  expect(describe(rows, before as unknown as Snapshot, after as unknown as Snapshot, moved, usable_gib)).toBe(summary);
});

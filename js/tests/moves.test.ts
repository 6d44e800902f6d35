import { expect, test } from 'vitest';
import { describe } from '../src/widget/moves';
import type { Moment } from '../src/widget/wire';
import cases from './moves.json';

test.each(cases)('a move is told in words: $name', ({ rows, before, after, moved, usable_gib, said }) => {
  expect(describe(rows, before as unknown as Moment, after as unknown as Moment, moved, usable_gib)).toBe(said);
});

import { expect, test } from 'vitest';
import { EXAMPLE, starterCell } from '../src/lab/starter';

test('the example asks about ten billion parameters', () => {
  expect(starterCell(EXAMPLE)).toBe(
    '%load_ext smp_advisor\nadvice = %smp_advise 10B --instance ml.p4d.24xlarge --count 16 --sequence-length 512'
  );
});

test('what is left empty is left out, and one answer stays one word of one line', () => {
  const cell = starterCell({ model: ' my models/config.json\nimport os', instance: 'ml.p4d.24xlarge', count: '', sequenceLength: ' ', library: 'fsdp' });
  expect(cell.split('\n')).toHaveLength(2);
  expect(cell).toContain('%smp_advise "my models/config.json import os" --instance ml.p4d.24xlarge --library fsdp');
  expect(cell).not.toContain('--count');
});

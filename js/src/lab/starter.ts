/** What the advisor is asked about. */
export interface IQuestion {
  model: string;
  instance: string;
  count: string;
  sequenceLength: string;
}

/** AWS's own example of a model that does not fit on one GPU. */
export const EXAMPLE: IQuestion = { model: '10B', instance: 'ml.p4d.24xlarge', count: '16', sequenceLength: '512' };

/** The cell that asks it. */
export function starterCell(question: IQuestion): string {
  const { model, instance, count, sequenceLength } = question;
  const options = [
    ['--instance', instance],
    ['--count', count],
    ['--sequence-length', sequenceLength]
  ];
  const given = options.filter(([, value]) => value?.trim()).map(([name, value]) => `${name} ${word(value ?? '')}`);
  return `%load_ext smp_advisor\nadvice = %smp_advise ${[word(model), ...given].join(' ')}`;
}

/** One word of a magic's line: quoted where it holds spaces, never more than one line. */
function word(text: string): string {
  const one = text.trim().replace(/[\r\n"{}]+/g, ' ');
  return /\s/.test(one) ? `"${one}"` : one;
}

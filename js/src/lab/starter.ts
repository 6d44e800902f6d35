/** Model and cluster of a request to the advisor. */
export interface IQuestion {
  model: string;
  instance: string;
  count: string;
  sequenceLength: string;
  /** Name of a training library, or auto. */
  library: string;
}

/** An example by AWS of a model that does not fit on one GPU. */
export const EXAMPLE: IQuestion = { model: '10B', instance: 'ml.p4d.24xlarge', count: '16', sequenceLength: '512', library: 'auto' };

/** Cell that runs the advisor. */
export function starterCell(question: IQuestion): string {
  const { model, instance, count, sequenceLength, library } = question;
  const options = [
    ['--instance', instance],
    ['--count', count],
    ['--sequence-length', sequenceLength],
    ['--library', library === 'auto' ? '' : library]
  ];
  const words = options.filter(([, value]) => value?.trim()).map(([name, value]) => `${name} ${word(value ?? '')}`);
  return `%load_ext smp_advisor\nadvice = %smp_advise ${[word(model), ...words].join(' ')}`;
}

/** One word of a magic's line: quoted if it contains spaces, never more than one line. */
function word(text: string): string {
  const line = text.trim().replace(/[\r\n"{}]+/g, ' ');
  return /\s/.test(line) ? `"${line}"` : line;
}

import { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import { advisorIcon } from './icon';
import { EXAMPLE, IQuestion, starterCell } from './starter';

/** A short form in the sidebar: model and cluster, and a button that runs the advisor in the notebook. */
export class StarterPanel extends Widget {
  private readonly question: IQuestion = { ...EXAMPLE };

  constructor(trans: TranslationBundle, insert: (source: string) => void) {
    super();
    this.id = 'smp-advisor-panel';
    this.addClass('smp-advisor-panel');
    this.title.icon = advisorIcon;
    this.title.caption = trans.__('SMP Advisor');

    const heading = document.createElement('h2');
    heading.textContent = trans.__('SMP Advisor');
    const lead = document.createElement('p');
    lead.textContent = trans.__('Find a SageMaker model-parallel configuration that fits your model, with its speed, its cost and the reasons.');
    const form = document.createElement('form');
    form.append(
      this.field('model', trans.__('Model'), trans.__('parameter count (10B), config.json, or variable')),
      this.field('instance', trans.__('Instance type'), ''),
      this.field('count', trans.__('Instances'), ''),
      this.field('sequenceLength', trans.__('Sequence length'), trans.__('tokens per sample'))
    );
    const submit = document.createElement('button');
    submit.type = 'submit';
    submit.className = 'jp-mod-styled jp-mod-accept';
    submit.textContent = trans.__('Recommend in the notebook');
    form.append(submit);
    form.addEventListener('submit', event => {
      event.preventDefault();
      insert(starterCell(this.question));
    });
    this.node.append(heading, lead, form);
  }

  private field(name: keyof IQuestion, text: string, hint: string): HTMLLabelElement {
    const label = document.createElement('label');
    const input = document.createElement('input');
    input.className = 'jp-mod-styled';
    input.value = this.question[name];
    input.required = name === 'model' || name === 'instance';
    input.addEventListener('input', () => (this.question[name] = input.value));
    const note = document.createElement('small');
    note.textContent = hint;
    label.append(text, input, note);
    return label;
  }
}

import { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import type { Mode, Outcome } from '../events';
import choices from './choices.json';
import { advisorIcon } from './icon';
import { EXAMPLE, IQuestion, starterCell } from './starter';

/** The sidebar: a short form with model, cluster and library, and a button that runs the advisor in the notebook. */
export class AdvisorPanel extends Widget {
  private readonly fields = new Map<keyof IQuestion, HTMLInputElement | HTMLSelectElement>();
  private readonly status = document.createElement('p');
  private readonly offers = document.createElement('p');

  /** @param insert Inserts the cell and runs it; null without a notebook. */
  constructor(
    private readonly trans: TranslationBundle,
    private readonly insert: (source: string, mode: Mode) => Promise<Outcome | null>
  ) {
    super();
    this.id = 'smp-advisor-panel';
    this.addClass('smp-advisor-panel');
    this.title.icon = advisorIcon;
    this.title.caption = trans.__('SMP Advisor');
    const [heading, lead, form] = [document.createElement('h2'), document.createElement('p'), document.createElement('form')];
    heading.textContent = trans.__('SMP Advisor');
    lead.textContent = trans.__('Find a SageMaker model-parallel configuration that fits your model, with its speed, its cost and the reasons.');
    this.node.append(heading, lead, form);
    const instances = document.createElement('datalist');
    instances.id = 'smp-advisor-instances';
    instances.append(...choices.instances.map(([name, text]) => option(name!, text!)));
    const instance = this.text('instance', trans.__('Instance type'), trans.__('a type from the list, several between commas, or any'));
    instance.querySelector('input')!.setAttribute('list', instances.id);
    const submit = this.action(trans.__('Recommend in the notebook'), 'update');
    submit.type = 'submit';
    submit.classList.add('jp-mod-accept');
    this.status.setAttribute('role', 'status');
    form.append(
      this.text('model', trans.__('Model'), trans.__('parameter count (10B), config.json, or variable')),
      instance,
      instances,
      this.text('count', trans.__('Instances'), ''),
      this.text('sequenceLength', trans.__('Sequence length'), trans.__('tokens per sample')),
      this.library(),
      submit,
      this.status,
      this.offers
    );
    form.addEventListener('submit', event => {
      event.preventDefault();
      void this.send('update');
    });
    this.fill(EXAMPLE);
  }

  /** Set the fields that the user has not changed. */
  fill(question: IQuestion): void {
    for (const [name, field] of this.fields) if (!field.dataset['changed']) field.value = question[name];
  }

  private get question(): IQuestion {
    return Object.fromEntries([...this.fields].map(([name, field]) => [name, field.value])) as unknown as IQuestion;
  }

  private async send(mode: Mode): Promise<void> {
    this.offers.replaceChildren();
    const outcome = await this.insert(starterCell(this.question), mode);
    const { trans } = this;
    this.status.textContent = {
      inserted: trans.__('Inserted a cell below the active one.'),
      updated: trans.__('Updated the cell inserted before, and ran it.'),
      unchanged: trans.__('Ran the cell inserted before.'),
      edited: trans.__('You edited the cell inserted before.'),
      none: ''
    }[outcome ?? 'none'];
    const another = this.action(trans.__('Insert a new cell'), 'add');
    if (outcome === 'edited') this.offers.append(this.action(trans.__('Replace my edits'), 'replace'), another);
    if (outcome === 'updated' || outcome === 'unchanged') this.offers.append(another);
  }

  private action(text: string, mode: Mode): HTMLButtonElement {
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'jp-mod-styled';
    button.textContent = text;
    if (mode !== 'update') button.addEventListener('click', () => void this.send(mode));
    return button;
  }

  private text(name: keyof IQuestion, text: string, hint: string): HTMLLabelElement {
    const input = document.createElement('input');
    input.className = 'jp-mod-styled';
    input.required = name === 'model' || name === 'instance';
    return this.labeled(name, text, hint, input);
  }

  private library(): HTMLLabelElement {
    const select = document.createElement('select');
    select.className = 'jp-mod-styled';
    select.append(option('auto', this.trans.__('chosen by the advisor')));
    select.append(...choices.libraries.map(([name, title]) => option(name!, title!)));
    return this.labeled('library', this.trans.__('Library'), '', select);
  }

  private labeled(name: keyof IQuestion, text: string, hint: string, field: HTMLInputElement | HTMLSelectElement): HTMLLabelElement {
    const label = document.createElement('label');
    const note = document.createElement('small');
    note.textContent = hint;
    field.addEventListener('input', () => (field.dataset['changed'] = 'true'));
    this.fields.set(name, field);
    label.append(text, field, note);
    return label;
  }
}

function option(value: string, text: string): HTMLOptionElement {
  const made = document.createElement('option');
  made.value = value;
  made.textContent = text;
  return made;
}

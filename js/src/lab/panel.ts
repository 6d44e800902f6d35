import { INotebookTracker } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import type { Mode, Outcome } from '../events';
import { advisorIcon } from './icon';
import { NotebookList } from './notebook_list';
import { IPreferences, questionOf } from './preferences';
import { StarterForm } from './starter_form';

/** The sidebar: a short form for a new request, and the recommendations of the active notebook. */
export class AdvisorPanel extends Widget {
  private readonly form: StarterForm;
  private readonly list: NotebookList;

  constructor(
    tracker: INotebookTracker,
    trans: TranslationBundle,
    insert: (source: string, mode: Mode) => Promise<Outcome | null>
  ) {
    super();
    this.id = 'smp-advisor-panel';
    this.addClass('smp-advisor-panel');
    this.title.icon = advisorIcon;
    this.title.caption = trans.__('SMP Advisor');
    this.form = new StarterForm(trans, insert);
    this.list = new NotebookList(tracker, trans);

    const heading = document.createElement('h2');
    heading.textContent = trans.__('SMP Advisor');
    const lead = document.createElement('p');
    lead.textContent = trans.__('Find a SageMaker model-parallel configuration that fits your model, with its speed, its cost and the reasons.');
    this.node.append(heading, lead, this.form.node, this.list.node);
  }

  /** Use the user's settings for fields that were not changed. */
  prefer(preferences: IPreferences): void {
    this.form.fill(questionOf(preferences));
  }

  override dispose(): void {
    this.list.dispose();
    super.dispose();
  }
}

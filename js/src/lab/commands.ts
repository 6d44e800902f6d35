import { JupyterFrontEnd } from '@jupyterlab/application';
import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { DisposableSet, IDisposable } from '@lumino/disposable';
import { advisorIcon } from './icon';
import type { Insertion } from '../events';
import { insert } from './insert';
import { IPreferences, questionOf } from './preferences';
import { starterCell } from './starter';

export namespace CommandIDs {
  /** Insert a cell that opens the advisor, below the active cell of the current notebook, and run it. */
  export const insertAdvisor = 'smp-advisor:insert-advisor';
  /** Insert and run the cell in a new notebook. */
  export const openNotebook = 'smp-advisor:open-notebook';
}

/** @param preferences Settings of the user. */
export function addCommands(
  app: JupyterFrontEnd,
  tracker: INotebookTracker,
  trans: TranslationBundle,
  preferences: () => IPreferences
): IDisposable {
  const source = (): string => starterCell(questionOf(preferences()));
  const added = new DisposableSet();
  added.add(
    app.commands.addCommand(CommandIDs.insertAdvisor, {
      label: trans.__('Insert the SMP Advisor'),
      caption: trans.__('Insert a cell that recommends a SageMaker model-parallel configuration'),
      icon: advisorIcon,
      isEnabled: () => tracker.currentWidget !== null,
      execute: async () => {
        const notebook = tracker.currentWidget;
        if (notebook === null) return;
        const insertion: Insertion = { sources: [source()], what: 'advise', plan: '', mode: 'add' };
        insert(notebook.content, notebook.content.activeCellIndex, { from: '', model: '' }, insertion);
        await NotebookActions.run(notebook.content, notebook.sessionContext);
      }
    })
  );
  added.add(
    app.commands.addCommand(CommandIDs.openNotebook, {
      label: trans.__('SMP Advisor'),
      caption: trans.__('New notebook with the SageMaker model-parallel advisor'),
      icon: advisorIcon,
      execute: async () => {
        const panel = (await app.commands.execute('notebook:create-new', { kernelName: 'python3' })) as NotebookPanel;
        await panel.context.ready;
        await panel.sessionContext.ready;
        panel.content.widgets[0]?.model.sharedModel.setSource(source());
        await NotebookActions.run(panel.content, panel.sessionContext);
      }
    })
  );
  return added;
}

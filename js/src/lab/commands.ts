import { JupyterFrontEnd } from '@jupyterlab/application';
import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { DisposableSet, IDisposable } from '@lumino/disposable';
import { advisorIcon } from './icon';
import { insertBelow } from './insert';
import { EXAMPLE, starterCell } from './starter';

export namespace CommandIDs {
  /** Insert a cell that opens the advisor, below the active cell of the current notebook, and run it. */
  export const insertAdvisor = 'smp-advisor:insert-advisor';
  /** Insert and run the cell in a new notebook. */
  export const openNotebook = 'smp-advisor:open-notebook';
}

export function addCommands(app: JupyterFrontEnd, tracker: INotebookTracker, trans: TranslationBundle): IDisposable {
  const added = new DisposableSet();
  added.add(
    app.commands.addCommand(CommandIDs.insertAdvisor, {
      label: trans.__('Insert the SMP Advisor'),
      caption: trans.__('Insert a cell that recommends a SageMaker model-parallel configuration'),
      icon: advisorIcon,
      isEnabled: () => tracker.currentWidget !== null,
      execute: args => (tracker.currentWidget === null ? undefined : insertAndRun(tracker.currentWidget, sourceOf(args)))
    })
  );
  added.add(
    app.commands.addCommand(CommandIDs.openNotebook, {
      label: trans.__('SMP Advisor'),
      caption: trans.__('New notebook with the SageMaker model-parallel advisor'),
      icon: advisorIcon,
      execute: async args => {
        const panel = (await app.commands.execute('notebook:create-new', { kernelName: 'python3' })) as NotebookPanel;
        await panel.context.ready;
        await panel.sessionContext.ready;
        panel.content.widgets[0]?.model.sharedModel.setSource(sourceOf(args));
        await NotebookActions.run(panel.content, panel.sessionContext);
      }
    })
  );
  return added;
}

/** Cell to insert: the argument of the command, or the example. */
function sourceOf(args: ReadonlyPartialJSONObject): string {
  return typeof args['source'] === 'string' ? args['source'] : starterCell(EXAMPLE);
}

async function insertAndRun(panel: NotebookPanel, source: string): Promise<void> {
  insertBelow({ panel, index: panel.content.activeCellIndex }, [source]);
  await NotebookActions.run(panel.content, panel.sessionContext);
}

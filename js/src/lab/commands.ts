import { JupyterFrontEnd } from '@jupyterlab/application';
import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { DisposableSet, IDisposable } from '@lumino/disposable';
import { advisorIcon } from './icon';
import { Mode, Outcome } from '../events';
import { insert } from './insert';
import { Owner } from './ownership';
import { IPreferences, questionOf } from './preferences';
import { starterCell } from './starter';

export namespace CommandIDs {
  /** Insert a cell that opens the advisor, below the active cell of the current notebook, and run it. */
  export const insertAdvisor = 'smp-advisor:insert-advisor';
  /** Insert and run the cell in a new notebook. */
  export const openNotebook = 'smp-advisor:open-notebook';
}

/** @param preferences Settings of the user, for cells without a source of their own. */
export function addCommands(
  app: JupyterFrontEnd,
  tracker: INotebookTracker,
  trans: TranslationBundle,
  preferences: () => IPreferences
): IDisposable {
  /** Cell to insert: the argument of the command, or the example with the user's settings. */
  const sourceOf = (args: ReadonlyPartialJSONObject): string =>
    typeof args['source'] === 'string' ? args['source'] : starterCell(questionOf(preferences()));
  const added = new DisposableSet();
  added.add(
    app.commands.addCommand(CommandIDs.insertAdvisor, {
      label: trans.__('Insert the SMP Advisor'),
      caption: trans.__('Insert a cell that recommends a SageMaker model-parallel configuration'),
      icon: advisorIcon,
      isEnabled: () => tracker.currentWidget !== null,
      execute: args =>
        tracker.currentWidget === null ? undefined : insertAndRun(tracker.currentWidget, sourceOf(args), modeOf(args))
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

/** New cells by default: only the side panel updates the cell that it inserted before. */
function modeOf(args: ReadonlyPartialJSONObject): Mode {
  return args['mode'] === 'update' || args['mode'] === 'replace' ? args['mode'] : 'add';
}

async function insertAndRun({ content, sessionContext }: NotebookPanel, source: string, mode: Mode): Promise<Outcome> {
  const insertion = { sources: [source], what: 'advise', plan: '', mode };
  const outcome = insert(content, content.activeCellIndex, SIDE_PANEL, insertion);
  if (outcome !== 'edited') await NotebookActions.run(content, sessionContext);
  return outcome;
}

const SIDE_PANEL: Owner = { from: 'smp-advisor-panel', model: '' };

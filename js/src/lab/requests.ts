import type { JupyterFrontEnd } from '@jupyterlab/application';
import { INotebookTracker, NotebookActions } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { DisposableDelegate, DisposableSet, IDisposable } from '@lumino/disposable';
import { type Announcement, INSERT_EVENT, OPEN_EVENT, type Place, PLAN_EVENT, RUN_EVENT, UPDATE_EVENT } from '../events';
import { insert } from './insert';
import { openPlace } from './open_place';
import { isInsertion, Owner } from './ownership';
import { IPlace, locate } from './place';
import { markStale } from './stale';

/** Answer the requests of the advisors in `tracker`'s notebooks, until disposed. */
export function answerRequests(app: JupyterFrontEnd, tracker: INotebookTracker, trans: TranslationBundle): IDisposable {
  const answered = new DisposableSet();
  const answer = (name: string, action: (place: IPlace, detail: unknown, view: Node) => boolean): void => {
    const listener = (event: Event): void => {
      const view = event.composedPath()[0];
      const place = view instanceof Node ? locate(tracker, view) : null;
      // The view then knows that its request was answered, and does not use the clipboard instead.
      if (place && action(place, (event as CustomEvent<unknown>).detail, view as Node)) event.preventDefault();
    };
    document.addEventListener(name, listener);
    answered.add(new DisposableDelegate(() => document.removeEventListener(name, listener)));
  };

  answer(INSERT_EVENT, (place, detail, view) => {
    if (!isInsertion(detail)) return false;
    const { panel, index } = place;
    detail.outcome = insert(panel.content, index, ownerOf(place), detail);
    if (detail.outcome !== 'edited') {
      if (detail.plan) mark(place, detail.plan, view);
      if (detail.run) void NotebookActions.run(panel.content, panel.sessionContext);
      // An output in a tab of its own can hide the notebook.
      if (!panel.isVisible) app.shell.activateById(panel.id);
    }
    return true;
  });
  answer(PLAN_EVENT, (place, detail, view) => {
    if (typeof detail !== 'object' || detail === null) return false;
    const announced = detail as Partial<Announcement>;
    if (typeof announced.plan !== 'string' || announced.plan === '') return false;
    announced.stale = mark(place, announced.plan, view);
    return true;
  });
  answer(RUN_EVENT, ({ panel, index }) => {
    panel.content.activeCellIndex = index;
    panel.content.deselectAll();
    void NotebookActions.run(panel.content, panel.sessionContext);
    return true;
  });
  answer(OPEN_EVENT, (place, detail) => isPlace(detail) && openPlace(app, place, detail));

  function mark(place: IPlace, plan: string, view: Node): Record<string, number> {
    const update = (what: string): void => {
      view.dispatchEvent(new CustomEvent(UPDATE_EVENT, { detail: { what } }));
    };
    return markStale(place.panel.content, ownerOf(place), plan, trans, update);
  }
  return answered;
}

function ownerOf({ panel, index, model }: IPlace): Owner {
  return { from: panel.content.widgets[index]!.model.id, model };
}

function isPlace(detail: unknown): detail is Place {
  const { path, line, column } = (detail ?? {}) as Partial<Place>;
  return typeof path === 'string' && path !== '' && Number.isInteger(line) && Number.isInteger(column);
}
